"""The token oracle: the timed run's own answers, teacher-forced under the reference.

Every timed answer becomes token ids, goes through the reference behind its own prompt, and leaves one row in
`oracles/<arm>/tokens.parquet` (docs/files.md); `tokens.json` holds the numbers over all of them. At temperature 0 the
margin is the measure (Token-DiFR, arXiv 2511.20621), at other temperatures -ln p against the reference's own entropy.
What cannot be scored is counted and named, never dropped in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from oracles.answers import Answers, Key, Visit, read_answers
from oracles.atomic import write_result
from oracles.reference import OracleError, Reference
from oracles.result import Metric, OracleResult
from oracles.scoring import Progress, ScoreRequest, TokenScores
from oracles.splits import score_best_splits
from oracles.store import ScoreStore, score_stored
from oracles.token_table import token_row, write_table

VERSION = 2  # 1: text without ids was judged by the tokenizer's own split alone
RESAMPLES = 1000
Arm = Literal["baseline", "candidate", "floor"]
Values = npt.NDArray[np.float64]


def score_arm(
    visits: Sequence[Visit],
    reference: Reference,
    arm: Arm,
    out_dir: Path,
    *,
    engine_ids: Collection[Key] | None = None,
    tie_width: float | None = None,
    store: ScoreStore | None = None,
    progress: Progress | None = None,
) -> OracleResult:
    """Score one arm's timed answers and write `tokens.parquet` and `tokens.json` into `out_dir`.

    Args:
        visits: the arm's requests.parquet and workload.parquet of each pair.
        reference: what the answers are teacher-forced under.
        arm: whose they are.
        out_dir: `oracles/<arm>`.
        engine_ids: see `read_answers`; give both arms the same.
        tie_width: largest margin in nats at which another token than the reference's is excusable; from the floor.
        store: where scores are kept as they come and looked for first.
        progress: called with (tokens done, tokens in all).

    Returns:
        the result, unscored with its reason when nothing could be scored.

    Raises:
        OracleError: a file cannot be read.
    """
    answers = read_answers(visits, reference, engine_ids)
    inputs = {f"pairs/{v.pair:02d}/{f.name}": sha256(f) for v in visits for f in (v.requests, v.workload)}
    inputs["reference"] = reference.revision

    def score(requests: Sequence[ScoreRequest], top_k: int) -> list[TokenScores]:
        if store is None:
            return reference.score(requests, top_k=top_k, progress=progress)
        return score_stored(reference, requests, store, top_k=top_k, progress=progress)

    try:
        split, scores = score_best_splits(answers.scored, reference, score)
        answers.split_otherwise = sum(new is not old for new, old in zip(split, answers.scored, strict=True))
        rows = [token_row(a, s, tie_width) for a, s in zip(split, scores, strict=True)]
        write_table(rows, out_dir / "tokens.parquet")
    except (ValueError, MemoryError) as error:
        reason = f"The reference could not score the answers: {error}."
        return write_result(_unscored(arm, reason, inputs, answers), out_dir)
    if not rows:
        return write_result(_unscored(arm, "No timed answer could be scored.", inputs, answers), out_dir)
    result = OracleResult(
        oracle="tokens",
        arm=arm,
        version=VERSION,
        status="scored",
        metrics=_counts(answers) | token_metrics(pd.DataFrame(rows)),
        inputs=inputs,
        notes=_notes(answers),
    )
    return write_result(result, out_dir)


def token_metrics(rows: pd.DataFrame) -> dict[str, Metric]:
    """Numbers over scored answers (columns of tokens.parquet), with a bootstrap of documents where one makes sense.

    Margins and top-1 are over answers asked at temperature 0, `excess_nll` (-ln p less the entropy, 0 in the mean for
    an honest sampler) over the others.
    """
    metrics: dict[str, Metric] = {}
    greedy, sampled = rows[rows["greedy"]], rows[~rows["greedy"]]
    metrics["nll"] = _ratio(rows, rows["nll_sum"], "nats/token")
    metrics["entropy"] = _ratio(rows, rows["entropy_sum"], "nats/token")
    if len(greedy):
        margins = np.concatenate(greedy["margins"].to_list()).astype(float)
        metrics["margin"] = _ratio(greedy, greedy["margin_sum"], "nats/token")
        metrics["margin_p99"] = Metric(value=float(np.quantile(margins, 0.99)), unit="nats", n=len(margins))
        metrics["top1"] = _ratio(greedy, greedy["top1"], "share")
        metrics["margin_max_median"] = _number(greedy["margin_max"].median(), "nats", len(greedy))
        metrics["margin_first64"] = _number(greedy["margin_first64"].mean(), "nats/answer", len(greedy))
        if greedy["flips_inexcusable"].notna().all():
            metrics["flips_inexcusable"] = _ratio(greedy, greedy["flips_inexcusable"], "share")
    if len(sampled):
        metrics["excess_nll"] = _ratio(sampled, sampled["nll_sum"] - sampled["entropy_sum"], "nats/token")
    metrics["loop_share_mean"] = _number(rows["loop_share"].mean(), "share", len(rows))
    metrics["tokens_per_answer"] = _number(rows["tokens"].mean(), "tokens", len(rows))
    return metrics


def _ratio(rows: pd.DataFrame, sums: pd.Series[float], unit: str) -> Metric:
    """Sum over tokens, with the two-sided 95 % interval of a bootstrap that resamples documents (items)."""
    table = pd.DataFrame({"item": rows["item"], "sum": sums.astype(float), "tokens": rows["tokens"].astype(float)})
    documents = table.groupby("item")[["sum", "tokens"]].sum().to_numpy()
    draws = _resampled(documents)
    low, high = np.quantile(draws[:, 0] / draws[:, 1], [0.025, 0.975]) if len(documents) > 1 else (None, None)
    total, tokens = documents.sum(axis=0)
    return Metric(value=float(total / tokens), unit=unit, n=int(tokens), ci_low=low, ci_high=high)


def _resampled(documents: Values) -> Values:
    """Sums over each of RESAMPLES draws of the documents, with replacement: [RESAMPLES, columns]."""
    rng, n = np.random.default_rng(0), len(documents)
    weights = (rng.multinomial(n, np.full(n, 1 / n)) for _ in range(RESAMPLES))
    return np.stack([w @ documents for w in weights])


def _number(value: float, unit: str, n: int) -> Metric:
    return Metric(value=float(value), unit=unit, n=n)


def _counts(answers: Answers) -> dict[str, Metric]:
    """What was asked and what of it was scored, and how."""
    scored, timed = len(answers.scored), answers.timed
    from_engine = sum(a.source == "engine" for a in answers.scored)
    counts = {
        "scored_share": Metric(value=scored / timed if timed else None, unit="share", n=timed),
        "engine_ids_share": Metric(value=from_engine / scored if scored else None, unit="share", n=scored),
        "refused_ids": Metric(value=answers.refused_ids, unit="requests", n=timed),
        "cut_at_context": Metric(value=answers.cut, unit="requests", n=scored),
    }
    if from_engine < scored:
        n = scored - from_engine
        counts["split_otherwise"] = Metric(value=answers.split_otherwise, unit="answers", n=n)
    same, tried = answers.round_trips
    if tried:
        counts["round_trip"] = Metric(value=same / tried, unit="share", n=tried)
    more = [a.more_prompt_tokens for a in answers.scored if a.more_prompt_tokens is not None]
    if more:
        counts["prompt_tokens_offset"] = Metric(value=float(np.median(more)), unit="tokens", n=len(more))
    return counts


def _notes(answers: Answers) -> tuple[str, ...]:
    notes = [f"{n} of {answers.timed} requests not scored: {why}." for why, n in answers.unscored.most_common(5)]
    if answers.cut:
        notes.append(f"{answers.cut} answers run past the reference's context: only their first part was scored.")
    if answers.refused_ids:
        notes.append(
            f"{answers.refused_ids} answers came with token ids that do not spell their text: text was scored."
        )
    return tuple(notes)


def _unscored(arm: Arm, reason: str, inputs: dict[str, str], answers: Answers) -> OracleResult:
    return OracleResult(
        oracle="tokens", arm=arm, version=VERSION, status="unscored", reason=reason,
        metrics=_counts(answers), inputs=inputs, notes=_notes(answers),
    )  # fmt: skip


def sha256(path: Path) -> str:
    """SHA-256 of a file. Raises OracleError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise OracleError(f"{path} cannot be read: {error.strerror}.") from error

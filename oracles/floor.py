"""The noise floor: the reference against itself, computed another way, on the very positions that are judged.

An honest engine with the reference's own weights still disagrees with it now and then: sums are taken in another order,
at another precision. How far such a disagreement goes is measured here, not guessed. The reference is run again under
other numerics (exact fp32 arithmetic or BF16, whichever it does not use; eager attention; one sequence at a time;
with `cache` also the prompt through a key-value cache), the
token that run would have chosen is taken at every position of a sub-sample of the timed answers, and its margin under
the reference is the floor's margin. The tie width is the 99.9th percentile of how far the gap between the two best
logits moved (Yuan et al., arXiv 2506.09501, measure how much such changes matter).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from oracles.answers import Answer, Visit, read_answers
from oracles.atomic import write_result
from oracles.kl_metrics import bucketed_kld
from oracles.logit_oracle import write_rows
from oracles.logits import SMALLEST
from oracles.reference import LocalReference, OracleError, Reference, open_reference
from oracles.result import Metric, OracleResult
from oracles.scoring import Progress, TokenScores
from oracles.token_table import token_row, write_table
from oracles.tokens import sha256, token_metrics

VERSION = 1
MAX_TOKENS = 2048
QUANTILE = 0.999
CANDIDATES = 20  # of the reference; other numerics choose among them, and their divergence is taken over them
Numerics = Literal["precision", "attention", "batch", "cache"]
ALL: tuple[Numerics, ...] = ("precision", "attention", "batch")
EVERY: tuple[Numerics, ...] = (*ALL, "cache")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Floor:
    """What was measured. `tie_width` in nats, None when nothing could be."""

    result: OracleResult
    tie_width: float | None


def measure_floor(
    visits: Sequence[Visit],
    reference: Reference,
    out_dir: Path,
    *,
    max_tokens: int = MAX_TOKENS,
    numerics: Sequence[Numerics] = ALL,
    seed: int = 0,
    progress: Progress | None = None,
) -> Floor:
    """Measure the floor on a random sub-sample of one arm's answers; write `tokens.parquet` and `tokens.json`.

    Rows (and the metrics named as an arm's) are those of the numerics with the largest mean margin; every numerics has
    its own `margin.<name>`, and `tie_width` pools all of them.

    Args:
        visits: the baseline's files.
        reference: what the arms are scored under.
        out_dir: `oracles/floor`.
        max_tokens: answered tokens looked at, at most (one answer is always taken whole).
        numerics: ways to compute the reference again.
        seed: of the sub-sample.
        progress: called with (answered tokens done, answered tokens in all), a share of each for each pass.

    Raises:
        OracleError: a file cannot be read.
    """
    inputs = {f"pairs/{v.pair:02d}/{f.name}": sha256(f) for v in visits for f in (v.requests, v.workload)}
    sample = _sample(read_answers(visits, reference).scored, max_tokens, seed)
    return floor_of(sample, reference, out_dir, inputs=inputs, numerics=numerics, progress=progress)


def floor_of(
    sample: Sequence[Answer],
    reference: Reference,
    out_dir: Path,
    *,
    inputs: Mapping[str, str] | None = None,
    numerics: Sequence[Numerics] = ALL,
    progress: Progress | None = None,
) -> Floor:
    """The same on given answers; `inputs` names what they were read from."""
    inputs = {**(inputs or {}), "reference": reference.revision}
    if not sample:
        reason = "There is no timed answer to measure the floor on."
        return Floor(write_result(_result("unscored", reason=reason, inputs=inputs), out_dir), None)
    passes = _Passes(reference, sample, progress, 1 + len(numerics))
    own = passes.score(reference, top_k=CANDIDATES)
    measured, notes = _under_each(passes, numerics, own)
    if not measured:
        return Floor(write_result(_result("unscored", reason="; ".join(notes) + ".", inputs=inputs), out_dir), None)
    tie_width = float(np.quantile(np.concatenate([way.shift for way in measured.values()]), QUANTILE))
    shifts = sum(len(way.shift) for way in measured.values())
    metrics = {f"margin.{name}": _mean(_margins(way.chosen)) for name, way in measured.items()}
    metrics |= {f"kld.{name}": _mean(np.concatenate(way.klds)) for name, way in measured.items()}
    loudest = max(measured.values(), key=lambda way: float(_margins(way.chosen).mean())).chosen
    furthest = max(measured.values(), key=lambda way: float(np.concatenate(way.klds).mean())).klds
    rows = [token_row(a, s, tie_width) for a, s in zip(sample, loudest, strict=True)]
    write_table(rows, out_dir / "tokens.parquet")
    write_rows([_kld_row(a, klds) for a, klds in zip(sample, furthest, strict=True)], out_dir / "logits.parquet")
    metrics |= token_metrics(pd.DataFrame(rows).assign(greedy=True))
    metrics["tie_width"] = Metric(value=tie_width, unit="nats", n=shifts)
    result = _result("scored", metrics=metrics, notes=tuple(notes), inputs=inputs)
    return Floor(write_result(result, out_dir), tie_width)


@dataclass
class _Passes:
    """Forward passes over one sample, with progress over all of them."""

    reference: Reference
    sample: Sequence[Answer]
    progress: Progress | None
    expected: int
    done: int = 0

    def score(
        self,
        model: Any,
        *,
        top_k: int = 0,
        choices: Sequence[Any] | None = None,
        batch: int | None = None,
        cached: bool = False,
    ) -> list[TokenScores]:
        requests = [answer.request for answer in self.sample]
        if choices is not None:
            requests = [replace(r, targets=c.tolist()) for r, c in zip(requests, choices, strict=True)]
        answered = sum(len(a.ids) for a in self.sample)

        def advanced(done: int, total: int) -> None:
            # Answered tokens, the ones that were asked for: the passes also read every prompt.
            if self.progress:
                self.progress(int((self.done + done / total) / self.expected * answered), answered)

        how = {"cached": True} if cached else {"batch_tokens": batch}
        scores: list[TokenScores] = model.score(requests, top_k=top_k, progress=advanced, **how)
        self.done += 1
        return scores


@dataclass(frozen=True)
class _Way:
    """The reference under one other numerics: how far every gap of its two best logits moved, what it thinks of the
    tokens chosen then, and the divergence at every position of every answer."""

    shift: Values
    chosen: list[TokenScores]
    klds: list[Values]


def _under_each(
    passes: _Passes, numerics: Sequence[Numerics], own: Sequence[TokenScores]
) -> tuple[dict[str, _Way], list[str]]:
    """The reference under each numerics, and notes on what failed."""
    measured: dict[str, _Way] = {}
    notes: list[str] = []
    for name in numerics:
        try:
            other = _score_otherwise(passes, name)
        except (MemoryError, OracleError) as error:
            notes.append(f"the floor under other {name} was not measured: {error}")
            continue
        shift = np.concatenate([np.abs(_gap(a) - _gap(b)) for a, b in zip(own, other, strict=True)])
        chosen = _judge_choices(passes, own, [s.top_ids[:, 0] for s in other])
        measured[name] = _Way(shift, chosen, [_divergence(a, b) for a, b in zip(own, other, strict=True)])
    return measured, notes


def _judge_choices(
    passes: _Passes, own: Sequence[TokenScores], choices: Sequence[npt.NDArray[np.integer[Any]]]
) -> list[TokenScores]:
    """What the reference thinks of the tokens that other numerics chose.

    Other numerics choose among the reference's own best, so its top k holds the answer already; only where one choice
    is not among them is the reference run again.
    """
    found = [_among_best(scores, chosen) for scores, chosen in zip(own, choices, strict=True)]
    if all(scores is not None for scores in found):
        return [scores for scores in found if scores is not None]
    return passes.score(passes.reference, top_k=1, choices=choices)


def _among_best(scores: TokenScores, chosen: npt.NDArray[np.integer[Any]]) -> TokenScores | None:
    hits = scores.top_ids == chosen[:, None]
    if not hits.any(axis=1).all():
        return None
    logprobs = scores.top_logprobs[hits]
    return replace(
        scores,
        logprobs=logprobs,
        ranks=(scores.top_logprobs > logprobs[:, None]).sum(axis=1).astype(scores.ranks.dtype),
        margins=scores.top_logprobs[:, 0] - logprobs,
    )


def _divergence(own: TokenScores, other: TokenScores) -> Values:
    """KL(own || other) at each position over the ids that both kept, the rest as one; nats."""

    def known(scores: TokenScores, i: int) -> dict[int, float]:
        return dict(zip(scores.top_ids[i].tolist(), scores.top_logprobs[i].astype(float).tolist(), strict=True))

    return np.array([bucketed_kld(known(own, i), known(other, i), SMALLEST)[0] for i in range(len(own.logprobs))])


def _kld_row(answer: Answer, klds: Values) -> dict[str, Any]:
    about = {"pair": answer.pair, "line": answer.line, "item": answer.item, "stratum": answer.stratum}
    numbers = {"tokens": len(klds), "kld_sum": float(klds.sum()), "klds": klds.astype(np.float32)}
    return about | {"phase": "prefill"} | numbers


def _mean(values: Values) -> Metric:
    return Metric(value=float(values.mean()), unit="nats/token", n=len(values))


def _margins(scores: Sequence[TokenScores]) -> Values:
    return np.concatenate([s.margins for s in scores]).astype(np.float64)


def _result(status: Literal["scored", "unscored"], **fields: Any) -> OracleResult:
    return OracleResult(oracle="tokens", arm="floor", version=VERSION, status=status, **fields)


def _sample(answers: Sequence[Answer], max_tokens: int, seed: int) -> list[Answer]:
    """Answers in random order until `max_tokens` are reached; those at temperature 0 where there are any."""
    pool = [a for a in answers if a.greedy] or list(answers)
    taken: list[Answer] = []
    tokens = 0
    for i in np.random.default_rng(seed).permutation(len(pool)):
        if taken and tokens + len(pool[i].ids) > max_tokens:
            continue
        taken.append(pool[i])
        tokens += len(pool[i].ids)
    return sorted(taken, key=lambda a: (a.pair, a.line))


def _gap(scores: TokenScores) -> Values:
    """Distance of the two best logits at each position, nats."""
    gap: Values = (scores.top_logprobs[:, 0] - scores.top_logprobs[:, 1]).astype(np.float64)
    return gap


def _score_otherwise(passes: _Passes, name: Numerics) -> list[TokenScores]:
    """The same requests under other numerics."""
    reference = passes.reference
    if name == "batch":
        return passes.score(reference, top_k=CANDIDATES, batch=1)
    if not isinstance(reference, LocalReference):
        raise OracleError("a server computes in its own way only")
    if name == "cache":
        return passes.score(reference, top_k=CANDIDATES, cached=True)
    if name == "attention":
        with _other_attention(reference.model):
            return passes.score(reference, top_k=CANDIDATES)
    dtype = "bfloat16" if reference.dtype == "float32" else "float32"
    other = open_reference(reference.path, device=str(reference.model.device), dtype=dtype)
    return passes.score(other, top_k=CANDIDATES)


@contextmanager
def _other_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager" if before != "eager" else "sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(before)

"""Honesty from the timed stream alone: the contracts of the protocol, always on.

Reads requests.parquet and workload.parquet, never an endpoint. What the baseline is needed for is in
`oracles.conduct`. Bounds come from honest engines of four dialects: at `stop` an honest completion_tokens is one more
than the tokens of the text, at `length` equal; text in a loop does not survive re-tokenising (96 dots come back as 35
tokens), so it is no witness; a character cut by max_tokens is lost; llama.cpp merges tokens into events, vLLM sends
events without text, transformers serve sends no [DONE], llama-cpp-python never any usage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from oracles import conduct, text_signs
from oracles.arm import DEGENERATE, Arm, Flags, both
from oracles.evidence import ALPHA, Evidence, contract, exceeds, judge, rate, unscored
from oracles.result import Metric, OracleResult

VERSION = 2  # 1: one stop string in an answer proved that an engine ignores them
FINISHED = {"stop", "length", "tool_calls", "function_call"}
HUMAN_FLAG = 3.0  # times faster than the baseline: a person must look
Role = Literal["baseline", "candidate"]
Decode = Callable[[Sequence[Sequence[int]]], list[str]]


def check_arm(
    requests: pa.Table,
    workload: pa.Table,
    arm: Role,
    baseline: pa.Table | None = None,
    *,
    prompt_tokens: pa.Table | None = None,
    steps_per_s: float | None = None,
    decode: Decode | None = None,
    alpha: float = ALPHA,
) -> OracleResult:
    """Judge one arm's conduct on its timed requests (all pairs concatenated, with a `pair` column).

    baseline: its requests on the same workload; without it the comparisons are unscored, and the baseline itself is
    never compared.
    prompt_tokens: (pair, line, prompt_tokens) by the judge's own template; tokens.parquet will do.
    steps_per_s: most decode steps a second the hardware allows one sequence (bandwidth over bytes read a step).
    decode: token ids to text, to see that the ids an engine claims spell the text it sent.

    Each check names how rare a misbehaviour it would have found. The family of probabilistic checks accuses an honest
    arm with probability at most `alpha` (Holm); in practice far less, for every check also asks for a minimum effect.
    """
    try:
        rows = Arm.read(requests, workload)
        # The candidate is no measure of the baseline: it could buy itself an INVALID by being odd.
        other = None if baseline is None or arm == "baseline" else Arm.read(baseline, workload)
    except ValueError as problem:
        return OracleResult(oracle="protocol", arm=arm, version=VERSION, status="unscored", reason=f"{problem}.")
    if len(rows) == 0:
        reason = "The run holds no measured request."
        return OracleResult(oracle="protocol", arm=arm, version=VERSION, status="unscored", reason=reason)
    theirs = None if other is None else other.served
    evidence = [
        *_fates(rows, other),
        *_contracts(rows.served, theirs),
        *_counts(rows.served, decode),
        *conduct.checks(rows, other, prompt_tokens, steps_per_s),
    ]
    return OracleResult(
        oracle="protocol",
        arm=arm,
        version=VERSION,
        status="scored",
        findings=judge(evidence, alpha),
        metrics=_metrics(rows),
        notes=_notes(rows.served, theirs),
    )


def _fates(rows: Arm, other: Arm | None) -> list[Evidence]:
    """What became of every request asked; a client that lost a record (`missing`) is not the engine's doing."""
    status = rows.rows["status"].to_numpy()
    failed = ~np.isin(status, ("ok", "missing", "cancelled"))
    label = rows.labels
    theirs = None if other is None else ~np.isin(other.rows["status"].to_numpy(), ("ok", "missing", "cancelled"))
    empty = None if other is None else other.rows["status"].to_numpy() == "empty"
    return [
        contract("stream-errors", "an error event came inside a 200 stream", status == "stream_error", label),
        contract("truncated-streams", "the stream ended without finish_reason or [DONE]", status == "truncated", label),
        exceeds("empty-answers", "the answer was empty", status == "empty", label, empty, 0.05, 0.02),
        exceeds("failures", "the request failed", failed, label, theirs, 0.02, 0.01),
        _shed(rows, failed),
    ]


def _shed(rows: Arm, failed: Flags) -> Evidence:
    """Do failures gather in one kind of request? Hard, long or foreign ones may not be shed (hypergeometric)."""
    from scipy import stats

    name, what = "shedding", "requests of one kind fail"
    size = np.array([len(str(m)) for m in rows.rows["messages"]])
    third = np.digitize(size, np.quantile(size, [1 / 3, 2 / 3])) if len(size) else size
    groups: list[Flags] = [third == k for k in range(3)]
    groups += [(rows.rows["stratum"] == s).to_numpy() for s in sorted(set(rows.rows["stratum"].dropna()))]
    worst = min(
        ((stats.hypergeom.sf((failed & g).sum() - 1, len(g), failed.sum(), g.sum()), i) for i, g in enumerate(groups)),
        default=(1.0, -1),
    )
    if worst[1] < 0:
        return unscored(name, "the requests have no strata")
    group = groups[worst[1]]
    ladder = stats.hypergeom.sf(np.arange(group.sum() + 1) - 1, len(group), np.arange(group.sum() + 1), group.sum())
    kind = np.flatnonzero(group)
    enough = int((failed & group).sum()) >= 3
    ladder[:3] = np.inf
    return Evidence(
        name, what, int((failed & group).sum()), len(kind), float(min(1.0, worst[0] * len(groups))),
        f"{int((failed & ~group).sum())} of {int((~group).sum())} others failed", effect=enough,
        p_by_count=ladder * len(groups), examples=tuple(rows.labels[i] for i in kind if failed[i])[:3],
    )  # fmt: skip


def _contracts(served: Arm, other: Arm | None) -> list[Evidence]:
    label, finish, claimed = served.labels, served.finish, served.claimed
    limit = served.number("max_tokens")
    fixed = served.rows["fixed_length"].to_numpy(dtype=bool)
    over = (claimed > limit) | (np.isnan(claimed) & (served.shown > 1.1 * limit + 4))
    short = (finish == "length") & (claimed < limit) & ~_ran_out_of_context(served, other)
    unfixed = (finish != "length") | (claimed < limit)
    texts = served.text()
    stoppable = [name for name, stop in zip(label, _stops(served), strict=True) if stop]
    held, leaked = (None, None) if other is None else (_holding(other), _leaking(other))
    return [
        contract(
            "finish-reason", "finish_reason is missing or unknown", np.array([f not in FINISHED for f in finish]), label
        ),
        contract("max-tokens", "more tokens came than max_tokens allows", over, label),
        contract("length-finish", "finish_reason is length, max_tokens was not reached", short, label),
        contract("fixed-length", "a fixed-length request was not served in full", unfixed[fixed], _at(label, fixed)),
        # No contract: llama.cpp overlooks a stop string whose last token goes on with a part of a character.
        exceeds("stop-strings", "the answer holds a stop string", _holding(served), stoppable, held, 0.02, 0.01),
        exceeds(
            "stop-leaks", "the answer ends in a part of a stop string", _leaking(served), stoppable, leaked, 0.05, 0.05
        ),
        contract(
            "nan-text", "the text is what NaN logits give", np.array([*map(text_signs.is_nan_text, texts)]), label
        ),
        _logprobs(served),
    ]


def _ran_out_of_context(served: Arm, other: Arm | None) -> Flags:
    """Requests for which the baseline too ended by length below max_tokens: the context was full."""
    if other is None:
        return np.zeros(len(served), dtype=bool)
    mine, theirs = both(served, other)
    full = (theirs.finish == "length") & (theirs.claimed < theirs.number("max_tokens"))
    keys = {*map(tuple, mine.rows[["pair", "line"]][full].to_numpy())}
    return np.array([tuple(key) in keys for key in served.rows[["pair", "line"]].to_numpy()], dtype=bool)


def _stops(arm: Arm) -> list[list[str]]:
    return [list(s) if s is not None else [] for s in arm.rows["stop"]]


def _holding(arm: Arm) -> Flags:
    """Of the requests with stop strings: does the answer hold one?"""
    asked = zip(arm.text(), _stops(arm), strict=True)
    return np.array([any(s and s in text for s in stop) for text, stop in asked if stop], dtype=bool)


def _leaking(arm: Arm) -> Flags:
    """Of the requests with stop strings: does an answer that stopped end in the first half of one, or more of it?"""

    def leaks(text: str, finish: str, stop: Sequence[str]) -> bool:
        return finish == "stop" and any(
            text.endswith(s[:k]) for s in stop for k in range(max(2, (len(s) + 1) // 2), len(s))
        )

    asked = zip(arm.text(), arm.finish, _stops(arm), strict=True)
    return np.array([leaks(text, finish, stop) for text, finish, stop in asked if stop], dtype=bool)


def _logprobs(served: Arm) -> Evidence:
    """Claimed logprobs must be numbers at most 0, and not all 0: a series without entropy was made up."""
    lists = served.lists("token_logprobs")
    given = np.array([len(values) >= 16 for values in lists], dtype=bool)
    if not given.any():
        return unscored("logprobs", "the engine gave no logprobs")
    chosen = [values for values, ok in zip(lists, given, strict=True) if ok]
    lively = [loop < DEGENERATE for loop, ok in zip(served.loops, given, strict=True) if ok]
    broke = [
        bool(~np.isfinite(v).all() or (v > 1e-3).any() or (alive and (v == 0).all()))
        for v, alive in zip(chosen, lively, strict=True)
    ]
    what = "a claimed logprob is NaN, positive, or all of them are 0"
    return contract("logprobs", what, np.array(broke), _at(served.labels, given))


def _counts(served: Arm, decode: Decode | None) -> list[Evidence]:
    """Claimed tokens against the judge's own count of the text, on text that survives re-tokenising."""
    label, claimed, shown = served.labels, served.claimed, served.shown
    counted = ~np.isnan(claimed) & ~np.isnan(shown)
    witness = counted & (served.loops < DEGENERATE)
    tokens = claimed - (served.finish == "stop")
    more = tokens > shown + 3 + 0.02 * shown
    fewer = tokens < shown - 3 - 0.02 * shown
    # A byte-level token spells at least one byte; eight more allow for unseen special tokens.
    size = np.array([len(text.encode()) for text in served.spoken])
    impossible = counted & (tokens > size + 8)
    events = np.array([len(e) for e in served.lists("event_ms")])
    made = np.where(np.isnan(claimed), np.maximum(shown * 1.1 + 3, 0), claimed + 2)
    judged = ~np.isnan(claimed) | (served.loops < DEGENERATE)
    silent = np.isnan(served.number("usage_completion_tokens"))
    some = silent if 0 < silent.sum() < len(silent) else np.zeros(len(silent), dtype=bool)
    return [
        contract(
            "usage-bytes", "more tokens are claimed than the text has bytes", impossible[counted], _at(label, counted)
        ),
        rate(
            "usage-tokens",
            "claimed tokens are not those of the text",
            (more | fewer)[witness],
            _at(label, witness),
            0.15,
        ),
        rate("usage-everywhere", "usage is missing, though others have it", some, label, 0.02),
        rate("event-counts", "more events came than tokens", (events > made)[judged], _at(label, judged), 0.05),
        _ids_spell_text(served, decode),
    ]


def _ids_spell_text(served: Arm, decode: Decode | None) -> Evidence:
    ids = served.lists("token_ids")
    given = np.array([len(values) > 0 for values in ids], dtype=bool)
    if not given.any():
        return unscored("ids-text", "the engine gave no token ids")
    if decode is None:
        return unscored("ids-text", "no tokenizer was given to read the token ids")
    texts = decode([[int(i) for i in values] for values, ok in zip(ids, given, strict=True) if ok])
    spoken = _at(served.spoken, given)
    broke = [_bare(a) != _bare(b) for a, b in zip(texts, spoken, strict=True)]
    return rate("ids-text", "the token ids do not spell the text", np.array(broke), _at(served.labels, given), 0.05)


def _bare(text: str) -> str:
    return text.rstrip("\ufffd").strip()


def _at(values: Sequence[str], keep: Flags) -> list[str]:
    return [value for value, ok in zip(values, keep, strict=True) if ok]


def _metrics(rows: Arm) -> dict[str, Metric]:
    """Numbers that reports show beside the findings."""
    served = rows.served
    shown = served.shown[~np.isnan(served.shown)]
    metrics = {"failed_share": Metric(value=1 - len(served) / len(rows), unit="", n=len(rows))}
    if len(shown):
        metrics["answer_tokens_p50"] = Metric(value=float(np.median(shown)), unit="tokens", n=len(shown))
    return metrics


def _notes(served: Arm, other: Arm | None) -> tuple[str, ...]:
    if other is None:
        return ()
    mine, theirs = both(served, other)
    notes = []
    for column in ("ttft_ms", "tpot_ms"):
        ours = mine.number(column)
        ratio = (theirs.number(column) / np.where(ours > 0, ours, np.nan))[np.isfinite(ours)]
        typical = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else 0.0
        if typical > HUMAN_FLAG:
            notes.append(f"{column} is {typical:.1f} times better than the baseline's: a person must look.")
    return tuple(notes)

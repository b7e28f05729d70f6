"""Does an arm get worse under load, along an answer, over the run, or where it starts to loop?

Reads both arms' tokens.parquet, paired request by request, so what makes a prompt hard cancels. The value of a request
is its mean margin per token at temperature 0 and -ln p less the entropy elsewhere. Every test is a permutation test of
"the two arms are alike", and accuses only when the effect is also larger than the divergence that honest engines show.

| finding | statistic | permuted |
| --- | --- | --- |
| margin-by-load | slope of E - N on log2 of the concurrency | concurrencies among requests of a profile |
| margin-by-position | slope of E's margin less N's on log2 of the position | the two arms of a request |
| margin-over-time | largest mean of E - N after a change point over that before it | order of requests in a visit |
| inexcusable-flips | share of tokens beyond the tie width, E less N | the two arms of a request |
| loop-entry | answers that enter a loop by a token far from the reference's choice | Fisher's exact test |

Loops are judged at their entry because once a text repeats, the reference too predicts the repetition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from oracles.evidence import ALPHA, Evidence, judge, tested, unscored, versus
from oracles.result import Metric, OracleResult

VERSION = 1
PERMUTATIONS, BLOCK = 4000, 200
MIN_REQUESTS = 24
EDGES = (0, 64, 256, 1024, 4096, 16384, 1 << 40)
LOOPED = 0.3
NEAR = 16  # tokens around a loop's entry
KEY = ["pair", "line"]
Values = npt.NDArray[np.float64]
Role = Literal["baseline", "candidate"]


def check_drift(
    tokens: pa.Table, other: pa.Table | None, arm: Role, *, tie_width: float | None, floor_margin: float = 0.0
) -> OracleResult:
    """Judge one arm's tokens.parquet beside the other arm's.

    Args:
        tokens: of the arm that is judged.
        other: of the other arm; without it there are only the numbers by bucket.
        arm: whose `tokens` are.
        tie_width: nats; from the floor. None: flips are not judged.
        floor_margin: the floor's mean margin; an effect below it, or below the other arm's mean, is a trifle.
    """
    mine = _frame(tokens)
    if not len(mine):
        reason = "No answer was scored."
        return OracleResult(oracle="drift", arm=arm, version=VERSION, status="unscored", reason=reason)
    both = _paired(mine, _frame(other)) if other is not None else mine.iloc[:0]
    trifle = max(floor_margin, float(both["value_other"].mean())) if len(both) else 0.0
    evidence = [
        _by_load(both, trifle),
        _by_position(both, trifle),
        _over_time(both, trifle),
        _flips(both, tie_width),
        _loop_entry(mine, _frame(other) if other is not None else None, tie_width),
    ]
    findings = judge(evidence, ALPHA)
    return OracleResult(
        oracle="drift", arm=arm, version=VERSION, status="scored", metrics=bucket_metrics(mine), findings=findings
    )


def bucket_metrics(rows: pd.DataFrame) -> dict[str, Metric]:
    """Mean margin per token by cell, stratum, position in the answer and quarter of the visit (greedy answers)."""
    greedy = rows[rows["greedy"]]
    metrics: dict[str, Metric] = {}
    quarter = (greedy["order"] * 4).astype(int).clip(upper=3) + 1
    for name, group in (("cell", greedy["cell"]), ("stratum", greedy["stratum"]), ("quarter", quarter)):
        for key, part in greedy.groupby(group):
            tokens = int(part["tokens"].sum())
            metrics[f"margin@{name}:{key}"] = Metric(
                value=float(part["margin_sum"].sum() / tokens), unit="nats/token", n=tokens
            )
    sums, counts = (column.sum(axis=0) for column in _positions(greedy))
    for low, high, total, count in zip(EDGES[:-1], EDGES[1:], sums, counts, strict=True):
        if count:
            label = f"{low}+" if high == EDGES[-1] else f"{low}-{high}"
            metrics[f"margin@position:{label}"] = Metric(value=float(total / count), unit="nats/token", n=int(count))
    return metrics


def _frame(table: pa.Table) -> pd.DataFrame:
    rows: pd.DataFrame = table.to_pandas().sort_values(KEY).reset_index(drop=True)
    greedy = rows["margin_sum"] / rows["tokens"]
    sampled = (rows["nll_sum"] - rows["entropy_sum"]) / rows["tokens"]
    rows["value"] = np.where(rows["greedy"], greedy, sampled)
    rows["order"] = rows.groupby("pair").cumcount() / rows.groupby("pair")["line"].transform("count")
    return rows


def _paired(mine: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    both: pd.DataFrame = mine.merge(theirs, on=KEY, suffixes=("", "_other"), validate="one_to_one")
    both["more"] = both["value"] - both["value_other"]
    return both


def _labels(rows: pd.DataFrame) -> list[str]:
    return [f"pair {p} line {line}" for p, line in zip(rows["pair"], rows["line"], strict=True)]


def _p(seen: float, draws: Values) -> float:
    return float((1 + np.sum(draws >= seen)) / (1 + len(draws)))


def _swaps(requests: int) -> Iterator[Values]:
    """Blocks of [draws, requests]: 1 where the two arms of a request change places."""
    rng = np.random.default_rng(0)
    for _ in range(0, PERMUTATIONS, BLOCK):
        yield (rng.random((BLOCK, requests)) < 0.5).astype(float)


def _shuffled(groups: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A permutation of indices that stays inside groups (equal values of `groups`, which is sorted)."""
    return np.lexsort((rng.random(len(groups)), groups))


def _by_load(both: pd.DataFrame, trifle: float) -> Evidence:
    name, what = "margin-by-load", "the answer is further from the reference under load"
    loads = both["cell"].str.extract(r"/c(\d+)$", expand=False).astype(float)
    rows = both.assign(load=np.log2(loads), profile=both["cell"].str.replace(r"/[^/]*$", "", regex=True))
    rows = rows.dropna(subset=["load"]).sort_values("profile", kind="stable")
    spread = rows.groupby("profile")["load"].nunique()
    rows = rows[rows["profile"].isin(spread[spread > 1].index)]
    if len(rows) < MIN_REQUESTS:
        return unscored(name, "no profile was run at two concurrencies with requests enough in both arms")
    codes = rows["profile"].astype("category").cat.codes.to_numpy()
    load = (rows["load"] - rows.groupby("profile")["load"].transform("mean")).to_numpy(float)
    more = (rows["more"] - rows.groupby("profile")["more"].transform("mean")).to_numpy(float)
    slope = float(load @ more / (load @ load))
    rng = np.random.default_rng(0)
    draws = np.array([load @ more[_shuffled(codes, rng)] for _ in range(PERMUTATIONS)]) / (load @ load)
    change = slope * float(np.ptp(rows["load"]))
    against = f"from the lowest concurrency to the highest the margin grows by {change:.3g} nats over the other arm's"
    broke = (rows["more"] > trifle).to_numpy() & (load > 0)
    return tested(name, what, broke, _labels(rows), _p(slope, draws), change > trifle, against, trifle)


def _positions(rows: pd.DataFrame) -> tuple[Values, Values]:
    """Margins summed, and tokens counted, by request and position bucket: two of [requests, buckets]."""
    sums, counts = (np.zeros((len(rows), len(EDGES) - 1)) for _ in range(2))
    for i, margins in enumerate(rows["margins"]):
        values = np.asarray(margins, dtype=float)
        bucket = np.searchsorted(EDGES, np.arange(len(values)), side="right") - 1
        sums[i] = np.bincount(bucket, values, minlength=len(EDGES) - 1)
        counts[i] = np.bincount(bucket, minlength=len(EDGES) - 1)
    return sums, counts


def _by_position(both: pd.DataFrame, trifle: float) -> Evidence:
    name, what = "margin-by-position", "late tokens are further from the reference than early ones"
    rows = both[both["greedy"]]
    if len(rows) < MIN_REQUESTS:
        return unscored(name, f"fewer than {MIN_REQUESTS} requests at temperature 0 were answered by both arms")
    theirs = rows[["margins_other"]].rename(columns={"margins_other": "margins"})
    ours, others = np.stack(_positions(rows)), np.stack(_positions(theirs))
    used = (ours[1].sum(axis=0) >= MIN_REQUESTS * 8) & (others[1].sum(axis=0) >= MIN_REQUESTS * 8)
    if used.sum() < 2:
        return unscored(name, f"no answers reach past token {EDGES[1]} in both arms")
    ours, others = ours[..., used], others[..., used]
    step = np.flatnonzero(used) - np.flatnonzero(used).mean()

    def slope(a: Values, b: Values) -> Values:
        """Slopes of a's bucket means less b's; a and b are [2 (sum, count), ..., buckets]."""
        more = a[0] / np.maximum(a[1], 1) - b[0] / np.maximum(b[1], 1)
        steepness: Values = more @ step / (step @ step)
        return steepness

    seen = float(slope(ours.sum(axis=1), others.sum(axis=1)))
    total = ours.sum(axis=1)[:, None], others.sum(axis=1)[:, None]
    moved = (np.einsum("pr,srb->spb", swap, others - ours) for swap in _swaps(len(rows)))
    draws = np.concatenate([slope(total[0] + m, total[1] - m) for m in moved])
    change = seen * float(np.ptp(step))
    late = ours[0][:, -1] / np.maximum(ours[1][:, -1], 1)
    against = f"from the first tokens to the last the margin grows by {change:.3g} nats over the other arm's"
    return tested(name, what, late > trifle, _labels(rows), _p(seen, draws), change > trifle, against, trifle)


def _over_time(both: pd.DataFrame, trifle: float) -> Evidence:
    """Largest rise at one change point of the visits' common clock, scaled by its standard error."""
    name, what = "margin-over-time", "the answer is further from the reference than those before a change point"
    if len(both) < MIN_REQUESTS:
        return unscored(name, f"fewer than {MIN_REQUESTS} requests were answered by both arms")
    # Cells are driven one after another: what a cell adds is not time's doing.
    rows = both.sort_values(["pair", "line"])
    more = (rows["more"] - rows.groupby("cell")["more"].transform("mean")).to_numpy(float)
    clock = np.argsort(np.argsort(rows["order"].to_numpy(float), kind="stable"), kind="stable")
    codes = rows["cell"].astype("category").cat.codes.to_numpy()
    ordered, cells = more[np.argsort(clock)], codes[np.argsort(clock)]
    n = len(ordered)
    cut = np.arange(n // 8, n - n // 8)
    scale = np.sqrt(cut * (n - cut) / n)

    def rises(values: Values) -> Values:
        before = np.cumsum(values)[cut - 1]
        rise: Values = (values.sum() - before) / (n - cut) - before / cut
        return rise

    rise = rises(ordered)
    best = int(np.argmax(rise * scale))
    rng = np.random.default_rng(0)
    by_cell = np.argsort(cells, kind="stable")
    draws = np.empty(PERMUTATIONS)
    shuffled = ordered.copy()
    for i in range(PERMUTATIONS):
        shuffled[by_cell] = ordered[_shuffled(cells, rng)]
        draws[i] = (rises(shuffled) * scale).max()
    change, at = float(rise[best]), cut[best]
    against = (
        f"after {at / n:.0%} of the visit the margin is {change:.3g} nats higher than before, over the other arm's"
    )
    late = np.flatnonzero(clock >= at)
    broke = np.zeros(n, dtype=bool)
    broke[late] = rows["more"].to_numpy(float)[late] > trifle
    p = _p(float((rise * scale)[best]), draws)
    return tested(name, what, broke, _labels(rows), p, change > trifle, against, trifle)


def _flips(both: pd.DataFrame, tie_width: float | None) -> Evidence:
    name, what = "inexcusable-flips", "a token was chosen that no rounding explains"
    if tie_width is None:
        return unscored(name, "the tie width was not measured")
    rows = both[both["greedy"]]
    if len(rows) < MIN_REQUESTS:
        return unscored(name, f"fewer than {MIN_REQUESTS} requests at temperature 0 were answered by both arms")
    ours, theirs = _beyond(rows["margins"], tie_width), _beyond(rows["margins_other"], tie_width)
    more = ours / rows["tokens"].to_numpy(float) - theirs / rows["tokens_other"].to_numpy(float)
    draws = np.concatenate([(1 - 2 * swap) @ more / len(rows) for swap in _swaps(len(rows))])
    rate, other = ours.sum() / rows["tokens"].sum(), theirs.sum() / rows["tokens_other"].sum()
    p = _p(float(more.mean()), draws)
    against = f"{rate:.2%} of tokens, {other:.2%} in the other arm (tie width {tie_width:.3g} nats)"
    return tested(name, what, ours > 0, _labels(rows), p, rate > max(2 * other, 0.002), against, max(2 * other, 0.002))


def _beyond(margins: pd.Series[Any], tie_width: float) -> Values:
    """Tokens of each answer whose margin exceeds the tie width."""
    return np.array([(np.asarray(values) > tie_width).sum() for values in margins], dtype=float)


def _loop_entry(mine: pd.DataFrame, theirs: pd.DataFrame | None, tie_width: float | None) -> Evidence:
    name, what = "loop-entry", "the answer loops, and enters the loop by a token far from the reference's choice"
    if tie_width is None:
        return unscored(name, "the tie width was not measured")

    def forced(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        entries = rows["loop_entry"].fillna(0).astype(int)
        around = [
            float(np.max(margins[max(0, entry - NEAR) : entry + NEAR]))
            for entry, margins in zip(entries, rows["margins"], strict=True)
        ]
        return (rows["loop_share"].to_numpy(float) >= LOOPED) & (np.array(around) > tie_width)

    rows = mine[mine["greedy"]]
    other = None if theirs is None else forced(theirs[theirs["greedy"]])
    return versus(name, what, forced(rows), _labels(rows), other, 0.05)

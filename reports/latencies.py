"""Per-request latencies of one cell: distributions, and the speed-up quantile by quantile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reports import wording
from reports.axes import SMALL, figure, look, name_axes, panel, scale, set_ticks
from reports.definitions import label
from reports.run_data import Run
from reports.svg import Chart, Drawing, Palette, slug

Values = npt.NDArray[np.float64]
QUANTILES = np.concatenate([[0.05], np.arange(0.1, 0.95, 0.1), [0.95, 0.99]])
_POINTS = 120  # of a distribution's line: enough for its shape, small enough for the page


@dataclass(frozen=True)
class Asked:
    """One latency of the asked requests of a cell, by pair; a failed request is infinitely late."""

    by_pair: dict[int, Values]

    @property
    def pooled(self) -> Values:
        """All pairs together, sorted."""
        return np.sort(np.concatenate(list(self.by_pair.values()))) if self.by_pair else np.empty(0)


def read_latencies(run: Run, cells: Iterable[str]) -> dict[tuple[str, str, str], Asked]:
    """(arm, cell, metric) -> latencies, for TTFT and TPOT."""
    wanted = set(cells)
    found: dict[tuple[str, str, str], dict[int, Values]] = {}
    for arm in run.arms:
        for pair, table in run.requests(arm, ["cell", "kind", "status", "ttft_ms", "tpot_ms"]):
            for cell in wanted:
                rows = _rows(table, cell)
                for metric in ("ttft", "tpot"):
                    if rows is not None and len(values := _values(rows, metric)):
                        found.setdefault((arm, cell, metric), {})[pair] = values
    return {key: Asked(by_pair) for key, by_pair in found.items()}


def _rows(table: pa.Table, cell: str) -> pa.Table | None:
    if not {"cell", "kind", "status", "ttft_ms", "tpot_ms"} <= set(table.column_names):
        return None
    return table.filter(pc.and_(pc.equal(table["cell"], cell), pc.not_equal(table["kind"], "warmup")))


def _values(rows: pa.Table, metric: str) -> Values:
    values = np.asarray(rows[f"{metric}_ms"].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    failed = ~np.asarray(pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False), dtype=bool)
    values = np.where(failed, np.inf, values)
    return values[~np.isnan(values)]  # an answer of one event has no TPOT


def distribution(cell: str, metric: str, asked: dict[tuple[str, str, str], Asked], arms: Iterable[str]) -> Chart | None:
    """Distribution of one latency in one cell, and below it the speed-up at each quantile."""
    found = {arm: asked[arm, cell, metric] for arm in arms if (arm, cell, metric) in asked}
    if not any(np.isfinite(one.pooled).any() for one in found.values()):
        return None
    judged = {"baseline", "candidate"} <= found.keys()
    requests = min(len(one.pooled) for one in found.values())
    medians = "; ".join(f"{arm} median {wording.number(_quantile(one.pooled, 0.5))} ms" for arm, one in found.items())
    return Chart(
        name=f"distribution-{slug(cell)}-{metric}",
        title=f"{cell}: {label(metric)}",
        note=f"Share of {requests:,} requests within x ms{'; below, speed-up by quantile' if judged else ''}.",
        alt=f"{label(metric)} in {cell}: {medians}.",
        draw=lambda p: _draw(p, found),
        define="percentile",
    )


def _quantile(values: Values, q: float) -> float | None:
    """Quantile with failures at infinity; None when it falls among them."""
    value = float(np.quantile(values, q, method="higher")) if len(values) else np.inf
    return value if np.isfinite(value) else None


def quantile_ratios(baseline: Asked, candidate: Asked) -> list[tuple[float, float, float, float]]:
    """(quantile, median, lowest, highest speed-up over pairs) where every pair has a number and enough requests."""
    pairs = sorted(baseline.by_pair.keys() & candidate.by_pair.keys())
    rows = []
    for q in QUANTILES:
        ratios = []
        for pair in pairs:
            values = [_quantile(arm.by_pair[pair], float(q)) for arm in (baseline, candidate)]
            size = min(len(arm.by_pair[pair]) for arm in (baseline, candidate))
            if values[0] and values[1] and size * min(q, 1 - q) >= 1:
                ratios.append(values[0] / values[1])
        if pairs and len(ratios) == len(pairs):
            rows.append((float(q), float(np.median(ratios)), min(ratios), max(ratios)))
    return rows


def steps(values: Values) -> tuple[Values, Values]:
    """(x, share of all values at most x) of sorted values, at most `_POINTS` of them; those at infinity are not drawn.

    The first value stands twice, so that the line rises from the axis.
    """
    ranks = np.unique(np.ceil(np.linspace(1, len(values), min(len(values), _POINTS))).astype(int))
    xs, shares = values[ranks - 1], ranks / len(values)
    xs, shares = xs[np.isfinite(xs)], shares[np.isfinite(xs)]
    return np.concatenate([xs[:1], xs]), np.concatenate([np.zeros(len(xs[:1])), shares])


def _draw(p: Palette, found: dict[str, Asked]) -> Drawing:
    judged = {"baseline", "candidate"} <= found.keys()
    drawing = Drawing(figure((SMALL[0], 322 if judged else 210)))
    upper = panel(drawing.figure, p, top=12, bottom=152 if judged else 40, right=14)
    finite = [one.pooled[np.isfinite(one.pooled)] for one in found.values()]
    scale(upper.xaxis, "log", [v for values in finite for v in values[[0, -1]] if len(values)])
    upper.set_ylim(0, 1.02)
    set_ticks(upper.yaxis, [0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    for place, (arm, one) in enumerate(found.items()):
        xs, shares = steps(one.pooled)
        colour, dash = look(p, arm, place)
        upper.plot(xs, shares, color=colour, linewidth=1.9, linestyle=dash, drawstyle="steps-post", label=arm)
        for q in (0.25, 0.5, 0.75, 0.95):
            at = _quantile(one.pooled, q)
            drawing.tip(upper, at, q, f"{arm} p{100 * q:g}: {wording.number(at)} ms")
    upper.set_xlabel("ms (log)", color=p.quiet, fontsize=10.5)
    if judged:
        _ratio_axes(drawing, p, quantile_ratios(found["baseline"], found["candidate"]))
    return drawing


def _ratio_axes(drawing: Drawing, p: Palette, rows: list[tuple[float, float, float, float]]) -> None:
    if not rows:
        return
    lower = panel(drawing.figure, p, top=212, bottom=36, right=14)
    qs = [row[0] for row in rows]
    scale(lower.yaxis, "log", [1.0, *(v for row in rows for v in row[1:])], 0.1, 4)
    lower.set_xlim(0, 1)
    set_ticks(lower.xaxis, [0.05, 0.5, 0.95], ["p5", "p50", "p95"])
    lower.axhline(1.0, color=p.quiet, linewidth=1)
    lower.fill_between(qs, [row[2] for row in rows], [row[3] for row in rows], color=p.cand, alpha=0.18, linewidth=0)
    lower.plot(qs, [row[1] for row in rows], "o-", color=p.cand, linewidth=1.9, markersize=3.5)
    for q, middle, low, high in rows:
        drawing.tip(lower, q, middle, f"p{100 * q:g}: {wording.ratio(middle)} ({low:.2f} to {high:.2f} over pairs)")
    name_axes(lower, p, "quantile", "speed-up, ×")

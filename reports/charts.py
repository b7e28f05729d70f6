"""Charts of speed: how the arms move with load, and how their ratio moves from pair to pair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports import wording
from reports.axes import SMALL, figure, look, name_axes, panel, scale, set_ticks, spread_out, tick_text
from reports.definitions import label
from reports.pair_series import PairSeries, Spread, unit_of
from reports.run_data import Cell, Run
from reports.svg import Chart, Drawing, Palette, slug


@dataclass(frozen=True)
class _Point:
    cell: Cell
    x: Spread
    y: Spread


def pareto(run: Run, series: PairSeries, profile: str, arms: Sequence[str]) -> Chart | None:
    """Throughput against interactivity for one profile, a point a load."""
    metric = "throughput_per_gpu" if all(series.gpus(arm) for arm in arms) else "output_throughput"
    points = {arm: list(_points(run, series, profile, arm, metric)) for arm in arms}
    if not any(points.values()):
        return None
    limit = _slowest_allowed(run, profile)
    note = "Up and right is better."
    if limit:
        note += f" Shaded: TPOT within {wording.number(1000 / limit)} ms."
    spots = "; ".join(
        f"{arm} {wording.number(found[-1].y.median)} {unit_of(metric)} at {found[-1].cell.load}"
        for arm, found in points.items()
        if found
    )
    return Chart(
        f"pareto-{slug(profile)}", f"{profile}: throughput against interactivity", note,
        f"{label(metric)} against interactivity in {profile}: {spots}.",
        lambda p: _pareto(p, points, metric, limit), define="output_throughput_per_user",
    )  # fmt: skip


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _points(run: Run, series: PairSeries, profile: str, arm: str, metric: str) -> Iterator[_Point]:
    for cell in run.cells:
        if cell.profile == profile and cell.load:
            x = series.spread(arm, cell.name, "output_throughput_per_user")
            y = series.spread(arm, cell.name, metric)
            if x and y:
                yield _Point(cell, x, y)


def _slowest_allowed(run: Run, profile: str) -> float | None:
    """Interactivity that the strictest TPOT limit of this profile asks for, tokens/s/user."""
    limit = latency_limit(run, profile, "tpot")
    return 1000 / limit if limit else None


def latency_limit(run: Run, profile: str, metric: str) -> float | None:
    """The strictest limit on a latency in a profile, ms: its own service level (pair.json) or a criterion's."""
    slos = [limits.get(f"{metric}_ms") for cell, limits in run.slos.items() if cell.rpartition("/")[0] == profile]
    here = [check for check in run.checks if (check.cell or "").rpartition("/")[0] == profile]
    limits = [check.required for check in here if check.metric.startswith(metric) and check.unit == "ms"]
    return min((limit for limit in (*slos, *limits) if limit), default=None)


def _pareto(p: Palette, points: dict[str, list[_Point]], metric: str, limit: float | None) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=26, right=16)
    every = [point for found in points.values() for point in found]
    spread_out(axes.xaxis, [*(v for q in every for v in (q.x.low, q.x.high)), *([limit] if limit else [])], 0.08)
    spread_out(axes.yaxis, [v for q in every for v in (q.y.low, q.y.high)], 0.1, 4)
    if limit:
        axes.axvspan(limit, axes.get_xlim()[1], color=p.PASS, alpha=0.08, linewidth=0)
    for place, (arm, found) in enumerate(points.items()):
        colour, dash = look(p, arm, place)
        xs, ys = [q.x.median for q in found], [q.y.median for q in found]
        axes.plot(
            xs, ys, "o", color=colour, linewidth=1.8, linestyle=dash, markersize=5.5, markeredgewidth=0, label=arm
        )
        axes.hlines(ys, [q.x.low for q in found], [q.x.high for q in found], color=colour, linewidth=1, alpha=0.7)
        axes.vlines(xs, [q.y.low for q in found], [q.y.high for q in found], color=colour, linewidth=1, alpha=0.7)
        for q in found:
            seen = f"{wording.number(q.y.median)} {unit_of(metric)} at {wording.number(q.x.median)} tokens/s/user"
            drawing.tip(axes, q.x.median, q.y.median, f"{arm} {q.cell.load}: {seen}")
            at = (q.x.median, q.y.median)
            axes.annotate(q.cell.load, at, (5, 4), textcoords="offset points", color=p.quiet, fontsize=10)
    name_axes(axes, p, "interactivity, tokens/s/user", f"{_lower(label(metric))}, {unit_of(metric)}")
    return drawing


def latency_by_load(run: Run, series: PairSeries, profile: str, metric: str, arms: Sequence[str]) -> Chart | None:
    """p50 and p95 of one latency against load in one profile, with bands from pairs."""
    cells = [cell for cell in run.cells if cell.profile == profile and cell.amount > 0]
    lines = {
        (arm, stat): [(c.amount, spread) for c in cells if (spread := series.spread(arm, c.name, f"{metric}.{stat}"))]
        for arm in arms
        for stat in ("p50", "p95")
    }
    lines = {key: line for key, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    ends = [
        f"{arm} {stat} {wording.number(line[-1][1].median)} ms at the highest load"
        for (arm, stat), line in lines.items()
    ]
    limit = latency_limit(run, profile, metric)
    tails = any(stat == "p95" for _, stat in lines)
    note = ("p50 strong, p95 thin." if tails else "p50; too few requests for a p95.") + (
        f" Limit: {wording.number(limit)} ms." if limit else ""
    )
    return Chart(
        f"latency-{slug(profile)}-{metric}", f"{profile}: {label(metric)}", note,
        f"{label(metric)} against load in {profile}; at the highest load {'; '.join(ends)}.",
        lambda p: _latency(p, lines, limit, closed=cells[0].closed_loop), define="band",
    )  # fmt: skip


def _latency(
    p: Palette, lines: dict[tuple[str, str], list[tuple[float, Spread]]], limit: float | None, *, closed: bool
) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=26, right=14)
    loads = sorted({load for line in lines.values() for load, _ in line})
    scale(axes.xaxis, "log", loads)
    set_ticks(axes.xaxis, loads[:: math.ceil(len(loads) / 8)])
    scale(axes.yaxis, "log", [v for line in lines.values() for _, s in line for v in (s.low, s.high)], 0.08, 4)
    low, high = axes.get_ylim()
    if limit and low < limit < high:
        axes.axhspan(low, limit, color=p.PASS, alpha=0.08, linewidth=0)
        axes.axhline(limit, color=p.PASS, linewidth=1.2, linestyle=(0, (4, 2)))
    arms = list(dict.fromkeys(arm for arm, _ in lines))
    for (arm, stat), line in lines.items():
        colour, dash = look(p, arm, arms.index(arm))
        xs = [load for load, _ in line]
        axes.fill_between(
            xs, [s.low for _, s in line], [s.high for _, s in line], color=colour, alpha=0.16, linewidth=0
        )
        strong = stat == "p50"
        axes.plot(
            xs, [s.median for _, s in line], "o", color=colour, linewidth=2 if strong else 1, linestyle=dash,
            markersize=4.5 if strong else 3, markeredgewidth=0, label=f"{arm} {stat}",
        )  # fmt: skip
        for x, s in line:
            seen = f"{wording.number(s.median)} ms ({wording.number(s.low)} to {wording.number(s.high)})"
            drawing.tip(axes, x, s.median, f"{arm} {stat} at {tick_text(x)}: {seen}")
    name_axes(axes, p, "concurrency" if closed else "requests per second", "ms (both axes log)")
    return drawing


def pairs_in_order(
    run: Run, series: PairSeries, metric: str, bar: float | None, highlighted: str | None
) -> Chart | None:
    """The ratio of every pair in the order of the run, a line a cell: drift, thermal steps and outliers show here."""
    lines = {cell.name: found for cell in run.cells if len(found := series.ratios(cell.name, metric)) > 1}
    if not lines:
        return None
    bold = highlighted if highlighted in lines else min(lines, key=lambda name: min(r for _, r in lines[name]))
    return Chart(
        f"pairs-{slug(metric)}", label(metric),
        f"Strong: {bold}. Filled: candidate first.",
        f"{label(metric)} speed-up pair by pair in {wording.count(len(lines), 'cell')}.",
        lambda p: _pairs(p, series, lines, bold, bar), define="pair",
    )  # fmt: skip


def _pairs(
    p: Palette, series: PairSeries, lines: dict[str, list[tuple[int, float]]], bold: str, bar: float | None
) -> Drawing:
    from matplotlib.collections import LineCollection

    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=14, right=14)
    ratios = [r for line in lines.values() for _, r in line]
    scale(axes.yaxis, "log", [*ratios, 1.0, *([bar] if bar else [])], 0.08)
    pairs = sorted({pair for line in lines.values() for pair, _ in line})
    axes.set_xlim(pairs[0] - 0.4, pairs[-1] + 0.4)
    set_ticks(axes.xaxis, pairs[:: math.ceil(len(pairs) / 12)])
    axes.axhline(1.0, color=p.quiet, linewidth=1)
    if bar:
        axes.axhline(bar, color=p.ink, linewidth=1.3, linestyle=(0, (4, 2)))
    thin = [line for name, line in lines.items() if name != bold]
    axes.add_collection(LineCollection(thin, colors=p.floor, linewidths=0.8, alpha=0.6))
    strong = lines[bold]
    axes.plot(*zip(*strong, strict=True), color=p.cand, linewidth=1.8)
    for first in (True, False, None):
        dots = [dot for dot in strong if series.candidate_first(dot[0]) is first]
        for pair, ratio in dots:
            order = "" if first is None else f", {'candidate' if first else 'baseline'} first"
            drawing.tip(axes, pair, ratio, f"{bold}, pair {pair}: {wording.ratio(ratio)}{order}")
        if dots:
            fill = p.cand if first else p.panel
            axes.plot(*zip(*dots, strict=True), "o", color=p.cand, markersize=5.5, markerfacecolor=fill)
    name_axes(axes, p, "pair, in run order")
    return drawing

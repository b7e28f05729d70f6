"""Charts over several runs: every frontier together, and a metric's history."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from reports import wording
from reports.axes import SMALL, figure, look, name_axes, panel, scale, set_ticks, spread_out
from reports.change_points import change_points
from reports.definitions import label
from reports.pair_series import PairSeries, Spread
from reports.run_data import Run
from reports.svg import Chart, Drawing, Palette, slug
from reports.verdict_data import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 6  # runs drawn in colours of their own: more could not be told apart
_MARKERS = "osD^vP"


@dataclass(frozen=True)
class _Line:
    name: str
    baseline: bool
    points: tuple[tuple[str, Spread, Spread], ...]


def pareto_of_all(runs: Sequence[tuple[str, Run, PairSeries]], profile: str, *, alone: bool = False) -> list[Chart]:
    """Every run's frontier in one profile; runs beyond `MAX_LINES` are left to the tables.

    A profile that is `alone` gets the whole width of a wide page and its lines' names beside them.
    """
    lines = [line for run in runs[:MAX_LINES] for arm in run[1].arms if (line := _line(run, arm, profile))]
    if not lines:
        return []
    best = max(lines, key=lambda line: max(y.median for _, _, y in line.points))
    alt = f"Throughput against interactivity in {profile} of {len(runs)} runs; highest throughput: {best.name}."
    names, define = [name for name, _, _ in runs], "output_throughput_per_user"
    small = Chart(f"all-{slug(profile)}", profile, "", alt, lambda p: _pareto(p, lines, names), define)
    if not alone:
        return [small]
    whole = Chart(f"{small.name}-wide", profile, "", alt, lambda p: _wide_pareto(p, lines, names), define, wide=True)
    return [replace(whole, only="wide"), replace(small, only="phone")]


def _line(run: tuple[str, Run, PairSeries], arm: str, profile: str) -> _Line | None:
    name, data, series = run
    points = []
    for cell in data.cells:
        x = series.spread(arm, cell.name, "output_throughput_per_user") if cell.profile == profile else None
        y = series.spread(arm, cell.name, "output_throughput")
        if x and y:
            points.append((cell.load, x, y))
    return _Line(name, arm == "baseline", tuple(points)) if points else None


def _wide_pareto(p: Palette, lines: Sequence[_Line], names: Sequence[str]) -> Drawing:
    drawing = Drawing(figure((1160, 340)))
    axes = panel(drawing.figure, p, top=26, right=220)
    _frontiers(drawing, axes, p, lines, names)
    ends = [(max(line.points, key=lambda point: point[1].median), line) for line in lines if not line.baseline]
    spots = [axes.transData.transform((x.median, y.median)) for (_, x, y), _ in ends]
    right, low = axes.bbox.x1, axes.bbox.y0
    heights = apart([float(y) for _, y in spots], 15)
    to_axes = axes.transData.inverted()
    for (_, line), (x, y), height in zip(ends, spots, heights, strict=True):
        colour, _ = look(p, line.name, names.index(line.name))
        bend = to_axes.transform([(x, y), (right + 6, max(height, low))])
        axes.plot(bend[:, 0], bend[:, 1], color=colour, linewidth=0.6, alpha=0.6, clip_on=False)
        at = to_axes.transform((right + 10, max(height, low)))
        axes.text(at[0], at[1], line.name[:34], color=colour, fontsize=11, va="center")
    return drawing


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights moved as little as keeps them `gap` apart, their order kept."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    moved, floor = list(heights), -math.inf
    for place in order:
        moved[place] = floor = max(heights[place], floor + gap)
    return moved


def _pareto(p: Palette, lines: Sequence[_Line], names: Sequence[str]) -> Drawing:
    drawing = Drawing(figure((SMALL[0], 250)))
    axes = panel(drawing.figure, p, top=26, right=16)
    _frontiers(drawing, axes, p, lines, names)
    return drawing


def _frontiers(drawing: Drawing, axes: Axes, p: Palette, lines: Sequence[_Line], names: Sequence[str]) -> None:
    every = [point for line in lines for point in line.points]
    spread_out(axes.xaxis, [x.median for _, x, _ in every], 0.08)
    spread_out(axes.yaxis, [y.median for _, _, y in every], 0.1, 4)
    for line in lines:
        place = names.index(line.name)
        colour, own = look(p, "baseline" if line.baseline else line.name, place)
        xs, ys = [x.median for _, x, _ in line.points], [y.median for _, _, y in line.points]
        strong = not line.baseline
        axes.plot(
            xs, ys, marker=_MARKERS[place], color=colour, linestyle=own, linewidth=1.8 if strong else 1,
            alpha=1 if strong else 0.6, markersize=4.5, markeredgewidth=0,
        )  # fmt: skip
        for load, x, y in line.points:
            arm = ", baseline" if line.baseline else ""
            told = f"{wording.number(y.median)} tokens/s at {wording.number(x.median)} tokens/s/user"
            drawing.tip(axes, x.median, y.median, f"{line.name}{arm} {load}: {told}")
    name_axes(axes, p, "interactivity, tokens/s/user", "output throughput, tokens/s")


def history(runs: Sequence[tuple[str, float, Run]], metric: str) -> Chart | None:
    """One metric's speed-up over time, in the cell that is closest to its bar in the newest run that has it."""
    judged = [(name, when, check) for name, when, run in runs for check in _checks(run, metric)]
    if not judged:
        return None
    newest = judged[-1][1]
    closest = min((c for _, when, c in judged if when == newest), key=lambda c: (c.observed or 0) / (c.required or 1))
    found = [(name, when, check) for name, when, check in judged if check.cell == closest.cell]
    if len(found) < 2:
        return None
    shifts = change_points(np.log([check.observed or 1.0 for _, _, check in found]))
    told = f" Shift at {', '.join(found[i][0] for i in shifts)}." if shifts else ""
    last = wording.ratio(closest.observed)
    return Chart(
        f"history-{slug(metric)}", label(metric), f"{closest.cell}; bounds as lines.{told}",
        f"{label(metric)} speed-up at {closest.cell} in {len(found)} runs, last {last}.{told}",
        lambda p: _history(p, found, shifts), "interval",
    )  # fmt: skip


def _checks(run: Run, metric: str) -> list[Check]:
    return [
        c
        for c in run.of_family("speed")
        if c.metric == metric and c.unit == "x" and c.cell and c.observed and c.observed > 0
    ]


def _history(p: Palette, found: Sequence[tuple[str, float, Check]], shifts: Sequence[int]) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=14, right=14)
    checks = [check for _, _, check in found]
    bars = {check.required for check in checks if check.required}
    ends = [v for c in checks for v in (c.observed, c.ci_low, c.ci_high) if v and v > 0]
    scale(axes.yaxis, "log", [*ends, 1.0, *bars], 0.08)
    axes.set_xlim(-0.5, len(found) - 0.5)
    step = math.ceil(len(found) / 5)
    one_day = len({time.gmtime(when)[:3] for _, when, _ in found}) == 1
    days = [time.strftime("%H:%M" if one_day else "%m-%d", time.gmtime(when)) for _, when, _ in found]
    set_ticks(axes.xaxis, range(0, len(found), step), days[::step])
    axes.axhline(1.0, color=p.quiet, linewidth=1)
    for bar in bars:
        axes.axhline(bar, color=p.ink, linewidth=1.3, linestyle=(0, (4, 2)))
    for at in shifts:
        axes.axvline(at - 0.5, color=p.INCONCLUSIVE, linewidth=1.4)
    seen = [check.observed or 1.0 for check in checks]
    axes.plot(range(len(seen)), seen, color=p.line, linewidth=1)
    low, high = axes.get_ylim()
    for place, (name, when, check) in enumerate(found):
        colour = p.of(check.status)
        axes.plot(
            [place] * 2, [max(check.ci_low or low, low), min(check.ci_high or high, high)], color=colour, linewidth=1.6
        )
        axes.plot(place, seen[place], "o", color=colour, markersize=5)
        day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(when))
        told = f"{name}, {day}: {check.status} {wording.ratio(check.observed)} ({wording.interval(check)})"
        drawing.tip(axes, place, check.observed or 1.0, told)
    name_axes(axes, p, "run, oldest first")
    return drawing

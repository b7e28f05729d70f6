"""The decisive chart: every speed-up with its interval against 1.00 and the bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from reports import wording
from reports.axes import SMALL, figure, name_axes, panel, scale, set_ticks
from reports.definitions import label
from reports.svg import Chart, Drawing, Palette
from reports.verdict_data import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOREST_ROWS = 60
NARROW_ROWS = 24
MARKER = {"PASS": "o", "FAIL": "X", "INCONCLUSIVE": "D", "INVALID": "s"}


def by_margin(checks: Sequence[Check]) -> list[Check]:
    """Speed-ups that were judged, the one closest to (or furthest under) its bar first."""
    judged = [
        c for c in checks
        if c.family == "speed" and c.cell and c.unit == "x" and c.required and c.observed and c.observed > 0
    ]  # fmt: skip
    return sorted(judged, key=lambda c: (c.observed or 0) / (c.required or 1))


def forest(checks: Sequence[Check]) -> list[Chart]:
    """Every speed-up with its interval against 1.00 and the bar: a drawing for wide pages, and one for phones."""
    rows = by_margin(checks)
    if not rows:
        return []
    under = sum(check.status != "PASS" for check in rows)
    alt = f"{len(rows)} speed-ups with intervals, {under} of them not proven over their bar."
    note = "Closest to the bar first. A line spans both one-sided bounds; its left end must clear the bar."
    title, define = "Every speed-up against its bar", "interval"
    wide, narrow = rows[:FOREST_ROWS], rows[:NARROW_ROWS]
    return [
        Chart(
            "forest", title, note + _left(rows, wide), alt, lambda p: _forest(p, wide), define, wide=True, only="wide"
        ),
        Chart(
            "forest-narrow", title, note + _left(rows, narrow), alt, lambda p: _narrow(p, narrow), define, only="phone"
        ),
    ]


def _left(rows: Sequence[Check], shown: Sequence[Check]) -> str:
    left = len(rows) - len(shown)
    return f" The {left} further from the bar are in the table below." if left else ""


def _forest(p: Palette, rows: Sequence[Check]) -> Drawing:
    drawing = Drawing(figure((1160, 20 * len(rows) + 66)))
    axes = panel(drawing.figure, p, left=270, right=190, top=28, bottom=38, grid="x")
    _intervals(drawing, axes, p, rows, most=9)
    for y, check in enumerate(rows):
        where, name = axes.get_yaxis_transform(), f"{check.cell} · {label(check.metric)}"
        axes.text(-0.015, y, name, transform=where, color=p.ink, fontsize=11, ha="right", va="center_baseline")
        _value(axes, p, check, (1.02, y))
        at = (1.12, y)
        axes.text(*at, wording.interval(check), transform=where, color=p.quiet, fontsize=10.5, va="center_baseline")
    name_axes(axes, p, "speed-up of the candidate over the baseline, × (log scale)")
    return drawing


def _narrow(p: Palette, rows: Sequence[Check]) -> Drawing:
    drawing = Drawing(figure((SMALL[0], 38 * len(rows) + 70)))
    axes = panel(drawing.figure, p, left=6, right=14, top=28, bottom=38, grid="")
    _intervals(drawing, axes, p, rows, most=5, through=False)
    axes.set_ylim(len(rows) - 0.6, -0.8)
    for y, check in enumerate(rows):
        where, name = axes.get_yaxis_transform(), f"{check.cell} · {label(check.metric)}"
        axes.text(0, y - 0.42, name, transform=where, color=p.ink, fontsize=11, va="center_baseline")
        _value(axes, p, check, (1, y - 0.42), ha="right")
    name_axes(axes, p, "speed-up, × (log scale)")
    return drawing


def _value(
    axes: Axes, p: Palette, check: Check, at: tuple[float, float], ha: Literal["left", "right"] = "left"
) -> None:
    text, where = f"{wording.GLYPHS[check.status]} {wording.ratio(check.observed)}", axes.get_yaxis_transform()
    drawn = axes.text(*at, text, transform=where, ha=ha, va="center_baseline", fontsize=11, fontweight="bold")
    drawn.set_color(p.of(check.status))


def _intervals(
    drawing: Drawing, axes: Axes, p: Palette, rows: Sequence[Check], most: int, *, through: bool = True
) -> None:
    """The lines that matter, the intervals and the estimates: all but the words.

    Without `through` the lines at 1 and at the bar stop between the rows, where a narrow drawing has its words.
    """
    ends = [v for c in rows for v in (c.observed, c.ci_low, c.ci_high) if v is not None and v > 0]
    bars = sorted({check.required for check in rows if check.required})
    scale(axes.xaxis, "log", [*ends, *bars, 1.0], most=most)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    set_ticks(axes.yaxis, [])
    ys = range(len(rows))
    if through:
        axes.axvline(1.0, color=p.quiet, linewidth=1)
    else:
        axes.vlines([1.0] * len(rows), [y - 0.2 for y in ys], [y + 0.34 for y in ys], color=p.quiet, linewidth=1)
    side: Literal["left", "right"] = "left" if max(bars) < 1 else "right"
    _above(axes, p.quiet, 1.0, " equal 1.00 ", side)
    if len(bars) == 1:
        if through:
            axes.axvline(bars[0], color=p.ink, linewidth=1.4, linestyle=(0, (4, 2)))
        _above(axes, p.ink, bars[0], f" bar {bars[0]:.2f} ", "left" if bars[0] >= 1 else "right")
    if len(bars) > 1 or not through:
        ticks, top = [check.required or 1.0 for check in rows], 0.34 if through else 0.2
        axes.vlines(ticks, [y - top for y in ys], [y + 0.34 for y in ys], color=p.ink)
    for status, marker in MARKER.items():
        _marks(axes, p.of(status), marker, {y: c for y, c in enumerate(rows) if c.status == status})
    for y, check in enumerate(rows):
        drawing.tip(axes, check.observed, y, f"{check.check}: {check.status}. {check.reason}")


def _above(axes: Axes, colour: str, x: float, text: str, side: Literal["left", "right"]) -> None:
    axes.text(x, 1.0, text, transform=axes.get_xaxis_transform(), color=colour, fontsize=10.5, ha=side, va="bottom")


def _marks(axes: Axes, colour: str, marker: str, rows: dict[int, Check]) -> None:
    low, high = axes.get_xlim()
    starts = [max(check.ci_low or low, low) for check in rows.values()]
    stops = [min(check.ci_high or high, high) for check in rows.values()]
    axes.hlines(list(rows), starts, stops, color=colour, linewidth=2.2)
    seen = [check.observed or 1.0 for check in rows.values()]
    axes.plot(seen, list(rows), marker, color=colour, markersize=8 if marker == "X" else 6.5, markeredgewidth=0)

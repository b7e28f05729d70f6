"""The look that all charts share: thin lines, few ticks, no frame, margins set by hand so nothing is laid out twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from reports.svg import Palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Scale = Literal["linear", "log"]
Dash = str | tuple[float, tuple[float, ...]]
SMALL = (350, 226)  # CSS pixels; one column of the page, and the whole width of a phone
_LABEL = 21  # CSS pixels from the axis down to its label
_PER_INCH = 72  # matplotlib's SVG unit


def look(p: Palette, name: str, place: int) -> tuple[str, Dash]:
    """Colour and dash of a line: an arm's own, or the `place`-th of several; style.css has the same for legends."""
    if name in ("candidate", "baseline"):
        return p.of(name), "-" if name == "candidate" else (0, (5, 2))
    colours = (p.cand, p.third, p.fourth, p.INCONCLUSIVE, p.INVALID, p.PASS)
    dashes: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
    return colours[place % 6], dashes[place % 3]


def figure(size: tuple[int, int]) -> Figure:
    """An empty figure of so many CSS pixels."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    made = Figure(figsize=(size[0] / _PER_INCH, size[1] / _PER_INCH), dpi=_PER_INCH)
    FigureCanvasSVG(made)
    return made


def panel(
    into: Figure, p: Palette, *, left: int = 46, right: int = 10, top: int = 10, bottom: int = 38, grid: str = "y"
) -> Axes:
    """Axes with the given margins in CSS pixels."""
    width, height = into.get_size_inches() * _PER_INCH
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    axes = into.add_axes(box)
    axes.patch.set_visible(False)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=p.line, linewidth=1)
    axes.tick_params(which="both", length=0, colors=p.quiet, labelsize=10.5, pad=5)
    axes.set_axisbelow(True)
    # A fixed place for axis labels: finding it from the boxes of all tick labels costs a seventh of a chart's time.
    axes.xaxis.set_label_coords(0.5, -_LABEL / (height - top - bottom))
    axes.yaxis.set_label_coords(0, 0.5)
    if grid:
        axes.grid(axis="both" if grid == "both" else "y" if grid == "y" else "x", color=p.grid, linewidth=1)
    return axes


def name_axes(axes: Axes, p: Palette, x: str, y: str = "") -> None:
    """Axis labels: x below, y flat above the axis where it can be read."""
    axes.set_xlabel(x, color=p.quiet, fontsize=10.5)
    if y:
        axes.text(0, 1.02, y, transform=axes.transAxes, color=p.quiet, fontsize=10.5, ha="left", va="bottom")


def scale(axis: Axis, kind: Scale, values: Iterable[float], pad: float = 0.06, most: int = 5) -> None:
    """Limits from the values, and a few round ticks."""
    found = [value for value in values if math.isfinite(value) and (kind == "linear" or value > 0)]
    if not found:
        return
    low, high = min(found), max(found)
    if kind == "log":
        low, high = _widen_log(low, high, pad)
        ticks = log_ticks(low, high, most)
    else:
        room = (high - low or abs(high) or 1) * pad
        low, high = (0 if 0 <= low < (high - low) else low - room), high + room
        ticks = linear_ticks(low, high, most)
    axes, name = axis.axes, axis.axis_name  # type: ignore[attr-defined]
    (axes.set_xscale if name == "x" else axes.set_yscale)(kind)
    (axes.set_xlim if name == "x" else axes.set_ylim)(low, high)
    set_ticks(axis, ticks)


def spread_out(axis: Axis, values: Sequence[float], pad: float, most: int = 5) -> None:
    """From zero when that shows all values, logarithmic when the smallest would be lost beside the largest."""
    positive = [value for value in values if value > 0]
    wide = bool(positive) and max(positive) > 15 * min(positive)
    scale(axis, "log" if wide else "linear", positive if wide else [0, *values], pad, most)


def set_ticks(axis: Axis, ticks: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Exactly these ticks and no minor ones."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(labels or [tick_text(tick) for tick in ticks])))
    axis.set_minor_locator(NullLocator())


def tick_text(value: float) -> str:
    """A tick as short as it can be: 0.9, 1.2, 20, 1.5k."""
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    if abs(value) >= 1e-3 or value == 0:
        return f"{value:.4g}"
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def linear_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round steps inside the limits."""
    raw = (high - low) / max(most, 1)
    if raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round steps over a narrow range; else 1, 2, 5 of each decade where they fit, or decades alone."""
    if high / low < 3:
        return linear_ticks(low, high, most)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        ticks = [round(step * 10.0**d, 12) for d in decades for step in steps if low <= step * 10.0**d <= high]
        if len(ticks) <= most:
            break
    ticks = ticks[:: max(1, math.ceil(len(ticks) / most))]
    return ticks if len(ticks) > 1 else linear_ticks(low, high, 3)


def _widen_log(low: float, high: float, pad: float) -> tuple[float, float]:
    room = max(math.log(high / low) * pad, 0.03)
    return low * math.exp(-room), high * math.exp(room)

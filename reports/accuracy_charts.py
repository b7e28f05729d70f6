"""Charts of correctness: where in the output, under which load and in which text the arms part from the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reports import wording
from reports.axes import SMALL, figure, name_axes, panel, scale, set_ticks
from reports.divergence import ARMS, Mean, Scored, tail
from reports.svg import Chart, Drawing, Palette

_DASH = {"candidate": "-", "baseline": (0, (5, 2)), "floor": (0, (1.5, 2))}
_MARK = {"candidate": "o", "baseline": "s", "floor": "D"}
MAX_GROUPS = 14
Values = npt.NDArray[np.float64]


def divergence_charts(scored: dict[str, Scored]) -> list[Chart]:
    """All of them, for the arms that were scored."""
    if not scored:
        return []
    by_stratum = {arm: one.by("stratum") for arm, one in scored.items()}
    by_load = {arm: one.by("cell") for arm, one in scored.items() if arm != "floor"}
    charts = [
        _position_chart(scored),
        _tail_chart(scored),
        _group_chart("stratum", "By kind of text", by_stratum),
        _group_chart("load", "By cell: does load change the answers?", by_load),
    ]
    return [chart for chart in charts if chart]


def _position_chart(scored: dict[str, Scored]) -> Chart | None:
    lines = {arm: one.by_position() for arm, one in scored.items()}
    if max(len(line) for line in lines.values()) < 2:
        return None
    return Chart(
        "margin-position", "By position in the output", "Mean token margin with 95 % interval, documents as clusters.",
        "Mean token margin by position in the output: " + _ends(lines), lambda p: _positions(p, lines), "token_margin",
    )  # fmt: skip


def _ends(lines: dict[str, list[tuple[int, Mean]]]) -> str:
    return "; ".join(
        f"{arm} {wording.number(line[0][1].nats)} nats/token first, {wording.number(line[-1][1].nats)} last"
        for arm, line in lines.items()
    )


def _positions(p: Palette, lines: dict[str, list[tuple[int, Mean]]]) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=26, right=14, left=52)
    starts = sorted({low for line in lines.values() for low, _ in line})
    axes.set_xlim(-0.4, len(starts) - 0.6)
    set_ticks(axes.xaxis, range(len(starts)), [f"{low}+" if low else "first" for low in starts])
    scale(axes.yaxis, "linear", [0, *(_upper(mean) for line in lines.values() for _, mean in line)], 0.08, 4)
    for place, (arm, line) in enumerate(lines.items()):
        shift = 0.09 * (place - (len(lines) - 1) / 2)
        xs, means = [starts.index(low) + shift for low, _ in line], [mean for _, mean in line]
        ys, halves = [mean.nats for mean in means], [mean.half_width or 0.0 for mean in means]
        axes.plot(
            xs,
            ys,
            color=p.of(arm),
            marker=_MARK[arm],
            linewidth=1.8,
            linestyle=_DASH[arm],
            markersize=4.5,
            clip_on=False,
            label=arm,
        )
        lows = [max(0.0, y - half) for y, half in zip(ys, halves, strict=True)]
        axes.vlines(xs, lows, [y + half for y, half in zip(ys, halves, strict=True)], color=p.of(arm), linewidth=1)
        for x, (low, mean) in zip(xs, line, strict=True):
            drawing.tip(axes, x, mean.nats, _told(f"{arm}, from token {low}", mean))
    name_axes(axes, p, "token of the output", "token margin, nats/token")
    return drawing


def _upper(mean: Mean) -> float:
    return mean.nats + (mean.half_width or 0.0)


def _told(name: str, mean: Mean) -> str:
    sample = f"{mean.tokens:,} tokens of {wording.count(mean.documents, 'document')}"
    return f"{name}: {wording.number(mean.nats)} ± {wording.number(mean.half_width)} nats/token, {sample}"


def _tail_chart(scored: dict[str, Scored]) -> Chart | None:
    margins = {arm: one.margins()[0] for arm, one in scored.items()}
    positive = [values[values > 0] for values in margins.values()]
    if not any(len(values) > 1 for values in positive):
        return None
    high = max(float(values.max()) for values in positive if len(values))
    thresholds = np.geomspace(min(0.01, high / 10), high, 70)
    shares = {arm: tail(values, thresholds) for arm, values in margins.items()}
    sure = {arm: float(tail(values, np.array([1.0]))[0]) for arm, values in margins.items()}
    return Chart(
        "margin-tail", "Tail of the margins", "Share of tokens further from the reference's choice than x.",
        "Share of tokens with a margin over 1 nat: "
        + "; ".join(f"{arm} {wording.percent(share, 2)}" for arm, share in sure.items()),
        lambda p: _tail(p, thresholds, shares), "token_margin",
    )  # fmt: skip


def _tail(p: Palette, thresholds: Values, shares: dict[str, Values]) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=26, right=14, left=56)
    scale(axes.xaxis, "log", thresholds[[0, -1]].tolist())
    seen = [share for line in shares.values() for share in line[line > 0]]
    scale(axes.yaxis, "log", seen, 0.08, 4)
    from matplotlib.ticker import FixedFormatter

    axes.yaxis.set_major_formatter(FixedFormatter([f"{100 * tick:.3g} %" for tick in axes.get_yticks()]))
    for arm, line in shares.items():
        kept = line > 0
        axes.plot(thresholds[kept], line[kept], color=p.of(arm), linewidth=1.8, linestyle=_DASH[arm], label=arm)
        for place in range(0, len(thresholds), 10):
            told = f"{arm}: {wording.percent(float(line[place]), 2)} over {thresholds[place]:.2g} nats"
            drawing.tip(axes, thresholds[place], line[place] or math.nan, told)
    name_axes(axes, p, "margin, nats (both axes log)", "share of tokens above")
    return drawing


def _group_chart(name: str, title: str, means: dict[str, dict[str, Mean]]) -> Chart | None:
    groups = sorted({group for arm in means.values() for group in arm})
    if len(groups) < 2:
        return None
    worst = sorted(groups, key=lambda g: -max((means[arm][g].nats for arm in means if g in means[arm]), default=0.0))
    shown = worst[:MAX_GROUPS]
    left = f" The {MAX_GROUPS} furthest of {len(groups)}." if len(groups) > MAX_GROUPS else ""
    leader = means.get("candidate", {}).get(shown[0])
    told = f", candidate {wording.number(leader.nats)} nats/token" if leader else ""
    return Chart(
        f"margin-{name}", title, f"Mean token margin with 95 % interval.{left}",
        f"{title}: furthest in {shown[0]}{told}.",
        lambda p: _groups(p, shown, means), "token_margin",
    )  # fmt: skip


def _groups(p: Palette, shown: Sequence[str], means: dict[str, dict[str, Mean]]) -> Drawing:
    step = (9 if len(shown) > 8 else 13) * len(means) + 6
    drawing = Drawing(figure((SMALL[0], max(step * len(shown), 120) + 56)))
    longest = max(len(group) for group in shown)
    axes = panel(drawing.figure, p, top=10, left=min(170, 20 + 6 * longest), right=14, grid="x")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    cut = [group if len(group) <= 25 else "…" + group[-24:] for group in shown]
    set_ticks(axes.yaxis, range(len(shown)), cut)
    axes.tick_params(axis="y", colors=p.ink)
    scale(
        axes.xaxis,
        "linear",
        [0, *(m.nats + (m.half_width or 0) for arm in means.values() for m in arm.values())],
        0.05,
        4,
    )
    arms = [arm for arm in ARMS if arm in means]
    for place, arm in enumerate(arms):
        rows = [(y, group, means[arm][group]) for y, group in enumerate(shown) if group in means[arm]]
        offset = (place - (len(arms) - 1) / 2) * 0.22
        ys, halves = [y + offset for y, _, _ in rows], [mean.half_width or 0.0 for _, _, mean in rows]
        xs = [mean.nats for _, _, mean in rows]
        lows = [max(0.0, x - half) for x, half in zip(xs, halves, strict=True)]
        axes.hlines(ys, lows, [x + half for x, half in zip(xs, halves, strict=True)], color=p.of(arm), linewidth=1.2)
        axes.plot(xs, ys, _MARK[arm], color=p.of(arm), markersize=4.5, clip_on=False, label=arm)
        for y, group, mean in rows:
            drawing.tip(axes, mean.nats, y + offset, _told(f"{arm}, {group}", mean))
    name_axes(axes, p, "token margin, nats/token")
    return drawing

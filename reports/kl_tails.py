"""The tails of the KL divergence, where the engines gave log-probabilities: llama.cpp's percentiles as a picture."""

from __future__ import annotations

import re

from reports import wording
from reports.axes import SMALL, figure, look, name_axes, panel, scale, set_ticks
from reports.run_data import Run
from reports.svg import Chart, Drawing, Palette
from reports.values import as_dict, as_number

Line = list[tuple[float, float]]
_PERCENTILE = re.compile(r"kld_p(\d+(?:\.\d+)?)(?:@(\w+))?")
_MARK = {"candidate": "o", "baseline": "s"}


def kl_tail(run: Run) -> Chart | None:
    """KL divergence that a share of positions exceeds, both arms; None when no engine gave log-probabilities."""
    every = [
        {arm: _line(run, arm, phase) for arm in ("candidate", "baseline")} for phase in ("prefill", "decode", None)
    ]
    drawn = [{arm: line for arm, line in lines.items() if len(line) > 1} for lines in every]
    lines = max(drawn, key=len)  # the first phase that most arms answered
    if not lines:
        return None
    told = "; ".join(f"{arm} {wording.number(line[-1][1])} nats at the furthest" for arm, line in lines.items())
    return Chart(
        "kl-tail", "Tail of the KL divergence", "Share of positions further from the reference's distribution than x.",
        f"Tail of the KL divergence to the reference: {told}.", lambda p: _draw(p, lines), "kld",
    )  # fmt: skip


def _line(run: Run, arm: str, phase: str | None) -> Line:
    """(share of positions above, nats) of one phase, from the middle to the furthest."""
    metrics = as_dict(as_dict(run.oracles.get(arm, {}).get("logits")).get("metrics"))
    found = []
    for name, metric in metrics.items():
        percentile = _PERCENTILE.fullmatch(name)
        value = as_number(as_dict(metric).get("value"))
        if not percentile or percentile[2] != phase or value is None:
            continue
        if value > 0 and 50 <= float(percentile[1]) < 100:
            found.append((1 - float(percentile[1]) / 100, value))
    return sorted(found, reverse=True)


def _draw(p: Palette, lines: dict[str, Line]) -> Drawing:
    drawing = Drawing(figure(SMALL))
    axes = panel(drawing.figure, p, top=26, right=14, left=56)
    scale(axes.xaxis, "log", [nats for line in lines.values() for _, nats in line])
    scale(axes.yaxis, "log", [share for line in lines.values() for share, _ in line], 0.08, 4)
    ticks = axes.get_yticks().tolist()
    set_ticks(axes.yaxis, ticks, [f"{100 * tick:.3g} %" for tick in ticks])
    for arm, line in lines.items():
        xs, ys = [nats for _, nats in line], [share for share, _ in line]
        colour, dash = look(p, arm, 0)
        axes.plot(xs, ys, color=colour, linewidth=1.8, linestyle=dash, marker=_MARK[arm], markersize=4.5, label=arm)
        for share, nats in line:
            drawing.tip(axes, nats, share, f"{arm}: {wording.percent(share)} over {wording.number(nats)} nats")
    name_axes(axes, p, "KL divergence, nats (both axes log)", "share of positions above")
    return drawing

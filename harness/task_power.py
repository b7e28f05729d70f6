"""Before a run: how many task items it will have, how wide their interval will be, who will pass. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from harness.accuracy import TaskScores, judge_tasks
from harness.statistics import ALPHA
from harness.verdict import Status

# Shares of answers on which two equal engines differ in score: a quiet pair of one kernel, and two different engines.
FLIP_RATES = (0.02, 0.05)
POWER = 0.9


def half_width_pt(items: int, flip_rate: float, alpha: float = ALPHA) -> float:
    """One-sided half width of the paired interval in points: z sqrt(f / n) (Miller 2024)."""
    return float(100 * stats.norm.ppf(1 - alpha) * math.sqrt(flip_rate / items))


def items_needed(margin_pt: float, flip_rate: float, *, alpha: float = ALPHA, power: float = POWER) -> int:
    """Items with which an engine that is truly equal clears a margin of `margin_pt` points with this power."""
    z = float(stats.norm.ppf(1 - alpha) + stats.norm.ppf(power))
    return math.ceil(z**2 * flip_rate / (margin_pt / 100) ** 2)


def equal_engine_passes(
    items: int, bar_pt: float, flip_rate: float, *, alpha: float = ALPHA, draws: int = 300
) -> float:
    """Chance that an engine of equal quality gets PASS, by simulating the judge's own decision."""
    rng = np.random.default_rng(0)
    names = np.arange(items).astype(np.str_)
    passed = 0
    for _ in range(draws):
        lost, gained = rng.multinomial(items, [flip_rate / 2, flip_rate / 2, 1 - flip_rate])[:2]
        baseline, candidate = np.zeros(items), np.zeros(items)
        baseline[:lost] = candidate[lost : lost + gained] = 1.0
        scores = TaskScores(names, names, baseline, candidate)
        passed += judge_tasks(scores, bar_pt, alpha=alpha).status is Status.PASS
    return passed / draws


def task_forecast(items: Mapping[str, int], per_pair: int, pairs: Sequence[int], bar_pt: float | None) -> list[str]:
    """Lines for `gate --dry-run`: items by task, then what they can decide at each look."""
    total = sum(items.values())
    lines = [f"{'task':<32}{'items':>10}", *(f"{name:<32}{count:>10,}" for name, count in items.items())]
    lines.append(f"{'in all':<32}{total:>10,}   {per_pair} in each pair, until there are no more")
    if bar_pt is None:
        return [*lines, "No criterion on tasks: scores are shown, nothing is judged by them."]
    for look in pairs:
        asked = min(total, look * per_pair)
        for rate in FLIP_RATES:
            lines.append(
                f"tasks >= {bar_pt:g}pt after {look} pairs: {asked:,} items; if equal engines differ on {rate:.0%} of "
                f"answers, the interval is {half_width_pt(asked, rate):.2f} pt each way and an identical engine passes "
                f"with {equal_engine_passes(asked, bar_pt, rate):.0%}."
            )
    if bar_pt < 0:
        needed = " or ".join(f"{items_needed(bar_pt, rate):,} ({rate:.0%})" for rate in FLIP_RATES)
        lines.append(f"For an identical engine to pass {POWER:.0%} of the time it takes {needed} items.")
    return lines


def option_forecast(items: Mapping[str, int]) -> list[str]:
    """The same for options, which are asked once and apart from the pairs."""
    total = sum(items.values())
    widths = ", ".join(f"+-{half_width_pt(total, rate):.2f} pt at {rate:.0%} flips" for rate in FLIP_RATES)
    lines = [f"{name:<32}{count:>10,}   options, asked apart after the pairs" for name, count in items.items()]
    return [*lines, f"{'in all':<32}{total:>10,}   {widths}"]

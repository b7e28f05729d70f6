"""What a run could have decided, what it would still take, and when more pairs are a waste. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.speed import Series
from harness.statistics import (
    Array,
    Look,
    chance_to_pass,
    look_at,
    mean_correlation,
    moderated_sd,
    pairs_needed,
)
from harness.verdict import Check, Power, Status, Verdict

HEADROOM = 0.05  # the assumed engine stands this far over the highest bar in every cell


@dataclass(frozen=True)
class Noise:
    """What the pairs say about the machine: per-cell standard deviation (shrunk) and correlation between cells."""

    sd: Array
    correlation: float


def measured_noise(d: Array) -> Noise:
    """Noise of `d` [cells, pairs] of log ratios; needs two pairs."""
    return Noise(moderated_sd(d.std(axis=1, ddof=1), d.shape[1]), mean_correlation(d))


def looks_of(plan: tuple[int, ...]) -> tuple[Look, ...]:
    """The looks that a plan's `pairs` allows."""
    first, maximum = plan[0], plan[-1]
    return tuple(look_at(n, first, maximum) for n in sorted({min(first, maximum), maximum}))


def run_power(
    series: Sequence[Series], checks: Sequence[Check], plan: tuple[int, ...], *, document_pairs: int | None, draws: int
) -> Power:
    """Power of the speed half of a run.

    Args:
        series: of every speed criterion that could be judged.
        checks: theirs, in the same order.
        plan: pairs at the first and last look.
        document_pairs: pairs at which the open accuracy checks would have documents enough; None when none is open.
        draws: simulated runs; 0 leaves the chances unknown.
    """
    n, maximum = (len(series[0].d) if series else 0), plan[-1]
    if n < 2:
        return Power(pairs=n, max_pairs=maximum, sentence="One pair says nothing about noise, so power is unknown.")
    d = np.stack([s.d for s in series])
    noise = measured_noise(d)
    needed = _pairs_needed(series, checks, noise, looks_of(plan)[-1], document_pairs)
    ratios = [i for i, s in enumerate(series) if s.criterion.unit == "x" and s.criterion.op == ">="]
    chance = assumed = None
    if ratios and draws:
        bars = np.array([series[i].criterion.value for i in ratios])
        assumed = round(float(bars.max()) + HEADROOM, 4)
        chance = chance_to_pass(
            np.log(assumed / bars), noise.sd[ratios], noise.correlation, looks_of(plan), draws=draws
        )
    return Power(
        pairs=n,
        max_pairs=maximum,
        chance_to_pass=chance,
        assumed_speedup=assumed,
        pairs_needed=needed,
        sentence=_sentence(noise, plan, chance, assumed),
    )


def _sentence(noise: Noise, plan: tuple[int, ...], chance: float | None, assumed: float | None) -> str:
    median, worst = 100 * float(np.median(noise.sd)), 100 * float(noise.sd.max())
    measured = (
        f"Noise between pairs is {median:.1f} % in the median check and {worst:.1f} % in the noisiest "
        f"(correlation {noise.correlation:.2f} over {len(noise.sd)} checks)"
    )
    if chance is None:
        return measured + "."
    pairs = " then ".join(str(p) for p in dict.fromkeys(plan))
    return (
        f"{measured}: with {pairs} pairs, an engine truly {assumed:.2f}x everywhere would pass the speed half "
        f"{chance:.0%} of the time."
    )


def _pairs_needed(
    series: Sequence[Series], checks: Sequence[Check], noise: Noise, last: Look, document_pairs: int | None
) -> int | None:
    """Pairs that would decide every open check; None when nothing is open or no reasonable number would."""
    needed: list[int | None] = [document_pairs] if document_pairs else []
    for one, check, sd in zip(series, checks, noise.sd, strict=True):
        if check.status is not Status.INCONCLUSIVE or check.distance is None:
            continue
        margin = float(np.log1p(check.distance))
        alpha = last.alpha if margin > 0 else last.alpha / len(series)
        pairs = pairs_needed(margin, float(sd), alpha)
        needed.append(max(pairs, len(one.d) + 1) if pairs else None)
    return None if not needed or None in needed else max(n for n in needed if n)


def wants_more_pairs(verdict: Verdict) -> bool:
    """Whether the pipeline should drive the pairs up to the next look: undecided, and not futile."""
    undecided = verdict.status is Status.INCONCLUSIVE and verdict.power.pairs < verdict.power.max_pairs
    return undecided and futile(verdict.checks) is None


def futile(checks: Sequence[Check]) -> Check | None:
    """A check whose whole interval lies on the wrong side of its bar: more pairs would only give the FAIL its name.

    Conditional power from the point estimates would stop too soon: the worst of 40 estimates is low by luck.
    """
    for check in checks:
        if check.status is Status.INCONCLUSIVE and (check.distance or 0.0) < 0:
            low, high, bar = check.ci_low, check.ci_high, check.required
            if low is not None and high is not None and bar is not None and (low - bar) * (high - bar) > 0:
                return check
    return None

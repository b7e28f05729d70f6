"""What a run could have decided, what it would still take, and when more pairs are a waste. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats

from harness.noise import KnownNoise, known_sd
from harness.speed import Series
from harness.statistics import ALPHA, EXACT_PAIRS, Array, Look, look_at, signed_rank_k, t_lower
from harness.verdict import Check, Power, Status, Verdict

MAX_PAIRS_NEEDED = 200  # beyond, "how many pairs" is no longer advice
HEADROOM = 0.05  # the assumed engine stands this far over the highest bar in every cell


@dataclass(frozen=True)
class Noise:
    """What the pairs say about the machine: per-cell standard deviation (shrunk) and correlation between cells."""

    sd: Array
    correlation: float


def measured_noise(d: Array, known: Array | None = None, known_pairs: int = 0) -> Noise:
    """Noise of `d` [cells, pairs] of log ratios; needs two pairs.

    `known` [cells] standard deviations of an A/A run of `known_pairs`, NaN where it has none, are pooled with it by
    degrees of freedom.
    """
    pairs, sd = d.shape[1], d.std(axis=1, ddof=1)
    if known is not None:
        here, there = pairs - 1, known_pairs - 1
        pooled = np.sqrt((here * sd**2 + there * known**2) / (here + there))
        sd = np.where(np.isfinite(pooled), pooled, sd)
        pairs = here + there + 1 if np.isfinite(pooled).all() else pairs
    return Noise(moderated_sd(sd, pairs), mean_correlation(d))


def looks_of(plan: tuple[int, ...]) -> tuple[Look, ...]:
    """The looks that a plan's `pairs` allows."""
    first, maximum = plan[0], plan[-1]
    return tuple(look_at(n, first, maximum) for n in sorted({min(first, maximum), maximum}))


def run_power(
    series: Sequence[Series],
    checks: Sequence[Check],
    pairs: int,
    plan: tuple[int, ...],
    *,
    document_pairs: int | None,
    draws: int,
    known: KnownNoise | None = None,
) -> Power:
    """Power of the speed half of a run.

    Args:
        series: of every speed criterion that could be judged.
        checks: theirs, in the same order.
        pairs: whole pairs measured.
        plan: pairs at the first and last look.
        document_pairs: pairs at which the open accuracy checks would have documents enough; None when none is open.
        draws: simulated runs; 0 leaves the chances unknown.
        known: what an A/A run measured.
    """
    maximum = plan[-1]
    if pairs < 2 or not series:
        why = "No speed check could be judged" if not series else "One pair says nothing about noise"
        return Power(pairs=pairs, max_pairs=maximum, sentence=f"{why}, so power is unknown.")
    d = np.stack([s.d for s in series])
    sd = np.array(known_sd(known, [s.criterion.check_id(s.cell) for s in series]))
    fits = known is not None and bool(np.isfinite(sd).any())
    noise = measured_noise(d, sd, known.result.pairs) if known and fits else measured_noise(d)
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
        pairs=pairs,
        max_pairs=maximum,
        chance_to_pass=chance,
        assumed_speedup=assumed,
        pairs_needed=needed,
        sentence=_sentence(noise, plan, chance, assumed)
        + (f" Pooled with A/A run {known.run}." if known and fits else ""),
    )


def power_ahead(known: KnownNoise, bars: Mapping[str, float], plan: tuple[int, ...]) -> str:
    """What an A/A run says, before anything is driven, of a plan's chance to see an engine that is better.

    `bars` are the plan's speed-ups by check.
    """
    checks = [check for check in bars if np.isfinite(known_sd(known, [check])[0])]
    if not checks:
        return f"A/A run {known.run} measured none of this plan's checks."
    sd, bar = np.array(known_sd(known, checks)), np.array([bars[check] for check in checks])
    assumed = round(float(bar.max()) + HEADROOM, 4)
    noise = Noise(moderated_sd(sd, known.result.pairs), known.result.correlation)
    chance = chance_to_pass(np.log(assumed / bar), noise.sd, noise.correlation, looks_of(plan))
    return f"By A/A run {known.run}: {_sentence(noise, plan, chance, assumed)}"


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


# --- noise and chances ----------------------------------------------------------------------------------------------


def moderated_sd(sd: Array, pairs: int) -> Array:
    """Standard deviations shrunk towards their common value (Smyth 2004, moment estimate of the prior's weight).

    Six pairs tell a cell's noise to +-30 %; the other cells of the same machine know the rest. Used for planning
    only, never for a verdict.
    """
    positive = np.maximum(sd, 1e-6)
    if len(sd) < 2 or pairs < 3:
        return positive
    df = pairs - 1
    z = 2 * np.log(positive)
    spread = float(np.var(z, ddof=1)) - float(_trigamma(df / 2))
    pooled = float(np.mean(positive**2))
    if spread <= 0:
        return np.full(len(sd), np.sqrt(pooled))
    prior_df = 2 / spread  # trigamma(x) is about 1/x
    return np.asarray(np.sqrt((prior_df * pooled + df * positive**2) / (prior_df + df)))


def _trigamma(x: float) -> float:
    return float(1 / x + 1 / (2 * x**2) + 1 / (6 * x**3))


def mean_correlation(d: Array) -> float:
    """Mean correlation between cells over pairs, clipped to [0, 0.99]; 0 with fewer than three pairs or two cells."""
    cells, pairs = d.shape
    centred = d - d.mean(axis=1, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=1))
    if cells < 2 or pairs < 3 or np.any(norm == 0):
        return 0.0
    unit = centred / norm[:, None]
    total = float((unit.sum(axis=0) ** 2).sum())
    r = (total - cells) / (cells * (cells - 1))
    return float(np.clip(r * (1 + (1 - r * r) / (2 * max(pairs - 2, 1))), 0, 0.99))


def chance_to_pass(
    margin: Array, sd: Array, correlation: float, looks: tuple[Look, ...], *, draws: int = 2000, seed: int = 0
) -> float:
    """Chance that an engine passes every cell, by simulation with one common factor between cells.

    Args:
        margin: [cells] log(true speed-up / bar).
        sd: [cells] standard deviation of the log ratio between pairs.
        correlation: between cells, over pairs.
        looks: at which it is judged, in order; a PASS at any of them counts.
        draws: simulated runs (the answer's own standard error is below 0.5 / sqrt(draws)).
        seed: of the private generator.
    """
    rng = np.random.default_rng(seed)
    pairs = looks[-1].pairs
    passed = np.zeros(draws, dtype=bool)
    block = max(1, 4_000_000 // max(1, len(sd) * pairs))
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        common = rng.standard_normal((rows, 1, pairs))
        own = rng.standard_normal((rows, len(sd), pairs))
        noise = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        d = margin[:, None] + sd[:, None] * noise
        for look in looks:
            passed[start : start + rows] |= _all_pass(d[..., : look.pairs], look.alpha)
    return float(passed.mean())


def _all_pass(d: Array, alpha: float) -> npt.NDArray[np.bool_]:
    """Whether every cell's lower bound clears zero: the signed-rank test itself, which spares the Walsh averages."""
    n = d.shape[-1]
    if n < EXACT_PAIRS:
        return np.asarray((t_lower(d, alpha) >= 0).all(axis=-1))
    k = signed_rank_k(n, alpha)
    if not k:
        return np.zeros(d.shape[0], dtype=bool)
    ranks = np.argsort(np.argsort(np.abs(d), axis=-1), axis=-1) + 1
    against = (ranks * (d < 0)).sum(axis=-1)
    return np.asarray((against < k).all(axis=-1))


def pairs_needed(margin: float, sd: float, alpha: float = ALPHA, power: float = 0.9) -> int | None:
    """Pairs with which a cell at this margin over (or under) its bar would be decided; None beyond 200.

    Args:
        margin: log(speed-up / bar), of either sign.
        sd: standard deviation of the log ratio between pairs.
        alpha: one-sided error of the look that decides.
        power: chance to decide it.
    """
    if margin == 0 or not np.isfinite(margin) or not np.isfinite(sd):
        return None
    n = np.arange(EXACT_PAIRS, MAX_PAIRS_NEEDED + 1)
    # 3/pi: the signed-rank test's efficiency against t under normal noise
    shift = abs(margin) / max(sd, 1e-9) * np.sqrt(n * 3 / np.pi)
    smallest = next(k for k in n if signed_rank_k(int(k), alpha))
    enough = n[(shift >= _t_quantiles(alpha) + stats.norm.ppf(power)) & (n >= smallest)]
    return int(enough[0]) if len(enough) else None


@cache
def _t_quantiles(alpha: float) -> Array:
    n = np.arange(EXACT_PAIRS, MAX_PAIRS_NEEDED + 1)
    return np.asarray(stats.t.ppf(1 - alpha, n - 1))

"""A/A: the baseline against itself under the same plan. How noisy is this machine, can it be trusted at all? Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.completeness import whole_pairs
from harness.gate import GateInput, decide
from harness.noise import AaResult, CheckNoise
from harness.power import HEADROOM, MAX_PAIRS_NEEDED, Noise, chance_to_pass, measured_noise
from harness.speed import Series, Visits, make_series
from harness.statistics import (
    ALPHA,
    EXACT_PAIRS,
    Array,
    Look,
    hodges_lehmann,
    judge,
    lower_bound,
    upper_bound,
)
from harness.verdict import Check, Family, Status

BIAS = 0.03  # a machine that sees this much between an engine and itself cannot judge 20 %
WANTED_CHANCE = 0.9


def judge_aa(run: GateInput) -> AaResult:
    """Judge a run whose candidate is the baseline itself.

    INVALID when some ratio's interval excludes 1 by more than 3 % (Holm over all checks, both sides together 5 %), or
    when the run is incomplete, either side failed requests or broke its contract, or the two differ in accuracy.
    """
    verdict = decide(run, power_draws=0)
    visits, pairs = whole_pairs(run.visits)
    broken = [check for check in verdict.checks if _breaks(check)]
    series = [] if broken else _series(run, visits, pairs)
    if broken or len(pairs) < 2 or not series:
        why = broken[0].reason if broken else "An A/A run needs two pairs and a speed criterion at least."
        return AaResult(
            status=Status.INVALID, sentence=why, pairs=len(pairs), correlation=0.0, pairs_needed=None, checks=()
        )
    d = np.stack([one.d + np.log(one.criterion.value) for one in series])
    noise = measured_noise(d)
    biased = _biased(d)
    checks = _noises(series, d)
    return AaResult(
        status=Status.INVALID if biased.any() else Status.PASS,
        sentence=_sentence([series[i].criterion.check_id(series[i].cell) for i in np.flatnonzero(biased)], d, checks),
        pairs=len(pairs),
        correlation=noise.correlation,
        pairs_needed=_pairs_needed(series, noise),
        checks=checks,
    )


def _breaks(check: Check) -> bool:
    """Whether the check says that one engine did not behave like the other, or could not be judged."""
    if check.family is Family.ACCURACY:
        return check.status is Status.FAIL
    return check.family in {Family.VALIDITY, Family.HONESTY} and check.status is not Status.PASS


def _series(run: GateInput, visits: Visits, pairs: Sequence[int]) -> list[Series]:
    """Every speed-up in the plan's criteria; absolute limits say nothing about noise between arms."""
    speedups = [(c, cell) for c, cell in run.criteria if c.unit == "x" and c.op == ">="]
    lined_up = [make_series(c, cell, visits, pairs, run.gpus, {}) for c, cell in speedups]
    return [one for one in lined_up if isinstance(one, Series)]


def _biased(d: Array) -> npt.NDArray[np.bool_]:
    """Which checks differ from 1 by more than 3 % beyond doubt, in either direction: [checks]."""
    margin = np.log1p(BIAS)
    both = judge(np.concatenate([d + margin, margin - d]), ALPHA).failed
    return np.asarray(both.reshape(2, -1).any(axis=0))


def _noises(series: Sequence[Series], d: Array) -> tuple[CheckNoise, ...]:
    estimate, low, high = hodges_lehmann(d), lower_bound(d), upper_bound(d)
    sd = d.std(axis=1, ddof=1)

    def finite(x: float) -> float | None:
        return float(np.exp(x)) if np.isfinite(x) else None

    return tuple(
        CheckNoise(
            check=series[i].criterion.check_id(series[i].cell),
            ratio=float(np.exp(estimate[i])),
            ci_low=finite(low[i]),
            ci_high=finite(high[i]),
            noise=float(sd[i]),
        )
        for i in np.argsort(-sd)
    )


def _pairs_needed(series: Sequence[Series], noise: Noise) -> int | None:
    bars = np.array([one.criterion.value for one in series])
    margin = np.log((bars + HEADROOM) / bars)

    def enough(n: int) -> bool:
        look = (Look(1, n, ALPHA),)
        return chance_to_pass(margin, noise.sd, noise.correlation, look, draws=400) >= WANTED_CHANCE

    low, high = EXACT_PAIRS - 1, 2 * EXACT_PAIRS
    while not enough(high):
        if high >= MAX_PAIRS_NEEDED:
            return None
        low, high = high, min(2 * high, MAX_PAIRS_NEEDED)
    while high - low > 1:  # the chance grows with the pairs
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _sentence(biased: Sequence[str], d: Array, checks: Sequence[CheckNoise]) -> str:
    noisiest = f"noise between pairs up to {100 * checks[0].noise:.1f} % ({checks[0].check})"
    if not biased:
        far = max(checks, key=lambda check: abs(np.log(check.ratio)))
        bounds = "" if far.ci_low is None else f", between {far.ci_low:.2f}x and {far.ci_high:.2f}x"
        return (
            f"No check is proven to differ from 1 by more than {BIAS:.0%}; the furthest of {len(d)} is {far.check}, "
            f"{far.ratio:.2f}x{bounds}; {noisiest}."
        )
    return (
        f"The baseline against itself differs from 1 by more than {BIAS:.0%} in {len(biased)} of {len(d)} checks "
        f"(first {biased[0]}); {noisiest}: this machine, or the order of its visits, cannot be trusted."
    )

"""Intervals and tests for pairs of visits. Pure functions of arrays: no I/O, no clock, no global random state.

A replicate is a *pair* (one baseline visit and one candidate visit on the same requests); requests inside a visit
share batches, clocks and caches and are not replicates. All arithmetic is on logarithms of ratios. Throughout, `d` is
an array [cells, pairs] of log(observed / bar), so that zero is the bar and larger is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import comb

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]

ALPHA = 0.05
EXACT_PAIRS = 5  # below, no set of signs is rarer than 5 %: 2**-4 > 0.05


# --- one sample of log ratios -------------------------------------------------------------------------------------


def walsh_averages(d: Array) -> Array:
    """Averages of all pairs of observations (each with itself too), sorted: [cells, n(n+1)/2]."""
    first, second = np.triu_indices(d.shape[-1])
    return np.asarray(np.sort((d[..., first] + d[..., second]) / 2, axis=-1))


def hodges_lehmann(d: Array) -> Array:
    """Median of the Walsh averages: [cells]. (Hodges and Lehmann, 1963)."""
    return np.asarray(np.median(walsh_averages(d), axis=-1))


@cache
def _signed_rank_cdf(n: int) -> Array:
    """P(W <= w) of the signed-rank statistic under symmetry about zero, exact, for w = 0 .. n(n+1)/2."""
    counts = np.array([1.0])
    for rank in range(1, n + 1):
        counts = np.pad(counts, (0, rank)) + np.pad(counts, (rank, 0))
    return np.asarray(np.cumsum(counts) / 2.0**n)


def signed_rank_k(n: int, alpha: float = ALPHA) -> int:
    """The k-th smallest Walsh average of n is a lower bound of level alpha; 0 when n is too small for one."""
    return int(np.searchsorted(_signed_rank_cdf(n), alpha * (1 + 1e-12), side="right"))


def attained_level(n: int, alpha: float = ALPHA) -> float:
    """The error that bound really spends (at most alpha); alpha itself where only the t bound exists."""
    k = signed_rank_k(n, alpha)
    return float(_signed_rank_cdf(n)[k - 1]) if n >= EXACT_PAIRS and k else alpha


def exact_lower(d: Array, alpha: float = ALPHA) -> Array:
    """One-sided lower bound by the exact signed-rank test: [cells]; -inf where n has none at this level."""
    k = signed_rank_k(d.shape[-1], alpha)
    return walsh_averages(d)[..., k - 1] if k else np.full(d.shape[:-1], -np.inf)


def t_lower(d: Array, alpha: float = ALPHA) -> Array:
    """One-sided lower bound by Student's t: [cells]; -inf with one observation."""
    n = d.shape[-1]
    if n < 2:
        return np.full(d.shape[:-1], -np.inf)
    width = stats.t.ppf(1 - alpha, n - 1) * d.std(axis=-1, ddof=1) / np.sqrt(n)
    return np.asarray(d.mean(axis=-1) - width)


def lower_bound(d: Array, alpha: float = ALPHA) -> Array:
    """The bound that decides: exact from five pairs on, Student's t below."""
    return exact_lower(d, alpha) if d.shape[-1] >= EXACT_PAIRS else t_lower(d, alpha)


def upper_bound(d: Array, alpha: float = ALPHA) -> Array:
    """The mirror image of `lower_bound`."""
    return -lower_bound(-d, alpha)


def t_pvalue_below(d: Array) -> Array:
    """One-sided p-value against "the mean is at least zero": small when it lies below. [cells]."""
    n = d.shape[-1]
    if n < 2:
        return np.ones(d.shape[:-1])
    mean, error = d.mean(axis=-1), d.std(axis=-1, ddof=1) / np.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stats.t.cdf(np.where(error > 0, mean / error, np.sign(mean) * np.inf), n - 1)
    return np.where((error == 0) & (mean == 0), 0.5, p)


# --- many cells ---------------------------------------------------------------------------------------------------


def holm(p: Array) -> Array:
    """Holm's adjusted p-values over the last axis: at most alpha means "this one, too", family-wise error alpha."""
    order = np.argsort(p, axis=-1, kind="stable")
    scaled = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty(p.shape)
    np.put_along_axis(adjusted, order, np.minimum(1.0, np.maximum.accumulate(scaled, axis=-1)), axis=-1)
    return adjusted


@dataclass(frozen=True)
class Look:
    """One of the at most two times at which a run is judged, and the one-sided error it may spend."""

    number: int
    pairs: int
    alpha: float

    @property
    def confidence(self) -> float:
        """1 - alpha."""
        return 1 - self.alpha


def look_at(pairs: int, first: int, maximum: int) -> Look:
    """The error that judging after `pairs` pairs may spend.

    Two looks share 5 % by Bonferroni, so no assumption links them: the first may spend 2.5 % and, because the
    signed-rank statistic is discrete, spends less (1/64 at 6 pairs); the last look gets all that is left (3.4 %).
    """
    if first >= maximum:
        return Look(1, pairs, ALPHA)
    spent = attained_level(first, ALPHA / 2)
    return Look(1, pairs, spent) if pairs <= first else Look(2, pairs, ALPHA - spent)


@dataclass(frozen=True)
class Decisions:
    """`judge`'s answer, arrays [..., cells]; bounds in log units over the bar."""

    estimate: Array
    lower: Array
    upper: Array
    t_lower: Array
    sd: Array
    passed: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]


def judge(d: Array, alpha: float) -> Decisions:
    """Decide every cell of `d` [..., cells, pairs] of log(observed / bar); leading axes are runs of their own.

    PASS: the lower bound clears the bar. All cells must, so each is tested at alpha with no correction
    (intersection-union, Berger 1982). FAIL names a cell out of many, so it takes Holm's correction. The exact test's
    smallest p-value at six pairs is 1/64, too coarse for Holm over many cells: Holm runs on Student's t, and the exact
    upper bound of the cell must agree.
    """
    n = d.shape[-1]
    lower, upper = lower_bound(d, alpha), upper_bound(d, alpha)
    named = holm(t_pvalue_below(d)) <= alpha
    sd = d.std(axis=-1, ddof=1) if n > 1 else np.full(d.shape[:-1], np.nan)
    return Decisions(hodges_lehmann(d), lower, upper, t_lower(d, alpha), sd, lower >= 0, named & (upper < 0))


# --- percentiles ---------------------------------------------------------------------------------------------------


def minimum_requests(stat: str) -> int:
    """Requests a visit needs before a percentile of it may be gated.

    The largest of n observations bounds the q-quantile with 95 % confidence when q**n <= 0.05 (order statistics, no
    distribution assumed): 29 for p90, 59 for p95. p99 would need 299 to be bounded, but its run-to-run scatter makes
    it useless below 1,000. The median needs five.
    """
    return {"p50": 5, "p90": 29, "p95": 59, "p99": 1000, "mean": 2}[stat]


def quantile_bounds(n: int, q: float, confidence: float = 0.95) -> tuple[int, int] | None:
    """Ranks (from 1) of the order statistics that bound the q-quantile two-sidedly, or None when n is too small."""
    tail = (1 - confidence) / 2
    low = int(stats.binom.ppf(tail, n, q))
    high = int(stats.binom.ppf(1 - tail, n, q)) + 1
    return (low, high) if low >= 1 and high <= n else None


# --- derived quantities --------------------------------------------------------------------------------------------


def block_bootstrap(
    pairs: Array, statistic: Callable[[Array], float], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Estimate and two-sided 95 % percentile interval of a statistic of whole pairs.

    Args:
        pairs: [pairs, ...]; axis 0 is resampled, so all that was measured in one pair stays together.
        statistic: maps such an array to a number (area under a Pareto front, maximum rate, ...).
        resamples: bootstrap resamples.
        seed: of the private generator.
    """
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(pairs), (resamples, len(pairs)))
    values = np.array([statistic(pairs[draw]) for draw in draws])
    low, high = np.quantile(values, [0.025, 0.975])
    return float(statistic(pairs)), float(low), float(high)


def document_sums(documents: Array, group: npt.NDArray[np.int64], *, resamples: int = 2000, seed: int = 0) -> Array:
    """Column sums a group of every bootstrap resample of the rows: [resamples, groups, columns].

    The bootstrap of a token mean by document needs only each document's sums, so a resample costs one count vector
    and one product, whatever the number of tokens.

    Args:
        documents: [documents, columns], each row the sums over one document's tokens.
        group: [documents] group of each, from 0; documents are drawn from all groups together.
        resamples: bootstrap resamples.
        seed: of the private generator.
    """
    rng = np.random.default_rng(seed)
    n, groups = len(documents), int(group.max()) + 1
    order = np.argsort(group, kind="stable")
    rows, edges = documents[order], np.searchsorted(group[order], np.arange(groups + 1))
    out = np.empty((resamples, groups, documents.shape[1]))
    block = max(1, min(resamples, 4_000_000 // n))
    for start in range(0, resamples, block):
        counts = np.empty((min(block, resamples - start), n))
        for one in counts:
            one[:] = np.bincount(rng.integers(0, n, n, dtype=np.int32), minlength=n)
        for g, (low, high) in enumerate(pairwise(edges)):
            out[start : start + len(counts), g] = counts[:, low:high] @ rows[low:high]
    return out


# --- paired proportions ---------------------------------------------------------------------------------------------


def mcnemar_mid_p(lost: int, gained: int) -> float:
    """One-sided mid-p McNemar: how likely so many losses among the discordant items are, if losses were luck."""
    n = lost + gained
    if n == 0:
        return 1.0
    tail = sum(comb(n, i) for i in range(lost + 1, n + 1))
    return float((tail + 0.5 * comb(n, lost)) / 2**n)


def tango_lower(gained: int, lost: int, n: int, alpha: float = ALPHA) -> float:
    """Tango's score lower bound (1998) of the difference of paired proportions, (gained - lost) / n; -1 with no items.

    Unlike the standard error, it does not collapse to certainty when nothing differed.
    """
    if n == 0:
        return -1.0
    z = float(stats.norm.ppf(1 - alpha))

    def score(delta: float) -> float:
        b = -gained - lost + (2 * n - gained + lost) * delta
        c = -lost * delta * (1 - delta)
        q = (np.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return float((gained - lost - n * delta) / np.sqrt(max(variance, 1e-300)))

    low, high = -1.0 + 1e-12, (gained - lost) / n
    for _ in range(80):  # score() falls in delta
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > z else (low, middle)
    return (low + high) / 2

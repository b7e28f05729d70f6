"""llama.cpp's KL-divergence metric set, with errors that know that tokens of one document are not independent.

Formulas are those of `llama-perplexity --kl-divergence` (tools/perplexity/perplexity.cpp): perplexities with the
covariance of the pair, the divergence's mean, maximum and percentiles, the change of the given token's probability
(delta p) and its root mean square, and how often both choose the same token. Its error bars take positions as
independent; here the standard error of a ratio over documents is taken (Cochran), with the tokens as weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracles.result import Metric

Values = npt.NDArray[np.float64]
KLD_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)
DP_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)
MIN_POSITIONS = 100
Z = 1.959964


@dataclass(frozen=True)
class Positions:
    """Reference p against tested q, one entry a position.

    Attributes:
        document: which text the position is in; equal numbers are resampled together.
        kld: KL(p || q), nats; a lower bound when `covered` is below 1.
        logp: ln p of the given token.
        logq: ln q of the given token.
        same_top: both have the same most likely token.
        covered: p's mass that was compared token by token; the rest was compared as one.
    """

    document: npt.NDArray[np.int64]
    kld: Values
    logp: Values
    logq: Values
    same_top: npt.NDArray[np.bool_]
    covered: Values

    def __len__(self) -> int:
        return len(self.kld)


def kl_metrics(positions: Positions) -> dict[str, Metric]:
    """The whole set. Raises ValueError under 100 positions, on unequal lengths or on a number that is not finite."""
    columns = (positions.document, positions.logp, positions.logq, positions.same_top, positions.covered)
    if any(len(column) != len(positions) for column in columns):
        raise ValueError("columns of positions differ in length")
    if len(positions) < MIN_POSITIONS:
        raise ValueError(f"{len(positions)} positions are too few: {MIN_POSITIONS} at least")
    for column in (positions.kld, positions.logp, positions.logq, positions.covered):
        if not np.isfinite(column).all():
            raise ValueError("a number that is not finite is among the positions")
    dp = np.exp(positions.logq) - np.exp(positions.logp)
    metrics = _perplexities(positions) | _distribution("kld", positions.kld, KLD_PERCENTILES, positions, "nats")
    metrics["kld_max"] = _plain(positions.kld.max(), "nats", len(positions))
    metrics |= _distribution("delta_p", dp, DP_PERCENTILES, positions, "probability")
    metrics["delta_p_max"] = _plain(dp.max(), "probability", len(dp))
    metrics["delta_p_min"] = _plain(dp.min(), "probability", len(dp))
    metrics["delta_p_rms"] = _root(document_mean(dp**2, positions.document, "probability"))
    metrics["same_top"] = document_mean(positions.same_top.astype(float), positions.document, "share")
    metrics["covered_mass"] = document_mean(positions.covered, positions.document, "share")
    return metrics


def full_kld(logits_p: Values, logits_q: Values) -> Values:
    """KL(p || q) of each row of raw logits [n, vocab], in nats."""
    logp, logq = (x - _lse(x)[:, None] for x in (logits_p, logits_q))
    divergence: Values = np.sum(np.exp(logp) * (logp - logq), axis=1)
    return divergence


def bucketed_kld(p: Mapping[int, float], q: Mapping[int, float], smallest: float) -> tuple[float, float]:
    """Lower bound of KL(p || q) from some ids, everything else merged into one bucket (data processing).

    Args:
        p: id -> ln p; the reference's.
        q: id -> ln q; the engine's. Ids in only one of them go into the bucket.
        smallest: ln of the least mass a bucket is given, so that a rounding to 0 is no infinity.

    Returns:
        the bound in nats, and the mass of p that was compared token by token.
    """
    shared = [token for token in p if token in q]
    logp = np.array([p[token] for token in shared])
    logq = np.array([q[token] for token in shared])
    covered = float(np.exp(logp).sum())
    rest = [max(1.0 - float(np.exp(x).sum()), float(np.exp(smallest))) for x in (logp, logq)]
    bound = float(np.sum(np.exp(logp) * (logp - logq))) + rest[0] * float(np.log(rest[0] / rest[1]))
    return max(bound, 0.0), min(covered, 1.0)


def _perplexities(positions: Positions) -> dict[str, Metric]:
    """Both perplexities and their ratio, whose error uses that both saw the same tokens."""
    nll_p, nll_q = -positions.logp, -positions.logq
    of_p, of_q, more = (document_mean(x, positions.document, "nats/token") for x in (nll_p, nll_q, nll_q - nll_p))
    correlation = float(np.corrcoef(nll_p, nll_q)[0, 1]) if nll_p.std() > 0 and nll_q.std() > 0 else None
    return {
        "ppl_reference": _exponential(of_p),
        "ppl": _exponential(of_q),
        "ppl_ratio": _exponential(more),
        "ppl_log_ratio": more,
        "ppl_correlation": Metric(value=correlation, unit="", n=len(positions)),
    }


def _distribution(
    name: str, values: Values, percentiles: Sequence[float], positions: Positions, unit: str
) -> dict[str, Metric]:
    metrics = {f"{name}_mean": document_mean(values, positions.document, unit)}
    for percentile, value in zip(percentiles, np.percentile(values, percentiles), strict=True):
        metrics[f"{name}_p{percentile:g}"] = _plain(value, unit, len(values))
    return metrics


def document_mean(values: Values, document: npt.NDArray[np.int64], unit: str) -> Metric:
    """Mean over positions; its error over documents: sqrt(sum_d (sum_{i in d} (x_i - mean))^2 / n^2 * D/(D-1))."""
    mean, n = float(values.mean()), len(values)
    _, index = np.unique(document, return_inverse=True)
    totals = np.bincount(index, values - mean)
    count = len(totals)
    if count < 2:
        return Metric(value=mean, unit=unit, n=n)
    error = float(np.sqrt((totals**2).sum() * count / (count - 1)) / n)
    return Metric(value=mean, unit=unit, n=n, ci_low=mean - Z * error, ci_high=mean + Z * error)


def _exponential(metric: Metric) -> Metric:
    low, value, high = (None if x is None else float(np.exp(x)) for x in (metric.ci_low, metric.value, metric.ci_high))
    return Metric(value=value, unit="", n=metric.n, ci_low=low, ci_high=high)


def _root(metric: Metric) -> Metric:
    low, value, high = (
        None if x is None else float(np.sqrt(max(x, 0.0))) for x in (metric.ci_low, metric.value, metric.ci_high)
    )
    return Metric(value=value, unit=metric.unit, n=metric.n, ci_low=low, ci_high=high)


def _plain(value: float, unit: str, n: int) -> Metric:
    return Metric(value=float(value), unit=unit, n=n)


def _lse(logits: Values) -> Values:
    best = logits.max(axis=1)
    total: Values = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
    return total

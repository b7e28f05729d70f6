"""As right: the candidate (E) against the baseline (N), both against the BF16 reference. Pure functions of arrays.

`token_margin <= 1.05x` reads: E's mean margin is at most 1.05 times the larger of N's mean margin and the noise
floor's upper bound. The floor (the reference against itself under other numerics) is there because honest engines of
equal quality differ: BF16 reads 0.0007 nats, a good 8-bit one 0.004, and their ratio says nothing about quality. The
interval decides, never the point, and a document (one prompt with all answers to it) is what is resampled: tokens of
one text are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from harness.divergence import Divergence, Documents
from harness.statistics import ALPHA, Array, document_sums, holm, mcnemar_mid_p, tango_lower
from harness.verdict import Status

MIN_DOCUMENTS = 30  # fewer give no bootstrap distribution worth a decision
MIN_SHARED = 0.99  # of the documents, scored in both arms
POOLED = "all text"


@dataclass(frozen=True)
class TaskScores:
    """Paired task scores in [0, 1], one entry an item (repeats averaged); failed requests score 0, never missing."""

    item: npt.NDArray[np.str_]
    cluster: npt.NDArray[np.str_]
    baseline: Array
    candidate: Array


@dataclass(frozen=True)
class Judged:
    """An accuracy decision, in the criterion's unit."""

    status: Status
    reason: str
    observed: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    baseline: float | None = None
    candidate: float | None = None
    noise: float | None = None
    hint: str = ""
    needed: int | None = None  # documents or items that would decide, where the decision is open


def _invalid(reason: str) -> Judged:
    return Judged(Status.INVALID, reason)


# --- divergence ----------------------------------------------------------------------------------------------------


def judge_divergence(
    arms: Divergence, bar: float, *, unit: str = "x", alpha: float = ALPHA, resamples: int = 2000, seed: int = 0
) -> Judged:
    """Non-inferiority of E's mean divergence per token.

    PASS: the upper bound over all text is at most `bar` and no stratum fails. FAIL: the lower bound over all text, or
    over one stratum, is over `bar` after Holm over these. Otherwise INCONCLUSIVE.

    Args:
        arms: documents of E, N and the floor.
        bar: times the larger of N's mean and the floor's bound (unit x), or nats a token (unit nats).
        unit: `x` or `nats`.
        alpha: one-sided error.
        resamples: bootstrap resamples.
        seed: of the resampling.
    """
    problem = _unusable(arms)
    if problem:
        return _invalid(problem)
    arms = arms.at_temperature_0()
    floor = floor_bound(arms.floor, seed=seed) if arms.floor is not None else 0.0
    strata, rows, group = _document_table(arms)
    sizes = np.array([len(rows), *np.bincount(group, minlength=len(strata))])[: len(strata) + (len(strata) > 1)]
    judged = np.flatnonzero(sizes >= MIN_DOCUMENTS)
    scale = floor if unit == "x" else None
    totals = np.stack([rows[group == g].sum(axis=0) for g in range(len(strata))])
    means = _means(totals)
    observed = _statistic(means, scale)
    drawn = _statistic(_means(document_sums(rows, group, resamples=resamples, seed=seed)), scale)
    tail = _expanded(alpha, len(rows))
    low, high = (float(v) for v in np.quantile(drawn[:, 0], [tail, 1 - tail]))
    p = (1 + (drawn[:, judged] <= bar).sum(axis=0)) / (resamples + 1)
    failing = sorted(judged[holm(p) <= alpha], key=lambda g: -observed[g]) if len(judged) else []

    names = [POOLED, *strata]
    suffix = "x" if unit == "x" else f" {unit}"
    interval = f"{observed[0]:.3g}{suffix} (bounds {low:.3g} and {high:.3g}), allowed {bar:.3g}{suffix}"
    # All text, group 0, is in the interval already.
    worst = [f"{names[g]} ({observed[g]:.3g}{suffix} on {sizes[g]} documents)" for g in failing[:3] if g]
    status, reason = _decide(high <= bar, low > bar, interval, worst if failing else None, len(rows), len(judged))
    if status is Status.FAIL and arms.floor is None and unit == "x":
        status, reason = Status.INVALID, f"The noise floor was not measured, so this is not proven. {reason}"
    candidate, baseline = float(means[0, 0]), float(means[0, 1])
    reason += f" Nats a token: candidate {candidate:.4g}, baseline {baseline:.4g}, floor {floor:.4g}."
    small = [names[g] for g in np.flatnonzero(sizes < MIN_DOCUMENTS) if g]
    reason += f" Too few documents to judge alone: {', '.join(small)}." if small else ""
    spread = float(np.std(np.log(np.maximum(drawn[:, 0], 1e-12)), ddof=1))
    result = Judged(status, reason, float(observed[0]), low, high, len(rows), baseline, candidate, spread)
    if status is not Status.INCONCLUSIVE:
        return result
    logs = [float(np.log(max(v, 1e-12))) for v in (observed[0], low, high, bar)]
    needed, hint = _needed("documents", logs[0], logs[1], logs[2], logs[3], len(rows))
    return replace(result, needed=needed, hint=hint)


def _decide(
    under: bool, over: bool, interval: str, worst: list[str] | None, documents: int, judged: int
) -> tuple[Status, str]:
    """Status and its sentence.

    `under`, `over`: where the whole interval over all text lies. `worst`: strata that fail; None when nothing does.
    """
    if documents < MIN_DOCUMENTS:
        return Status.INCONCLUSIVE, f"Only {documents} documents, {MIN_DOCUMENTS} are needed: {interval}."
    if worst:
        return Status.FAIL, f"Worse than allowed in {', '.join(worst)}; over all text {interval}."
    if worst is not None:
        return Status.FAIL, f"Worse than allowed: {interval}."
    if under:
        return Status.PASS, f"Within what is allowed: {interval}."
    if over:
        return Status.INCONCLUSIVE, f"Over the bar alone, not beyond doubt among {judged} kinds of text: {interval}."
    return Status.INCONCLUSIVE, f"The interval straddles the bar: {interval}."


def floor_bound(floor: Documents, *, resamples: int = 2000, seed: int = 0) -> float:
    """One-sided 95 % upper bound of the floor's mean divergence per token, in nats."""
    _, item = np.unique(floor.item, return_inverse=True)
    rows = _sum_by(item, np.stack([floor.tokens, floor.nats], axis=1))
    draws = document_sums(rows, np.zeros(len(rows), dtype=np.int64), resamples=resamples, seed=seed)[:, 0]
    return float(np.quantile(draws[:, 1] / draws[:, 0], 1 - _expanded(ALPHA, len(rows))))


def _expanded(alpha: float, n: int) -> float:
    """Percentile that a bootstrap of n documents must use for level alpha: t for z, n for n-1 (Hesterberg 2015)."""
    return float(stats.norm.cdf(np.sqrt(n / max(n - 1, 1)) * stats.t.ppf(alpha, max(n - 1, 1))))


def _unusable(arms: Divergence) -> str | None:
    for name, arm in (("candidate", arms.candidate), ("baseline", arms.baseline), ("floor", arms.floor)):
        if arm is None:
            continue
        if len(arm.tokens) == 0:
            return f"No answer of the {name} was scored under the reference."
        if not (np.isfinite(arm.nats).all() and np.isfinite(arm.tokens).all()):
            return f"The {name}'s divergence has a value that is not a finite number."
        if (arm.tokens < 1).any() or (arm.nats < 0).any():
            return f"The {name}'s divergence has an answer without tokens or a negative sum."
        if len(np.unique(arm.keys())) != len(arm.tokens):
            return f"The {name}'s scored answers name one request twice."
    candidate, baseline = arms.candidate.keys(), arms.baseline.keys()
    shared = len(np.intersect1d(candidate, baseline)) / len(np.union1d(candidate, baseline))
    if shared < MIN_SHARED:
        return (
            f"Only {shared:.1%} of the scored requests were scored in both arms ({len(candidate)} of the candidate, "
            f"{len(baseline)} of the baseline), so they are not comparable."
        )
    return None


def _document_table(arms: Divergence) -> tuple[list[str], Array, npt.NDArray[np.int64]]:
    """Strata, then for each document its sums (E's tokens and nats, N's tokens and nats) and the index of its stratum.

    Strata with too few documents are put together as the last one.
    """
    both = (arms.candidate, arms.baseline)
    strata, stratum = np.unique(np.concatenate([arm.stratum for arm in both]), return_inverse=True)
    items, item = np.unique(np.concatenate([arm.item for arm in both]), return_inverse=True)
    keys, document = np.unique(stratum * len(items) + item, return_inverse=True)
    cells = np.concatenate([np.stack([arm.tokens, arm.nats], axis=1) for arm in both])
    arm = np.repeat([0, 1], [len(both[0].tokens), len(both[1].tokens)])[:, None]
    rows = _sum_by(document, np.concatenate([cells * (arm == 0), cells * (arm == 1)], axis=1))

    group = keys // len(items)
    large = np.bincount(group, minlength=len(strata)) >= MIN_DOCUMENTS
    names = [str(name) for name in strata[large]]
    if large.all():
        return names, rows, group
    if (~large).sum() == 1:
        names.append(str(strata[~large][0]))
    else:
        names.append(f"smaller strata together ({', '.join(str(name) for name in strata[~large][:8])})")
    position = np.where(large, np.cumsum(large) - 1, large.sum())
    return names, rows, position[group]


def _sum_by(index: npt.NDArray[np.int64], columns: Array) -> Array:
    """Sum the rows that share an index: [indices, columns]."""
    return np.stack([np.bincount(index, weights=column) for column in columns.T], axis=1)


def _means(sums: Array) -> Array:
    """From sums [..., strata, 4] to nats a token [..., 1 + strata, 2 arms], all text first; one stratum is all text."""
    pooled = sums.sum(axis=-2, keepdims=True)
    table = pooled if sums.shape[-2] == 1 else np.concatenate([pooled, sums], axis=-2)
    return np.asarray(table[..., 1::2] / np.maximum(table[..., ::2], 1e-300))


def _statistic(means: Array, floor: float | None) -> Array:
    """E over the larger of N and the floor, or E itself without one: the last axis (arms) goes."""
    if floor is None:
        return np.asarray(means[..., 0])
    scale = np.maximum(means[..., 1], max(floor, 1e-12))
    return np.asarray(means[..., 0] / scale)


def _needed(what: str, observed: float, low: float, high: float, bar: float, n: int) -> tuple[int | None, str]:
    """How many documents or items would narrow the interval to the bar, widths shrinking with their square root."""
    gap, width = abs(bar - observed), (high - observed if observed <= bar else observed - low)
    if gap < 0.05 * width:
        return None, f"The candidate sits on the bar: no reasonable number of {what} decides this."
    needed = int(np.ceil(1.2 * n * (width / gap) ** 2))  # 1.2: the next interval is not centred where this one is
    return max(needed, n + 1), f"About {max(needed, n + 1):,} {what} would decide; this run has {n:,}."


# --- tasks ----------------------------------------------------------------------------------------------------------


def judge_tasks(scores: TaskScores, bar_pt: float, *, alpha: float = ALPHA) -> Judged:
    """Paired non-inferiority of task scores: E - N in points must be proven over `bar_pt` (e.g. -1.0).

    The bounds are the wider of a clustered Student's t (items of one passage or template move together) and, for
    right-or-wrong scores, Tango's score bound, which stays honest when few items differ.
    """
    n = len(scores.item)
    both = np.concatenate([scores.baseline, scores.candidate])
    if n == 0:
        return _invalid("No task item was graded in both arms.")
    if not np.isfinite(both).all() or both.min() < 0 or both.max() > 1:
        return _invalid("A task score is missing or outside 0 to 1; a request that failed must score 0.")
    if len(np.unique(scores.item)) != n:
        return _invalid("A task item appears twice; average its repeats first.")
    difference = scores.candidate - scores.baseline
    mean, error, clusters = _clustered(difference, scores.cluster)
    lost, gained = int((difference < 0).sum()), int((difference > 0).sum())
    t = float(stats.t.ppf(1 - alpha, max(clusters - 1, 1)))
    low, high = mean - t * error, mean + t * error
    if np.isin(both, (0.0, 1.0)).all():
        low, high = min(low, tango_lower(gained, lost, n, alpha)), max(high, -tango_lower(lost, gained, n, alpha))
    elif clusters < MIN_DOCUMENTS:
        low, high = -1.0, 1.0
    observed, low, high = 100 * mean, 100 * low, 100 * high
    status = Status.PASS if low >= bar_pt else Status.FAIL if high < bar_pt else Status.INCONCLUSIVE
    reason = (
        f"Candidate minus baseline {observed:+.2f} pt (bounds {low:+.2f} and {high:+.2f}), allowed {bar_pt:+.2f} pt, "
        f"on {n} items; {lost} lost and {gained} gained (mid-p McNemar {mcnemar_mid_p(lost, gained):.3f})."
    )
    means = 100 * float(scores.baseline.mean()), 100 * float(scores.candidate.mean())
    if status is not Status.INCONCLUSIVE:
        return Judged(status, reason, observed, low, high, n, *means, 100 * error)
    needed, hint = _needed("items", -observed, -high, -low, -bar_pt, n)
    return Judged(status, reason, observed, low, high, n, *means, 100 * error, hint, needed)


def _clustered(difference: Array, cluster: npt.NDArray[np.str_]) -> tuple[float, float, int]:
    """Mean, its cluster-robust standard error (Miller 2024, with the g/(g-1) correction) and the number of clusters."""
    mean = float(difference.mean())
    _, index = np.unique(cluster, return_inverse=True)
    sums = np.bincount(index, weights=difference - mean)
    g = len(sums)
    variance = float((sums**2).sum()) / len(difference) ** 2 * (g / (g - 1) if g > 1 else 1.0)
    return mean, float(np.sqrt(variance)) if g > 1 else 1.0, g

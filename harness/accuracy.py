"""As right: the candidate (E) against the baseline (N), both against the BF16 reference. Pure functions of arrays.

`token_margin <= 1.05x` reads: E's mean margin is at most 1.05 times the larger of N's mean margin and the noise
floor's upper bound. The floor (the reference against itself under other numerics) is there because honest engines of
equal quality differ: BF16 reads 0.0007 nats, a good 8-bit one 0.004, and their ratio says nothing about quality. The
interval decides, never the point, and a document (one prompt with all answers to it) is what is resampled: tokens of
one text are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from harness.statistics import ALPHA, Array, document_sums, holm, mcnemar_mid_p, tango_lower
from harness.verdict import Status

MIN_DOCUMENTS = 30  # fewer give no bootstrap distribution worth a decision
MIN_SHARED = 0.99  # of the documents, scored in both arms
POOLED = "all text"
OTHER = "small strata together"


@dataclass(frozen=True)
class Documents:
    """One arm's scored answers, one entry a request; all arrays have the same length.

    `nats` is the sum over the answer's `tokens` of the margin (or the KL divergence) under the reference. `item` names
    the prompt: answers to one prompt are resampled together.
    """

    pair: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    item: npt.NDArray[np.str_]
    stratum: npt.NDArray[np.str_]
    tokens: Array
    nats: Array

    def keys(self) -> list[tuple[int, int]]:
        """(pair, line) of each entry: equal in both arms for the same request."""
        return list(zip(self.pair.tolist(), self.line.tolist(), strict=True))


@dataclass(frozen=True)
class Divergence:
    """The three arms of one divergence measure. `floor` is a sub-sample, or None when it was not measured."""

    candidate: Documents
    baseline: Documents
    floor: Documents | None


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
    floor = floor_bound(arms.floor, seed=seed) if arms.floor is not None else 0.0
    names, sums, documents = _document_table(arms)
    means = _means(sums.sum(axis=0)[None, :])[0]
    draws = _means(document_sums(sums, resamples=resamples, seed=seed))
    scale = floor if unit == "x" else None
    observed, drawn = _statistic(means, scale), _statistic(draws, scale)

    tail = _expanded(alpha, documents[0])
    low, high = (float(v) for v in np.quantile(drawn[:, 0], [tail, 1 - tail]))
    worse = holm((1 + (drawn <= bar).sum(axis=0)) / (resamples + 1)) <= alpha
    failing = [i for i in np.argsort(-observed) if worse[i]]
    status, reason = _decide(float(observed[0]), low, high, bar, unit, [names[i] for i in failing])
    if failing:
        reason += " " + "; ".join(
            f"{names[i]}: {observed[i]:.3g}{_u(unit)} on {documents[i]} documents" for i in failing[:3]
        )
        reason += "."
    if status is Status.FAIL and arms.floor is None and unit == "x":
        status, reason = Status.INVALID, "The noise floor was not measured, so a FAIL is not proven: " + reason
    judged, baseline = float(means[0, 0]), float(means[0, 1])
    reason += f" Mean divergence per token: candidate {judged:.4g}, baseline {baseline:.4g}, floor {floor:.4g} nats."
    reason += _unjudged(arms, names)
    spread = float(np.std(np.log(np.maximum(drawn[:, 0], 1e-12)), ddof=1))
    point, n = float(observed[0]), documents[0]
    if status is not Status.INCONCLUSIVE:
        return Judged(status, reason, point, low, high, n, baseline, judged, spread)
    logs = [float(np.log(max(v, 1e-12))) for v in (point, low, high, bar)]
    needed, hint = _needed("documents", logs[0], logs[1], logs[2], logs[3], n)
    return Judged(status, reason, point, low, high, n, baseline, judged, spread, hint, needed)


def floor_bound(floor: Documents, *, resamples: int = 2000, seed: int = 0) -> float:
    """One-sided 95 % upper bound of the floor's mean divergence per token, in nats."""
    sums = _by_item(floor.item, np.stack([floor.tokens, floor.nats], axis=1))
    draws = document_sums(sums, resamples=resamples, seed=seed)
    return float(np.quantile(draws[:, 1] / draws[:, 0], 1 - _expanded(ALPHA, len(sums))))


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
        if len(set(arm.keys())) != len(arm.tokens):
            return f"The {name}'s scored answers name one request twice."
    candidate, baseline = set(arms.candidate.keys()), set(arms.baseline.keys())
    shared = len(candidate & baseline) / len(candidate | baseline)
    if shared < MIN_SHARED:
        return (
            f"Only {shared:.1%} of the scored requests were scored in both arms "
            f"({len(candidate)} of the candidate, {len(baseline)} of the baseline), so they are not comparable."
        )
    return None


def _document_table(arms: Divergence) -> tuple[list[str], Array, list[int]]:
    """Sums a document: [documents, 4 * groups], groups being all text, then each stratum that is large enough.

    Columns of a group: E's tokens and nats, N's tokens and nats.
    """
    items = np.concatenate([arms.candidate.item, arms.baseline.item])
    strata = np.concatenate([arms.candidate.stratum, arms.baseline.stratum])
    is_candidate = np.arange(len(items)) < len(arms.candidate.item)
    tokens = np.concatenate([arms.candidate.tokens, arms.baseline.tokens])
    nats = np.concatenate([arms.candidate.nats, arms.baseline.nats])
    columns = np.stack(
        [tokens * is_candidate, nats * is_candidate, tokens * ~is_candidate, nats * ~is_candidate], axis=1
    )

    groups = {POOLED: np.ones(len(items), dtype=bool)}
    small = np.zeros(len(items), dtype=bool)
    for name in np.unique(strata):
        member = strata == name
        if len(np.unique(items[member])) >= MIN_DOCUMENTS:
            groups[str(name)] = member
        else:
            small |= member
    if len(groups) > 1 and len(np.unique(items[small])) >= MIN_DOCUMENTS:
        groups[OTHER] = small
    if len(groups) == 2:  # one stratum is all text again
        groups = {POOLED: groups[POOLED]}
    sums = np.concatenate([_by_item(items, columns * member[:, None]) for member in groups.values()], axis=1)
    return list(groups), sums, [len(np.unique(items[member])) for member in groups.values()]


def _by_item(items: npt.NDArray[np.str_], columns: Array) -> Array:
    """Sum the rows of each item: [items, columns]."""
    _, index = np.unique(items, return_inverse=True)
    return np.stack([np.bincount(index, weights=column) for column in columns.T], axis=1)


def _means(sums: Array) -> Array:
    """Mean divergence per token: [resamples, groups, 2 arms]."""
    table = sums.reshape(len(sums), -1, 2, 2)
    return np.asarray(table[..., 1] / np.maximum(table[..., 0], 1e-300))


def _statistic(means: Array, floor: float | None) -> Array:
    """E over the larger of N and the floor, or E itself without one: the last axis (arms) goes."""
    if floor is None:
        return np.asarray(means[..., 0])
    scale = np.maximum(means[..., 1], floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(means[..., 0] == 0, 0.0, np.minimum(means[..., 0] / scale, 1e12))


def _u(unit: str) -> str:
    return unit if unit == "x" else f" {unit}"


def _decide(observed: float, low: float, high: float, bar: float, unit: str, failing: list[str]) -> tuple[Status, str]:
    interval = f"{observed:.3g}{_u(unit)} (bounds {low:.3g} and {high:.3g}), allowed {bar:.3g}{_u(unit)}"
    if failing:
        where = "" if POOLED in failing else f" overall, but worse in {failing[0]}"
        return Status.FAIL, f"The candidate diverges from the reference by {interval}{where}."
    if high <= bar:
        return Status.PASS, f"The candidate diverges from the reference by at most what is allowed: {interval}."
    return Status.INCONCLUSIVE, f"The interval straddles the bar: {interval}."


def _unjudged(arms: Divergence, names: list[str]) -> str:
    strata = {str(s) for s in np.unique(arms.baseline.stratum)}
    if len(strata) < 2 or OTHER in names:
        return ""
    small = sorted(strata - set(names))
    return f" Too few documents to judge alone (under {MIN_DOCUMENTS}): {', '.join(small[:8])}." if small else ""


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

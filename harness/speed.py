"""Faster: from the visits' measurements to one check for every speed criterion and cell. Pure.

Speed-up is baseline over candidate for latencies and candidate over baseline for rates, so 1.20x means the same
everywhere. What the candidate leaves unmeasurable (a percentile among its failures, a rate of nothing) is its FAIL;
what the baseline or the judge leaves unmeasurable is INVALID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.criteria import CellScope
from harness.criterion import LATENCIES, Criterion
from harness.measurement import CellMeasurement, Role, VisitMeasurement
from harness.statistics import Array, Decisions, Look, judge
from harness.verdict import Check, Family, Status

SERVED_SHARE = 0.999  # of the asked requests; with fewer than 1,000 in a cell: all of them
TPOT_COVER = 0.9  # candidate's answers with a TPOT, as a share of the baseline's
VALUE_UNITS = {"goodput": "req/s", "request_throughput": "req/s", "peak_memory": "MiB"}

Visits = Mapping[tuple[int, str], VisitMeasurement]
Blocked = Mapping[str | None, str]


@dataclass(frozen=True)
class Series:
    """One criterion in one cell over all pairs. `d` is log(observed / bar), larger is better."""

    criterion: Criterion
    cell: str | None
    baseline: Array
    candidate: Array
    d: Array


@dataclass(frozen=True)
class Unjudged:
    """Why a criterion has no series: INVALID (the judge's or the baseline's fault) or FAIL (the candidate's)."""

    criterion: Criterion
    cell: str | None
    status: Status
    reason: str


def value(criterion: Criterion, cell: CellMeasurement, gpus: int | None) -> float | None:
    """The number a criterion is about, in its own unit (ms, tokens/s, req/s); None when it was not measured."""
    if criterion.metric in LATENCIES:
        distribution = getattr(cell, f"{criterion.metric}_ms")
        number: float | None = getattr(distribution, criterion.stat or "p50")
        return number
    if criterion.metric == "throughput_per_gpu":
        rate = cell.output_throughput
        return rate / gpus if rate is not None and gpus else None
    of_cell: float | None = getattr(cell, criterion.metric)
    return of_cell


def _visit_value(criterion: Criterion, cell: str | None, visit: VisitMeasurement, gpus: int | None) -> float | None:
    if cell is not None:
        return value(criterion, visit.cells[cell], gpus)
    peaks = [measurement.signals.get("peak_memory_mib") for measurement in visit.cells.values()]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def make_series(
    criterion: Criterion,
    cell: str | None,
    visits: Visits,
    pairs: Sequence[int],
    gpus: Mapping[Role, int],
    blocked: Blocked,
) -> Series | Unjudged:
    """Line up one criterion's numbers over the pairs, or say why that cannot be done."""
    obstacle = blocked.get(None) or blocked.get(cell)
    if obstacle:
        return Unjudged(criterion, cell, Status.INVALID, obstacle)
    numbers: dict[Role, list[float | None]] = {
        role: [_visit_value(criterion, cell, visits[pair, role], gpus.get(role)) for pair in pairs]
        for role in ("baseline", "candidate")
    }
    if criterion.relative:
        for pair, number in zip(pairs, numbers["baseline"], strict=True):
            if not _positive(number):
                return Unjudged(criterion, cell, Status.INVALID, _absent("baseline", criterion, pair, number))
    for pair, number in zip(pairs, numbers["candidate"], strict=True):
        if not _positive(number):
            fault = Status.INVALID if _judges_fault(criterion, number) else Status.FAIL
            return Unjudged(criterion, cell, fault, _absent("candidate", criterion, pair, number))
    sparse = _sparse_tpot(criterion, cell, visits, pairs)
    if sparse:
        return Unjudged(criterion, cell, Status.FAIL, sparse)
    candidate = np.array(numbers["candidate"], dtype=float)
    baseline = np.array([n if _positive(n) else np.nan for n in numbers["baseline"]], dtype=float)
    return Series(criterion, cell, baseline, candidate, _over_bar(criterion, baseline, candidate))


def _positive(number: float | None) -> bool:
    return number is not None and bool(np.isfinite(number)) and number > 0


def _judges_fault(criterion: Criterion, number: float | None) -> bool:
    """NaN never comes from an engine, and memory is measured on its machine by the judge."""
    return criterion.metric == "peak_memory" or (number is not None and not np.isfinite(number))


def _absent(arm: str, criterion: Criterion, pair: int, number: float | None) -> str:
    what = "was not measured" if number is None else f"reads {number:g}"
    why = " (too many of its requests were not served, or nothing was there to time)" if number is None else ""
    return f"The {arm}'s {criterion.name} {what} in pair {pair}{why}."


def _sparse_tpot(criterion: Criterion, cell: str | None, visits: Visits, pairs: Sequence[int]) -> str | None:
    """Answers sent in one event have no TPOT; an engine must not hide its slow ones that way."""
    if criterion.metric != "tpot" or cell is None:
        return None
    timed = [sum(visits[pair, role].cells[cell].tpot_ms.count for pair in pairs) for role in ("baseline", "candidate")]
    served = [sum(visits[pair, role].cells[cell].served for pair in pairs) for role in ("baseline", "candidate")]
    shares = [t / max(s, 1) for t, s in zip(timed, served, strict=True)]
    if shares[1] >= TPOT_COVER * shares[0]:
        return None
    return (
        f"Only {shares[1]:.0%} of the candidate's answers came in two events or more and have a TPOT; "
        f"of the baseline's {shares[0]:.0%}."
    )


def _over_bar(criterion: Criterion, baseline: Array, candidate: Array) -> Array:
    bar = np.log(criterion.value)
    observed = np.log(candidate) - (np.log(baseline) if criterion.relative else 0.0)
    if criterion.metric in LATENCIES and criterion.relative:
        observed = -observed  # a speed-up: baseline over candidate
    return np.asarray(observed - bar if criterion.op == ">=" else bar - observed)


# --- checks --------------------------------------------------------------------------------------------------------


def judge_series(series: Sequence[Series], pairs: Sequence[int], look: Look) -> tuple[Check, ...]:
    """Judge all series together (Holm needs the whole family) and word each result."""
    if not series:
        return ()
    decisions = judge(np.stack([s.d for s in series]), look.alpha)
    return tuple(_check(one, i, decisions, pairs, look, len(series)) for i, one in enumerate(series))


def _check(series: Series, i: int, decisions: Decisions, pairs: Sequence[int], look: Look, family: int) -> Check:
    criterion, n = series.criterion, len(pairs)
    estimate, sd = float(decisions.estimate[i]), float(decisions.sd[i])
    status = Status.PASS if decisions.passed[i] else Status.FAIL if decisions.failed[i] else Status.INCONCLUSIVE
    low, high = _back(criterion, float(decisions.lower[i])), _back(criterion, float(decisions.upper[i]))
    if criterion.op == "<=":
        low, high = high, low
    worst = pairs[int(np.argmin(series.d))]
    error = sd / np.sqrt(n)
    return Check(
        check=criterion.check_id(series.cell),
        family=Family.SPEED,
        status=status,
        criterion=criterion.text,
        metric=criterion.name,
        cell=series.cell,
        unit=criterion.unit,
        observed=_back(criterion, estimate),
        required=criterion.value,
        ci_low=low,
        ci_high=high,
        confidence=look.confidence,
        n=n,
        distance=float(np.expm1(estimate)),
        noise=sd if np.isfinite(sd) else None,
        distance_noise=float(estimate / error) if np.isfinite(sd) and error > 0 else None,
        baseline=float(np.median(series.baseline)) if np.isfinite(series.baseline).all() else None,
        candidate=float(np.median(series.candidate)),
        value_unit=_value_unit(criterion),
        evidence=tuple(f"pairs/{worst:02d}/{role}/measurements.json" for role in ("baseline", "candidate")),
        reason=_reason(criterion, status, i, decisions, n, family),
    )


def _back(criterion: Criterion, d: float) -> float | None:
    """From log over the bar to the criterion's unit."""
    return criterion.value * float(np.exp(d if criterion.op == ">=" else -d)) if np.isfinite(d) else None


def _value_unit(criterion: Criterion) -> str:
    return "ms" if criterion.metric in LATENCIES else VALUE_UNITS.get(criterion.metric, "tokens/s")


def show(number: float | None, unit: str) -> str:
    """`1.21x`, `143 ms`: three digits and the unit."""
    if number is None:
        return "unknown"
    if unit == "share":
        return f"{number:.1%}"
    return f"{number:.2f}x" if unit == "x" else f"{number:.3g} {unit}".strip()


def _reason(criterion: Criterion, status: Status, i: int, decisions: Decisions, n: int, family: int) -> str:
    def number(d: float) -> str:
        return show(_back(criterion, float(d)), criterion.unit)

    estimate, bar = number(decisions.estimate[i]), show(criterion.value, criterion.unit)
    nearest, farthest = number(decisions.lower[i]), number(decisions.upper[i])
    if n < 2:
        return f"{estimate} against {bar}, but one pair says nothing about noise."
    if status is Status.PASS:
        doubt = f" Student's t would only give {number(decisions.t_lower[i])}: look at the pairs."
        return f"{estimate}, at worst {nearest}, clears {bar} ({n} pairs)." + (
            doubt if decisions.t_lower[i] < 0 else ""
        )
    if status is Status.FAIL:
        return f"{estimate}, at best {farthest}, misses {bar} ({n} pairs; corrected for {family} checks)."
    if decisions.upper[i] < 0:
        return (
            f"{estimate}, at best {farthest}, is under {bar}, but not beyond doubt among {family} checks ({n} pairs)."
        )
    return f"{estimate}, between {nearest} and {farthest}, straddles {bar} ({n} pairs)."


def unjudged_check(missing: Unjudged) -> Check:
    """The check of a criterion that has no series."""
    criterion = missing.criterion
    return Check(
        check=criterion.check_id(missing.cell),
        family=Family.SPEED,
        status=missing.status,
        criterion=criterion.text,
        metric=criterion.name,
        cell=missing.cell,
        unit=criterion.unit,
        required=criterion.value,
        value_unit=_value_unit(criterion),
        reason=missing.reason,
    )


# --- load that was asked for ---------------------------------------------------------------------------------------


def served_checks(cells: Sequence[CellScope], visits: Visits, pairs: Sequence[int]) -> tuple[Check, ...]:
    """`served@cell` for the candidate (its FAIL), and `baseline-served@cell` where the baseline failed (INVALID)."""
    checks = []
    for scope in cells:
        for role in ("candidate", "baseline"):
            measured = [
                visits[pair, role].cells[scope.cell] for pair in pairs if scope.cell in visits[pair, role].cells
            ]
            asked, served = sum(m.asked for m in measured), sum(m.served for m in measured)
            broken = served < SERVED_SHARE * asked
            if role == "candidate" and measured:
                checks.append(_served("served", Family.HONESTY, Status.FAIL, scope.cell, measured, broken=broken))
            elif broken:
                checks.append(
                    _served("baseline-served", Family.VALIDITY, Status.INVALID, scope.cell, measured, broken=True)
                )
    return tuple(checks)


def _served(
    name: str, family: Family, fault: Status, cell: str, measured: Sequence[CellMeasurement], *, broken: bool
) -> Check:
    asked, served = sum(m.asked for m in measured), sum(m.served for m in measured)
    kinds: dict[str, int] = {}
    for measurement in measured:
        for kind, count in measurement.failures.items():
            kinds[kind] = kinds.get(kind, 0) + count
    how = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    arm = "candidate" if name == "served" else "baseline"
    return Check(
        check=f"{name}@{cell}",
        family=family,
        status=fault if broken else Status.PASS,
        criterion=f"served >= {SERVED_SHARE:.1%} of the requests asked",
        metric="served",
        cell=cell,
        unit="share",
        observed=served / asked if asked else None,
        required=SERVED_SHARE,
        n=asked,
        distance=served / asked / SERVED_SHARE - 1 if asked else None,
        reason=f"The {arm} served {served:,} of {asked:,} requests" + (f": {how}." if how else "."),
    )

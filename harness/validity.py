"""Was the run fit to be judged? Each named check looks at the judge's own side: AIPerf, the load, the two arms' totals.

What the candidate breaks is never found here: an engine must not be able to buy itself an INVALID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.measurement import CellMeasurement, VisitMeasurement
from harness.verdict import Check, Family, Status
from harness.workload import Cell

SUMMARY_SCHEMA = "1.4"
LENGTH_TOLERANCE = 0.005  # total output tokens of the two arms in a fixed-length cell
CACHE_TOLERANCE = 0.10  # share of prompt tokens served from cache, between the arms
LAG_TOLERANCE = 0.10  # how late AIPerf sent, over the median TTFT


def judge_validity(
    cells: Sequence[Cell], visits: Sequence[VisitMeasurement], summaries: Mapping[str, Mapping[str, Any] | None]
) -> tuple[Check, ...]:
    """Every validity check of a run. `summaries` maps `pairs/01/baseline phase` to AIPerf's summary of that phase."""
    checks = [_complete(cells, visits, summaries)]
    for cell in cells:
        baseline = _cells(visits, "baseline", cell.name)
        candidate = _cells(visits, "candidate", cell.name)
        if not baseline or not candidate:
            continue  # the gate itself refuses a missing cell
        if cell.profile.stop == "fixed":
            checks.append(_same_length(cell.name, baseline, candidate))
        checks.append(_same_cache(cell.name, baseline, candidate))
        if cell.request_rate is not None:
            checks.append(_sent_in_time(cell.name, baseline + candidate))
    return tuple(checks)


def _complete(
    cells: Sequence[Cell], visits: Sequence[VisitMeasurement], summaries: Mapping[str, Mapping[str, Any] | None]
) -> Check:
    """AIPerf finished every phase of the baseline; a candidate that hangs is judged by what it left unserved."""
    broken = []
    for visit in visits:
        if visit.role != "baseline":
            continue
        for cell in cells:
            where = f"pairs/{visit.pair:02d}/{visit.role} {cell.name}"
            summary = summaries.get(where)
            if summary is None:
                broken.append(f"{where} has no AIPerf summary")
            elif summary.get("schema_version") != SUMMARY_SCHEMA:
                broken.append(f"{where} has summary schema {summary.get('schema_version')}, {SUMMARY_SCHEMA} is read")
            elif summary.get("is_complete") is not True or summary.get("was_cancelled") is not False:
                broken.append(f"{where} was cut short")
    return _check(
        "aiperf-complete",
        None,
        broken=bool(broken),
        reason=f"{broken[0]} ({len(broken)} in all)."
        if broken
        else "AIPerf finished every phase of every baseline visit.",
        hint="Look at aiperf.log in that visit; resume or repeat the run." if broken else "",
        n=len(visits),
    )


def _same_length(cell: str, baseline: list[CellMeasurement], candidate: list[CellMeasurement]) -> Check:
    totals = [sum(m.output_tokens for m in arm) for arm in (baseline, candidate)]
    # A candidate that answers short breaks its contract (honesty: fixed-length); only the baseline's shortfall is ours.
    apart = totals[1] / totals[0] - 1 if totals[0] else None
    return _check(
        "same-length",
        cell,
        broken=apart is None or apart > LENGTH_TOLERANCE,
        observed=apart,
        required=LENGTH_TOLERANCE,
        reason=f"Output tokens: baseline {totals[0]:,}, candidate {totals[1]:,}, in a fixed-length cell.",
        hint="Does the baseline honour ignore_eos and min_tokens?",
        n=len(baseline),
    )


def _same_cache(cell: str, baseline: list[CellMeasurement], candidate: list[CellMeasurement]) -> Check:
    shares = [_mean([m.signals.get("cached_prompt_share") for m in arm]) for arm in (baseline, candidate)]
    if shares[0] is None or shares[1] is None:
        return _check(
            "same-cache",
            cell,
            broken=False,
            n=0,
            reason="Not both engines report cached prompt tokens; prompts are fresh in every pair.",
        )
    apart = shares[0] - shares[1]
    return _check(
        "same-cache",
        cell,
        broken=abs(apart) > CACHE_TOLERANCE,
        observed=apart,
        required=CACHE_TOLERANCE,
        reason=f"Prompt tokens from cache: baseline {shares[0]:.0%}, candidate {shares[1]:.0%}.",
        hint="Switch prefix caching on or off in both engines." if abs(apart) > CACHE_TOLERANCE else "",
        n=len(baseline),
    )


def _sent_in_time(cell: str, both: list[CellMeasurement]) -> Check:
    lags = [m.signals.get("credit_lag_p99_ms") for m in both]
    medians = [m.ttft_ms.p50 for m in both]
    shares = [lag / p50 for lag, p50 in zip(lags, medians, strict=True) if lag is not None and p50]
    worst = max(shares, default=None)
    return _check(
        "sent-in-time",
        cell,
        broken=worst is None or worst > LAG_TOLERANCE,
        observed=worst,
        required=LAG_TOLERANCE,
        reason="AIPerf's own lateness (p99) is "
        + ("not recorded." if worst is None else f"{worst:.0%} of the median TTFT at most."),
        hint="Give the client more CPU or lower the rate." if worst is None or worst > LAG_TOLERANCE else "",
        n=len(both),
    )


def _cells(visits: Sequence[VisitMeasurement], role: str, cell: str) -> list[CellMeasurement]:
    return [visit.cells[cell] for visit in visits if visit.role == role and cell in visit.cells]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _check(name: str, cell: str | None, *, broken: bool, reason: str, n: int, hint: str = "", **numbers: Any) -> Check:
    return Check(
        check=f"{name}@{cell}" if cell else name,
        family=Family.VALIDITY,
        status=Status.INVALID if broken else Status.PASS,
        criterion=name,
        metric=name,
        cell=cell,
        reason=reason,
        hint=hint,
        n=n,
        **numbers,
    )

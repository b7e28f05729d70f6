"""Was the run fit to be judged? Each named check looks at the judge's own side: AIPerf, the load, the two arms' totals.

What the candidate breaks is never found here: an engine must not be able to buy itself an INVALID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from harness.cache_counters import SIGNAL
from harness.cells import Cell
from harness.measurement import CellMeasurement, VisitMeasurement
from harness.sending import check, sending_checks
from harness.verdict import Check

SUMMARY_SCHEMA = "1.4"
LENGTH_TOLERANCE = 0.005  # total output tokens of the two arms in a fixed-length cell
CACHE_TOLERANCE = 0.10  # share of prompt tokens served from cache, between the arms
MISCOUNTED = 0.20  # share of answers whose usage is not the tokens of their text
DRIFT = 0.10  # of TPOT, between the halves of a visit
DRIFT_LEVEL = 0.05
BUSY = 1.5  # load average per CPU before a visit; AIPerf and an engine of the last visit leave about one


def judge_validity(
    cells: Sequence[Cell],
    visits: Sequence[VisitMeasurement],
    summaries: Mapping[str, Mapping[str, Any] | None],
    machines: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Check, ...]:
    """Every validity check of a run.

    Args:
        cells: of the plan.
        visits: every visit.
        summaries: `pairs/01/baseline phase` -> AIPerf's summary of that phase.
        machines: visit.json of every visit; None in a quick run, which may share its machine.
    """
    checks = [_complete(cells, visits, summaries)]
    if machines is not None:
        checks.append(_quiet(machines))
    for cell in cells:
        baseline = _cells(visits, "baseline", cell.name)
        candidate = _cells(visits, "candidate", cell.name)
        if not baseline or not candidate:
            continue  # the gate itself refuses a missing cell
        if cell.profile.stop == "fixed":
            checks.append(_same_length(cell.name, baseline, candidate))
        checks.append(_same_cache(cell.name, baseline, candidate))
        checks.append(_counts_agree(cell.name, baseline))
        if machines is not None:  # a few requests on a machine that is shared drift by chance
            checks.append(_steady(cell.name, baseline))
        checks += sending_checks(cell, baseline, candidate)
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
    return check(
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
    return check(
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
    by_usage, by_counters = (
        [_mean([m.signals.get(name) for m in arm]) for arm in (baseline, candidate)]
        for name in ("cached_prompt_share", SIGNAL)
    )
    shares, source = (by_usage, "") if None not in by_usage else (by_counters, " (engines' counters, whole visits)")
    if shares[0] is None or shares[1] is None:
        return check(
            "same-cache",
            cell,
            broken=False,
            n=0,
            reason="Not both engines report cached prompt tokens; prompts are fresh in every pair.",
        )
    apart = shares[0] - shares[1]
    return check(
        "same-cache",
        cell,
        broken=abs(apart) > CACHE_TOLERANCE,
        observed=apart,
        required=CACHE_TOLERANCE,
        reason=f"Prompt tokens from cache{source}: baseline {shares[0]:.0%}, candidate {shares[1]:.0%}.",
        hint="Switch prefix caching on or off in both engines." if abs(apart) > CACHE_TOLERANCE else "",
        n=len(baseline),
    )


def _counts_agree(cell: str, baseline: Sequence[CellMeasurement]) -> Check:
    """The baseline's usage against its text re-tokenised; the candidate's is an oracle's business (its FAIL)."""
    known = [value for m in baseline if (value := m.signals.get("usage_off_share")) is not None]
    if not known:
        return check("counts-agree", cell, broken=False, n=0, reason="The baseline claims no usage to compare.")
    worst = max(known)
    return check(
        "counts-agree",
        cell,
        broken=worst > MISCOUNTED,
        observed=worst,
        required=MISCOUNTED,
        n=len(known),
        reason=f"In {worst:.0%} of the baseline's answers usage differs from the re-tokenised text by over 5 %.",
        hint="Is the plan's tokenizer the served model's own?",
    )


def _steady(cell: str, baseline: Sequence[CellMeasurement]) -> Check:
    """Did the baseline slow down or speed up inside its visits?

    By its median, so that one hiccup is none, and only where the visits agree (t test of the logarithms at 5 %): the
    halves of a short visit differ by chance as well, and pairing takes care of chance.
    """
    known = [value for m in baseline if (value := m.signals.get("tpot_drift")) is not None]
    if not known:
        return check("steady", cell, broken=False, n=0, reason="Too few requests a visit to see a drift.")
    drift = median(known) - 1
    agree = len(known) == 1 or float(ttest_1samp(np.log(known), 0.0).pvalue) <= DRIFT_LEVEL
    beyond = abs(drift) > DRIFT
    reason = f"The baseline's TPOT is {drift:+.1%} in the second half of its visits against the first"
    return check(
        "steady",
        cell,
        broken=beyond and agree,
        observed=drift,
        required=DRIFT,
        n=len(known),
        reason=reason + (", which its visits do not agree on: chance." if beyond and not agree else "."),
        hint="Warm the machine up longer, fix its clocks, or end what else runs there.",
    )


def _quiet(machines: Sequence[Mapping[str, Any]]) -> Check:
    """Load average per CPU before the visits (median: the last visit still echoes in it): what ran beside the run."""
    known = [
        float(record["load_average_1m"]) / record["cpu_count"]
        for record in machines
        if record.get("cpu_count") and isinstance(record.get("load_average_1m"), int | float)
    ]
    usual = median(known) if known else None
    return check(
        "quiet-machine",
        None,
        broken=usual is None or usual > BUSY,
        observed=usual,
        required=BUSY,
        n=len(known),
        reason="No load average was recorded."
        if usual is None
        else f"Load average before a visit: {usual:.2f} for each CPU (median); {BUSY:g} is allowed.",
        hint="Something else runs on the client; end it and run again.",
    )


def _cells(visits: Sequence[VisitMeasurement], role: str, cell: str) -> list[CellMeasurement]:
    return [visit.cells[cell] for visit in visits if visit.role == role and cell in visit.cells]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None

"""Is everything there that was planned, and what cannot be judged because something is not? Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.criteria import CellScope
from harness.criterion import Criterion
from harness.measurement import Role, VisitMeasurement
from harness.speed import Visits
from harness.verdict import Check, Family, Status

ROLES: tuple[Role, Role] = ("baseline", "candidate")


def whole_pairs(measured: Sequence[VisitMeasurement]) -> tuple[Visits, list[int]]:
    """The visits by pair and role, and the pairs that have both."""
    visits = {(visit.pair, visit.role): visit for visit in measured}
    return visits, sorted({pair for pair, _ in visits if all((pair, role) in visits for role in ROLES)})


def check_complete(
    criteria: Sequence[tuple[Criterion, str | None]],
    cells: Sequence[CellScope],
    measured: Sequence[VisitMeasurement],
    plan: tuple[int, ...],
) -> tuple[Check, dict[str | None, str]]:
    """The check that everything planned is there, and what is blocked where it is not.

    Args:
        criteria: with the cells they are judged in.
        cells: of the plan.
        measured: every visit.
        plan: pairs at the first and last look.
    """
    visits, pairs = whole_pairs(measured)
    problems: dict[str | None, str] = {}
    if not criteria:
        problems["(criteria)"] = "The run has no criterion to be judged by."
    if len(visits) != len(measured):
        problems[None] = "One visit is there twice."
    elif len(visits) != 2 * len(pairs):
        problems["(a visit)"] = "A pair has only one of its two visits."
    if not plan[0] <= len(pairs) <= plan[-1]:
        planned = " to ".join(str(n) for n in dict.fromkeys(plan))
        problems[None] = f"The run has {len(pairs)} whole pairs; the plan asks for {planned}."
    for scope in cells:
        for pair in pairs:
            problem = next(filter(None, (_cell_problem(scope, visits[pair, role]) for role in ROLES)), None)
            if problem:
                problems.setdefault(scope.cell, problem)
    unplanned = {cell for _, cell in criteria} - {None, *(scope.cell for scope in cells)}
    problems |= {cell: f"{cell} has a criterion but is not a cell of the plan." for cell in unplanned}
    reasons = list(dict.fromkeys(problems[where] for where in sorted(problems, key=lambda where: where or "")))
    check = Check(
        check="complete",
        family=Family.VALIDITY,
        status=Status.INVALID if reasons else Status.PASS,
        criterion="every planned pair, cell and request is there",
        metric="complete",
        n=len(pairs),
        reason=f"{reasons[0]}" + (f" ({len(reasons)} problems in all.)" if len(reasons) > 1 else "")
        if reasons
        else f"{len(pairs)} pairs, each with {len(cells)} cell{'' if len(cells) == 1 else 's'} in both arms.",
    )
    return check, problems


def _cell_problem(scope: CellScope, visit: VisitMeasurement) -> str | None:
    where = f"{scope.cell} of pair {visit.pair}, {visit.role},"
    measured = visit.cells.get(scope.cell)
    if measured is None:
        return f"{where} was not measured."
    load = measured.asked - measured.inserted
    if load != scope.requests:
        return f"{where} asked {load} requests of load and the plan {scope.requests}."
    if measured.served + sum(measured.failures.values()) != measured.asked:
        return f"{where} has served and failed requests that do not add up to {measured.asked}."
    return None


def blocked_by(evidence: Sequence[Check]) -> dict[str | None, str]:
    """cell (None: all) -> why no speed can be judged there."""
    invalid = [check for check in evidence if check.status is Status.INVALID and check.check != "complete"]
    return {check.cell: f"Not judged, because {check.check} is INVALID: {check.reason}" for check in reversed(invalid)}


def broken_baseline(contracts: Sequence[Check]) -> str | None:
    """Why nothing can be compared with the baseline, when an oracle found it broken."""
    broken = [check for check in contracts if check.status is Status.INVALID and check.check.startswith("baseline.")]
    return f"Not judged, because {broken[0].check} is INVALID: {broken[0].reason}" if broken else None


def cached_shares(cells: Sequence[CellScope], visits: Visits, pairs: Sequence[int]) -> dict[str, tuple[float, float]]:
    """cell -> mean share of prompt tokens served from cache (baseline, candidate), where both are known."""
    shares = {}
    for scope in cells:
        arms = []
        for role in ROLES:
            found = [visits[pair, role].cells.get(scope.cell) for pair in pairs]
            values = [m.signals.get("cached_prompt_share") for m in found if m is not None]
            known = [value for value in values if value is not None]
            arms.append(float(np.mean(known)) if known else None)
        if arms[0] is not None and arms[1] is not None:
            shares[scope.cell] = (arms[0], arms[1])
    return shares

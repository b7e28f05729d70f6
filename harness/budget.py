"""`budget_minutes`: what a run may spend on visits, and when the next pair can no longer be paid. Pure."""

from __future__ import annotations

from harness.errors import InvalidRun, UsageError
from harness.plan import Plan

FASTEST_VISIT_S = 12  # AIPerf takes 12 to 20 s to start


def check_budget(plan: Plan) -> None:
    """Raises UsageError when the budget cannot pay for one pair on any machine."""
    if plan.budget_minutes is not None and plan.budget_minutes * 60 < 2 * FASTEST_VISIT_S:
        raise UsageError(
            f"budget_minutes: {plan.budget_minutes:g} cannot pay for one pair: starting AIPerf twice alone "
            f"takes {2 * FASTEST_VISIT_S / 60:.1f} minutes."
        )


def pays_for(plan: Plan, pairs: int, spent_s: float, until: int) -> bool:
    """Whether the pairs up to the look at `until` are within the budget, at the pace of those measured."""
    if plan.budget_minutes is None or not pairs:
        return True
    return spent_s / pairs * until <= plan.budget_minutes * 60


def no_first_look(plan: Plan, pairs: int, spent_s: float) -> InvalidRun:
    """What ends a run whose budget does not reach the first look."""
    needed = spent_s / pairs * plan.pairs[0] / 60
    return InvalidRun(
        f"budget_minutes: {plan.budget_minutes:g} does not pay for the {plan.pairs[0]} pairs of the first look: "
        f"{pairs} took {spent_s / 60:.1f} minutes, so these take {needed:.1f}. "
        "Raise it, or choose fewer cells or a smaller tier; go on with --resume."
    )

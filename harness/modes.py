"""Quick and full: what a quick run changes about a plan, and where only a full run may start."""

from __future__ import annotations

import os

from harness.cells import make_cells
from harness.criteria import resolve
from harness.criterion import parse_criterion
from harness.errors import UsageError
from harness.judge import cell_scopes, check_criteria, measured_metrics
from harness.plan import Plan

PAIRS = 3  # two leave Student's t one degree of freedom: four times as wide an interval
REQUESTS = 16  # a median needs five; three pairs then hold 48 documents of the 30 that accuracy needs


def quick(plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """The plan at the size of a few minutes, and which of its own criteria a run of that size cannot judge.

    Public prompts, three pairs, the smoke tier of every profile. Raises UsageError as the whole plan would.
    """
    check_criteria(plan, make_cells(plan))
    uses = tuple(use.model_copy(update={"tier": None, "request_count": None}) for use in plan.profiles)
    small = plan.model_copy(
        update={
            "pairs": (PAIRS,),
            "tier": "smoke",
            "profiles": uses,
            "min_requests": max(REQUESTS, plan.min_requests),
            "prompt_secret": None,
        }
    )
    scopes = cell_scopes(make_cells(small))

    def judged(text: str) -> bool:
        try:
            resolve((parse_criterion(text),), scopes, measured_metrics(small))
        except UsageError:
            return False
        return True

    kept = tuple(text for text in plan.criteria if judged(text))
    dropped = tuple(text for text in plan.criteria if text not in kept)
    return small.model_copy(update={"criteria": kept}), dropped


def refuse_quick(plan: Plan, *, full: bool, ci: bool) -> None:
    """Raises UsageError when the plan is quick and `--full` or a CI job wants a run that counts."""
    if plan.mode == "full" or not (full or ci):
        return
    why = "--full was given" if full else "this is a CI job (--ci, or CI is set in the environment)"
    raise UsageError(
        f"A quick run decides nothing, and {why}: this one has {plan.pairs[0]} pairs before its first look. "
        "It needs 5: set pairs: [6, 12]" + (", or pass --no-ci to run it all the same." if not full else ".")
    )


def in_ci(flag: bool | None) -> bool:
    """What --ci or --no-ci says; without either, whether the environment's CI variable is set and not false."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"} if flag is None else flag

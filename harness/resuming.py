"""The plan of a run that goes on: its own, to which a given one may only add budget."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError
from harness.noise_store import NOISE
from harness.pipeline import stored_plan
from harness.plan import Plan, check_files
from harness.run_store import RunStore, write_bytes
from harness.traffic_plan import dump_plan


def resumed_plan(root: Path, given: Plan | None) -> Plan:
    """The plan to go on with: the run's own, to which the given one may only add budget. Raises UsageError."""
    stored = stored_plan(root)
    given = given and with_measured(given, stored)
    changed = {key for key in Plan.model_fields if given and getattr(given, key) != getattr(stored, key)}
    if changed - {"budget_minutes"}:
        raise UsageError(
            f"--resume: the plan given differs from {root}/plan.yaml in {', '.join(sorted(changed))}, and a run keeps "
            "its plan. Leave the plan out to go on, or start a new run."
        )
    if given is None or not changed:
        return check_files(stored)
    return replace_plan(given, RunStore.open(root))


def replace_plan(plan: Plan, store: RunStore) -> Plan:
    """Write another plan into a prepared run, which stays prepared; return it."""
    write_bytes(store.root / "plan.yaml", dump_plan(plan).encode())
    kept = [store.root / name for name in ("plan.yaml", "environment.json", "tokenizer.json", NOISE)]
    store.record("prepare", [path for path in kept if path.is_file()])
    return plan


def with_measured(given: Plan, stored: Plan) -> Plan:
    """The given plan with the capacities that the run has measured, where the two are else alike."""
    if len(given.profiles) != len(stored.profiles):
        return given
    uses = tuple(
        use.model_copy(update={"capacity_per_s": use.capacity_per_s or old.capacity_per_s})
        for use, old in zip(given.profiles, stored.profiles, strict=True)
    )
    return given.model_copy(update={"profiles": uses})

"""`enginegate gate --aa`: the baseline in both arms under the plan's traffic. Reads and writes run directories."""

from __future__ import annotations

from harness import pipeline
from harness.aa import judge_aa
from harness.cells import make_cells
from harness.errors import UsageError
from harness.judge import gate_input, plan_criteria
from harness.noise import AaResult
from harness.noise_store import keep_noise
from harness.plan import Endpoints, Plan
from harness.progress import Progress
from harness.run_store import RunStore, write_json


def as_aa(plan: Plan) -> Plan:
    """The plan with the baseline in both arms, at its first look. Raises UsageError when it cannot be started anew.

    Both arms get the same prompts, so each visit needs a server of its own: a second visit to the same one would find
    every prompt in its cache.
    """
    baseline = plan.endpoints.baseline
    if not baseline.launch:
        raise UsageError(
            "--aa visits the baseline twice with the same prompts, and the second visit would find them cached: "
            "give endpoints.baseline.launch, so that every visit starts it anew."
        )
    return plan.model_copy(
        update={
            "aa": True,
            "prompt_secret": None,
            "pairs": plan.pairs[:1],
            "engines": "one-at-a-time",
            "endpoints": Endpoints(baseline=baseline, candidate=baseline),
        }
    )


def run_aa(plan: Plan, store: RunStore, progress: Progress) -> AaResult:
    """Drive an A/A run (`as_aa`), write its `aa.json`, and leave its noise beside the run for later gates."""
    pipeline.gate(plan, store, progress)
    result = judge_aa(gate_input(plan, store.root, plan_criteria(plan)))
    write_json(store.root / "aa.json", result)
    store.write_manifest()
    if result.checks:
        keep_noise(result, plan, make_cells(plan), store.root)
    return result

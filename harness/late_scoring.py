"""A gate in two places: drive the engines where they serve, score and judge where the reference runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import pipeline, processes
from harness.cells import make_cells
from harness.endpoint import Engines
from harness.errors import InvalidRun, UsageError
from harness.logits import documents_wanted
from harness.option_tasks import collect_option_rows
from harness.plan import Plan, Reference
from harness.progress import Progress
from harness.resuming import replace_plan
from harness.run_store import RunStore
from harness.score import check_reference, score_arms
from harness.traffic_plan import check_model_folder
from harness.verdict import Verdict


def collect_run(plan: Plan, store: RunStore, progress: Progress, prompt_seed: int | None = None) -> int:
    """Drive and measure the plan's first look, and ask for log-probabilities; nothing is scored. Returns the pairs.

    `plan` and `prompt_seed`: as in `harness.pipeline.gate`.
    """
    processes.end_orphans()
    cells = make_cells(plan)
    pipeline.prepare(plan, store)
    pipeline.prepare_tasks(plan, cells, store, progress)
    with Engines(plan, store.root / "engines") as engines:
        pairs = pipeline.drive_pairs(plan, cells, plan.pairs[0], store, engines, progress, prompt_seed)
        pipeline.calibrate(plan, cells, pairs, store, progress)
        pipeline.collect_logits(plan, documents_wanted(plan), store, engines, progress)
        collect_option_rows(plan, store, engines, progress)
    return pairs


def score_run(root: Path, reference: Path | None, progress: Progress, **where: Any) -> Verdict:
    """Score the pairs that a run holds, judge them and write the report; needs no engine.

    `reference` takes the place of the plan's and is written into it, with `where`: `device`, `ray`, `tensor_parallel`.
    Raises UsageError for a folder that is no gate's
    run or holds no reference, InvalidRun when no pair is whole.
    """
    store = RunStore.open(root)
    plan = _with_reference(store, reference, {key: value for key, value in where.items() if value})
    check_reference(plan.reference)
    cells = make_cells(plan)
    pairs = 0
    while all((root / "pairs" / f"{pairs + 1:02d}" / arm / "visit.json").is_file() for arm in plan.arms):
        pairs += 1
        pipeline.measure_pair(plan, cells, pairs, store, progress)
    if pairs < plan.pairs[0]:
        raise InvalidRun(
            f"{root} holds {pairs} whole pairs, the plan's first look has {plan.pairs[0]}; go on with it where the "
            "engines are: enginegate gate --collect-only --resume --run-dir ..."
        )
    store.record(f"oracles/{pairs:02d}", score_arms(plan, pairs, root, progress))
    verdict = pipeline.decide(plan, store, progress)
    pipeline.report(store, progress)
    return verdict


def _with_reference(store: RunStore, reference: Path | None, where: dict[str, Any]) -> Plan:
    """The stored plan under the reference of this machine."""
    plan = pipeline.stored_plan(store.root)
    if reference is None and not where:
        if plan.reference is None:
            raise UsageError("--reference DIR is missing: the run's plan names no reference.")
        return plan
    path = reference.resolve() if reference else plan.reference.path if plan.reference else None
    check_model_folder(path, "--reference")
    kept = {"dtype": plan.reference.dtype} if plan.reference else {}
    asked = _place(kept | {"path": path} | where)
    return replace_plan(plan.model_copy(update={"reference": asked}), store)


def _place(asked: dict[str, Any]) -> Reference:
    try:
        return Reference.model_validate(asked)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None

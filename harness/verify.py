"""`enginegate verify`: how right and how honest are these endpoints? No speed, and one endpoint is enough.

Every endpoint is sent the same prompts through AIPerf, by the gate's own stages, and its answers go through the same
oracles; besides, its server is asked for its log-probabilities. The run directory is a gate's, with the endpoints'
names for arms and `accuracy.json`, the table, for a verdict.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import pipeline, processes
from harness.accuracy_table import AccuracyTable, accuracy_table
from harness.cells import Cell, make_cells
from harness.endpoint import Engines
from harness.errors import InvalidRun
from harness.logits import score_collected
from harness.progress import Progress, counting
from harness.run_store import RunStore, write_json
from harness.score import (
    SCORES,
    check_reference,
    decoder,
    find_floor,
    note_drift,
    open_reference_of,
    prompt_counts,
    with_pair,
)
from harness.traffic import check_aiperf
from harness.traffic_plan import stored_data
from harness.verify_plan import VerifyPlan, make_verify
from oracles.answers import Visit, keys_with_ids
from oracles.protocol import check_arm
from oracles.reference import OracleError, Reference
from oracles.result import OracleResult
from oracles.store import ScoreStore
from oracles.tokens import score_arm

TABLE = "accuracy.json"


def check(plan: VerifyPlan) -> tuple[Cell, ...]:
    """The cells, once everything that can be refused before anything runs has been asked."""
    check_aiperf()
    pipeline.read_tokenizer((plan.tokenizer_path or Path()) / "tokenizer.json")
    check_reference(plan.reference)
    return make_cells(plan)


def verify(plan: VerifyPlan, store: RunStore, progress: Progress) -> AccuracyTable:
    """Run a whole verification, or what is left of one, and return its table; all else is in the run directory."""
    processes.end_orphans()
    cells = check(plan)
    pipeline.prepare(plan, store)
    pipeline.make_workload(plan, cells, 1, store, progress)
    with Engines(plan, store.root / "engines") as engines:
        pipeline.drive_pair(plan, cells, 1, store, engines, progress)
        pipeline.collect_logits(plan, plan.logit_documents, store, engines, progress)
    pipeline.measure_pair(plan, cells, 1, store, progress)
    if not store.finished("oracles/01"):
        try:
            store.record("oracles/01", _score(plan, store.root, progress))
        except OracleError as error:
            raise InvalidRun(str(error)) from None
    table = accuracy_table(store.root, plan.arms)
    write_json(store.root / TABLE, table)
    shutil.rmtree(store.root / SCORES, ignore_errors=True)
    store.write_manifest()
    return table


def stored_verify(root: Path) -> VerifyPlan:
    """The plan that a verification's run directory was made with."""
    return make_verify(stored_data(root, "verify"), source=f"{root}/plan.yaml", folder=root)


def _score(plan: VerifyPlan, root: Path, progress: Progress) -> list[Path]:
    """Every oracle on every endpoint's answers; the floor on those of the first."""
    out, pair = root / "oracles", root / "pairs" / "01"
    visits = {arm: Visit(1, pair / arm / "requests.parquet", pair / "workload.parquet") for arm in plan.arms}
    first = visits[plan.arms[0]]
    reference = open_reference_of(plan.reference, plan, progress)
    floor = find_floor(plan.floor, plan.floor_tokens, [first], reference, out / "floor", progress)
    kept = ScoreStore(root / SCORES)
    # Ids for a request only where every endpoint gave them: all are scored in one way.
    shared = frozenset.intersection(*(keys_with_ids([visit]) for visit in visits.values()))
    for arm, visit in visits.items():
        say = counting(f"scoring {arm}", "tokens", progress)
        score_arm(
            [visit], reference, "candidate", out / arm, engine_ids=shared, tie_width=floor.tie_width, store=kept,
            progress=say,
        )  # fmt: skip
        note_drift(out, arm, plan.arms[0], floor)
        write_json(out / arm / "protocol.json", _conduct(visit, first, reference, out / arm))
    score_collected(root, plan.arms, reference, progress)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _conduct(visit: Visit, first: Visit, reference: Reference, scored: Path) -> OracleResult:
    """The protocol oracle on one endpoint, beside the first where it is another."""
    return check_arm(
        with_pair(1, visit.requests),
        with_pair(1, visit.workload),
        "candidate",
        None if visit == first else with_pair(1, first.requests),
        prompt_tokens=prompt_counts(scored),
        decode=decoder(reference),
    )

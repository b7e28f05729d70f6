"""The pipeline, one function a stage: plan -> workload -> traffic -> measurement -> oracles -> gate -> report.

Every stage reads files and writes files (docs/files.md) and is a step in the journal, so a run that was killed goes on
where it stopped, and everything after `traffic` can be done again without an engine.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness import environment, processes
from harness.audits import audit_source
from harness.budget import check_budget, no_first_look, pays_for
from harness.cache_counters import with_counted_cache
from harness.capacity import know_capacity
from harness.cells import Cell, make_cells
from harness.client_bias import calibrate_run
from harness.conversations import write_conversations
from harness.endpoint import Engines
from harness.errors import ExitCode, InvalidRun, UsageError
from harness.gpu_telemetry import Watched, with_gpu_signals
from harness.judge import check_criteria, judge, spent
from harness.logits import ask_endpoint, documents_wanted
from harness.measurement import Arm, Slo, measure_visit
from harness.noise_store import NOISE, fitting_noise
from harness.note import NOTE, write_note
from harness.option_tasks import collect_option_rows, refuse_without_rows
from harness.plan import Plan, make_plan
from harness.power import wants_more_pairs
from harness.preflight import preflight
from harness.progress import Progress, counting
from harness.raw_export import write_requests
from harness.reference_tasks import collect_reference_tasks
from harness.run_store import RunStore, read_json, write_bytes, write_json
from harness.score import SCORES, check_reference, score_arms
from harness.task_stream import check_tasks, task_source, write_tasks
from harness.traffic import Visit, check_aiperf, run_visit
from harness.traffic_plan import TrafficPlan, dump_plan, stored_data
from harness.verdict import Verdict
from harness.workload import plan_pair, write_pair


def gate(plan: Plan, store: RunStore, progress: Progress, prompt_seed: int | None = None) -> Verdict:
    """Run a whole gate, or what is left of one, and return its verdict; everything else is in the run directory.

    `check` has let the plan through. `prompt_seed` draws held-out prompts in place of the plan's public seed; it is
    written nowhere.
    """
    processes.end_orphans()
    verdict = None
    with Engines(plan, store.root / "engines") as engines:
        plan = know_capacity(plan, store, engines, progress)
        cells = make_cells(plan)
        prepare(plan, store)
        prepare_tasks(plan, cells, store, progress)
        for look in plan.pairs:
            if verdict and not (wants_more_pairs(verdict) and pays_for(plan, *spent(store.root), look)):
                break
            pairs = drive_pairs(plan, cells, look, store, engines, progress, prompt_seed)
            calibrate(plan, cells, pairs, store, progress)
            collect_logits(plan, documents_wanted(plan), store, engines, progress)
            collect_option_rows(plan, store, engines, progress)
            collect_reference_tasks(plan, store, progress)
            score(plan, pairs, store, progress)
            verdict = decide(plan, store, progress)
    if verdict is None:
        raise InvalidRun("The plan asks for no pairs.")
    report(store, progress)
    return verdict


def drive_pairs(
    plan: Plan,
    cells: Sequence[Cell],
    look: int,
    store: RunStore,
    engines: Engines,
    progress: Progress,
    prompt_seed: int | None = None,
) -> int:
    """Drive and measure the pairs up to a look; return how many there are, fewer when the budget ends.

    Raises InvalidRun when the budget does not reach the first look.
    """
    for pair in range(1, look + 1):
        done, seconds = spent(store.root)
        if done < pair and not pays_for(plan, done, seconds, max(pair, plan.pairs[0])):
            if done < plan.pairs[0]:
                raise no_first_look(plan, done, seconds)
            return done
        make_workload(plan, cells, pair, store, progress, prompt_seed)
        drive_pair(plan, cells, pair, store, engines, progress)
        measure_pair(plan, cells, pair, store, progress)
    return look


def check(plan: Plan) -> tuple[Cell, ...]:
    """The plan's cells, once everything that can be refused before anything runs or is written has been asked.

    Raises UsageError or InvalidRun with a sentence: profiles, criteria, tokenizer, AIPerf, the `reference` extra.
    """
    check_aiperf()
    check_budget(plan)
    cells = make_cells(plan)
    check_criteria(plan, cells)
    check_tasks(plan, cells)
    read_tokenizer((plan.tokenizer_path or Path()) / "tokenizer.json")
    check_reference(plan.reference)
    return cells


def prepare(plan: TrafficPlan, store: RunStore) -> None:
    """Write the resolved plan, the environment, the tokenizer that counts and the noise of an A/A run that fits.

    A resumed run keeps its own.
    """
    plan_file, environment_file = store.root / "plan.yaml", store.root / "environment.json"
    tokenizer_file = store.root / "tokenizer.json"
    if not plan_file.exists():
        write_bytes(plan_file, dump_plan(plan).encode())
    if not store.finished("prepare"):
        write_json(environment_file, environment.describe())
        write_bytes(tokenizer_file, ((plan.tokenizer_path or Path()) / "tokenizer.json").read_bytes())
        written = [plan_file, environment_file, tokenizer_file]
        if isinstance(plan, Plan) and (known := fitting_noise(plan, make_cells(plan), store.root.parent)):
            write_json(store.root / NOISE, known)
            written.append(store.root / NOISE)
        store.record("prepare", written)


def prepare_tasks(plan: Plan, cells: Sequence[Cell], store: RunStore, progress: Progress) -> None:
    """Write every task item as it will be asked; a resumed run keeps its own."""
    if plan.tasks and not store.finished("tasks"):
        store.record("tasks", write_tasks(plan, cells, store.root, progress))


def make_workload(
    plan: TrafficPlan,
    cells: Sequence[Cell],
    pair: int,
    store: RunStore,
    progress: Progress,
    prompt_seed: int | None = None,
) -> None:
    """Write what both arms of one pair will be sent."""
    step = f"workload/{pair:02d}"
    if not store.finished(step):
        progress(f"pair {pair} of {plan.most_pairs}: writing requests")
        tokenizer = _tokenizer(store)
        drawn = plan if prompt_seed is None else plan.model_copy(update={"seed": prompt_seed})
        sources = []
        if isinstance(plan, Plan) and isinstance(drawn, Plan):
            sources += [audit_source(drawn, cells, pair)]
            sources += [task_source(plan, cells, pair, store.root)] if plan.tasks else []
        folder = _pair_folder(store, pair)
        paths = write_pair(drawn, cells, pair, folder, lambda text: len(tokenizer.encode(text).ids), sources)
        store.record(step, paths)


def drive_pair(
    plan: TrafficPlan, cells: Sequence[Cell], pair: int, store: RunStore, engines: Engines, progress: Progress
) -> None:
    """Send one pair to both arms, adjacent in time, in the order drawn for it."""
    folder = _pair_folder(store, pair)
    order = read_json(folder / "pair.json")["order"]
    for position, role in enumerate(order):
        step = f"visit/{pair:02d}/{role}"
        if store.finished(step):
            continue
        visit = _visit(plan, cells, pair, role, len(order) * (pair - 1) + position, folder)
        name = f"pair {pair} of {plan.most_pairs}, {role}"
        progress(f"{name}: waiting for the engine")
        with engines.serving(role):
            preflight(plan, role, store, progress)
            if isinstance(plan, Plan):
                refuse_without_rows(plan, role, store, progress)
            began = time.monotonic()

            def advanced(done: int, name: str = name, began: float = began, asked: int = visit.requests) -> None:
                progress(f"{name}: {done} of {asked} requests, {time.monotonic() - began:.0f} s", done / asked)

            store.record(step, run_visit(visit, advanced))


def measure_pair(plan: TrafficPlan, cells: Sequence[Cell], pair: int, store: RunStore, progress: Progress) -> None:
    """Read both arms' raw exports into request rows and distributions."""
    for role in plan.arms:
        step, folder = f"measure/{pair:02d}/{role}", _pair_folder(store, pair) / role
        if store.finished(step):
            continue
        progress(f"pair {pair} of {plan.most_pairs}, {role}: reading AIPerf's export")
        store.record(step, measure(store, cells, folder, folder))


def measure(store: RunStore, cells: Sequence[Cell], visit_folder: Path, out: Path) -> list[Path]:
    """Derive requests.parquet and measurements.json of one visit into `out`; `recheck` calls it again elsewhere.

    With live conversations the arm's own workload.parquet too: what each of its later turns was really asked.
    """
    record = read_json(visit_folder / "visit.json")
    rows, measured = out / "requests.parquet", out / "measurements.json"
    workload = visit_folder.parent / "workload.parquet"
    write_requests(visit_folder / "aiperf", workload, _tokenizer(store), rows)
    slos = {cell.name: _slo(cell.profile.slo) for cell in cells if cell.profile.slo}
    measurement = measure_visit(
        pq.read_table(rows), pair=record["pair"], role=record["role"], slot=record["slot"], slos=slos
    )
    measurement = with_counted_cache(measurement, record)
    about = Watched.model_validate(record["gpu"]) if record.get("gpu") else None
    write_json(measured, with_gpu_signals(measurement, visit_folder / "aiperf", about))
    return [rows, measured, *write_conversations(workload, rows, out / "workload.parquet")]


def calibrate(plan: Plan, cells: Sequence[Cell], pairs: int, store: RunStore, progress: Progress) -> None:
    """Measure what this client adds at the candidate's shape in every cell; a quick run decides nothing without it."""
    step = f"calibration/{pairs:02d}"
    if plan.mode == "full" and not store.finished(step):
        store.record(step, calibrate_run(plan, cells, ["candidate"], store, progress))


def collect_logits(plan: TrafficPlan, count: int, store: RunStore, engines: Engines, progress: Progress) -> None:
    """Ask every arm for its log-probabilities of `count` texts of pair 1."""
    workload = _pair_folder(store, 1) / "workload.parquet"
    for arm in plan.arms if count else ():
        step, out = f"logits/{arm}", store.root / "logits" / arm
        if store.finished(step):
            continue
        with engines.serving(arm):
            say = counting(f"asking the {arm} for log-probabilities", "texts", progress)
            store.record(step, ask_endpoint(plan, arm, workload, out, _tokenizer(store), count, say))


def score(plan: Plan, pairs: int, store: RunStore, progress: Progress) -> None:
    """Grade the timed responses of the first `pairs` pairs: every oracle, both arms."""
    step = f"oracles/{pairs:02d}"
    if not store.finished(step):
        store.record(step, score_arms(plan, pairs, store.root, progress))


def decide(plan: Plan, store: RunStore, progress: Progress) -> Verdict:
    """Judge what the files say and write verdict.json."""
    progress("judging")
    verdict = judge(plan, store.root)
    write_json(store.root / "verdict.json", verdict)
    return verdict


def report(store: RunStore, progress: Progress) -> None:
    """Write everything a person or a CI reads, the author's note, then the manifest that seals the run."""
    from reports.html import write_report
    from reports.junit import junit_xml
    from reports.markdown import summary

    progress("writing the report")
    write_report([store.root], store.root / "report.html")
    write_bytes(store.root / "summary.md", summary(store.root).encode())
    write_bytes(store.root / "junit.xml", junit_xml(store.root))
    shutil.rmtree(store.root / SCORES, ignore_errors=True)
    write_note(store.root / NOTE, Verdict.model_validate(read_json(store.root / "verdict.json")))
    store.write_manifest()


def stored_plan(root: Path) -> Plan:
    """The plan that a run directory was made with; its reference may be on another machine."""
    return make_plan(stored_data(root, "gate"), source=f"{root}/plan.yaml", folder=root)


def exit_code(verdict: Verdict) -> int:
    """The process exit code that stands for a verdict."""
    return int(ExitCode[verdict.status.name])


def _slo(slo: Any) -> Slo:
    return Slo(ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms)


def _visit(plan: TrafficPlan, cells: Sequence[Cell], pair: int, role: Arm, slot: int, folder: Path) -> Visit:
    return Visit(plan, role, pair, slot, plan_pair(cells, read_json(folder / "pair.json")), folder / role)


def _pair_folder(store: RunStore, pair: int) -> Path:
    return store.root / "pairs" / f"{pair:02d}"


def _tokenizer(store: RunStore) -> Tokenizer:
    return read_tokenizer(store.root / "tokenizer.json")


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file; UsageError when it is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"tokenizer: {path} is no tokenizer that can be read ({error}).") from None

"""From a run directory to a Verdict: read what the stages wrote, put it before the gate. Reads files, writes none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from harness.attempts import ATTEMPT
from harness.cells import Cell, make_cells, phase_name
from harness.client_bias import bias_checks, read_bias
from harness.contracts import withheld
from harness.criteria import CellScope, Criterion, load_policy, not_gateable, read_criteria, resolve
from harness.divergence import Divergence, Documents
from harness.environment import code_sha256
from harness.gate import GateInput, decide
from harness.gpu_telemetry import measures_memory
from harness.isolation import isolation_notes
from harness.logits import documents_wanted
from harness.measurement import Role, VisitMeasurement, read_visits
from harness.noise import machine_check, noise_notes
from harness.noise_store import read_noise
from harness.option_grading import option_scores
from harness.parts import suffix
from harness.plan import Plan
from harness.run_store import read_json, sha256
from harness.task_grading import task_scores
from harness.validity import judge_validity
from harness.verdict import Check, Cost, Verdict
from oracles.result import OracleResult

ROLES: tuple[Role, Role] = ("baseline", "candidate")
# Accuracy is never optional: a plan without a reference cannot PASS.
ALWAYS_JUDGED = frozenset({"token_margin"})
REQUIRED_ORACLES = frozenset({"tokens", "protocol"})


def judge(plan: Plan, root: Path) -> Verdict:
    """The verdict on everything that lies in the run directory."""
    return decide(gate_input(plan, root, all_criteria(plan)))


def gate_input(plan: Plan, root: Path, criteria: Sequence[Criterion]) -> GateInput:
    """What the gate is asked about a run directory under some criteria."""
    cells = make_cells(plan)
    visits = read_visits(root)
    scopes = cell_scopes(cells)
    measured = measured_metrics(plan)
    known = read_noise(root)
    return GateInput(
        criteria=resolve(criteria, scopes, measured),
        cells=scopes,
        visits=visits,
        pairs=plan.pairs,
        mode=plan.mode,
        run=root.name,
        cost=_cost(plan, root, visits),
        hashes=_hashes(root, cells, criteria),
        required_oracles=required_oracles(plan),
        oracles=withheld(_oracle_results(root)) if plan.prompt_secret else _oracle_results(root),
        validity=(*_validity(plan, root, cells, visits), *machine_check(known)),
        token_margin=_margins(root),
        kld=_klds(root),
        tasks=task_scores(root),
        options=option_scores(root),
        gpus={role: getattr(plan.endpoints, role).gpus for role in ROLES if getattr(plan.endpoints, role).gpus},
        notes=(
            *not_gateable(criteria, scopes, measured),
            *noise_notes(known, plan.pairs[-1]),
            *isolation_notes(root),
        ),
        known_noise=known,
        budget_minutes=plan.budget_minutes,
    )


def _validity(plan: Plan, root: Path, cells: Sequence[Cell], visits: Sequence[VisitMeasurement]) -> tuple[Check, ...]:
    """A full run must stand on a quiet machine and a calibrated client; a quick one decides nothing anyway."""
    full = plan.mode == "full"
    machines = [read_json(visit / "visit.json") for visit, _ in _visits(root)] if full else None
    found = judge_validity(cells, visits, _summaries(root, cells), machines)
    return (*found, *bias_checks(cells, read_bias(root), required=full))


def required_oracles(plan: Plan) -> frozenset[str]:
    """Oracles without whose result nothing can PASS."""
    asked = {"tasks": plan.timed_tasks, "options": plan.option_tasks}
    return REQUIRED_ORACLES | {oracle for oracle, uses in asked.items() if uses}


def check_criteria(plan: Plan, cells: Sequence[Cell]) -> None:
    """UsageError, before anything runs, when the criteria cannot be judged in these cells."""
    for criteria in (plan_criteria(plan), all_criteria(plan)):
        resolve(criteria, cell_scopes(cells), measured_metrics(plan))


def speedup_bars(plan: Plan, cells: Sequence[Cell]) -> dict[str, float]:
    """The speed-up that each check of the plan asks for, by the check's id."""
    resolved = resolve(all_criteria(plan), cell_scopes(cells), measured_metrics(plan))
    return {c.check_id(cell): c.value for c, cell in resolved if c.unit == "x" and c.op == ">="}


def all_criteria(plan: Plan) -> tuple[Criterion, ...]:
    """What a run of this plan is judged by: an A/A run by `no-regression`, any other by the plan's own criteria."""
    return load_policy("no-regression") if plan.aa else plan_criteria(plan)


def plan_criteria(plan: Plan) -> tuple[Criterion, ...]:
    """The policy's criteria, then the plan's own."""
    return read_criteria(plan.policy, plan.criteria)


def cell_scopes(cells: Sequence[Cell]) -> tuple[CellScope, ...]:
    """The cells as the gate sees them."""
    return tuple(CellScope(c.name, c.profile.name, c.profile.gateable, c.request_count) for c in cells)


def measured_metrics(plan: Plan) -> frozenset[str]:
    """Optional metrics that this plan measures."""
    counted = plan.endpoints.baseline.gpus and plan.endpoints.candidate.gpus
    optional = {"throughput_per_gpu": bool(counted), "tasks": bool(plan.tasks), "peak_memory": measures_memory(plan)}
    optional["kld"] = documents_wanted(plan) > 0
    return ALWAYS_JUDGED | {metric for metric, measured in optional.items() if measured}


def _oracle_results(root: Path) -> tuple[OracleResult, ...]:
    paths = sorted(root.glob("oracles/*/*.json"))
    return tuple(OracleResult.model_validate(read_json(path)) for path in paths)


def _margins(root: Path) -> Divergence | None:
    tables = {arm: root / "oracles" / arm / "tokens.parquet" for arm in (*ROLES, "floor")}
    if not all(tables[role].is_file() for role in ROLES):
        return None
    floor = read_documents(tables["floor"]) if tables["floor"].is_file() else None
    return Divergence(
        candidate=read_documents(tables["candidate"]), baseline=read_documents(tables["baseline"]), floor=floor
    )


def _klds(root: Path) -> Divergence | None:
    """Divergences of the first phase that both arms' servers answered: prefill before decode."""
    tables = {arm: root / "oracles" / arm / "logits.parquet" for arm in (*ROLES, "floor")}
    if not all(tables[role].is_file() for role in ROLES):
        return None
    phases = [set(pq.read_table(tables[role], columns=["phase"])["phase"].to_pylist()) for role in ROLES]
    phase = next((name for name in ("prefill", "decode") if all(name in both for both in phases)), None)
    if phase is None:
        return None
    candidate, baseline = (read_documents(tables[role], "kld_sum", phase) for role in ("candidate", "baseline"))
    floor = read_documents(tables["floor"], "kld_sum") if tables["floor"].is_file() else None
    return Divergence(candidate=candidate, baseline=baseline, floor=floor)


def read_documents(path: Path, nats: str = "margin_sum", phase: str | None = None) -> Documents:
    """A tokens.parquet (margins) or logits.parquet (`nats="kld_sum"`, of one phase) as documents."""
    columns = ["pair", "line", "item", "stratum", "tokens", nats, *(["greedy"] if nats == "margin_sum" else [])]
    table = pq.read_table(path, columns=columns, filters=None if phase is None else [("phase", "=", phase)])
    column = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    return Documents(
        pair=column["pair"].astype(np.int64),
        line=column["line"].astype(np.int64),
        item=column["item"].astype(np.str_),
        stratum=column["stratum"].astype(np.str_),
        tokens=column["tokens"].astype(np.float64),
        nats=column[nats].astype(np.float64),
        greedy=column["greedy"].astype(np.bool_) if "greedy" in column else np.ones(len(table), dtype=np.bool_),
    )


def _summaries(root: Path, cells: Sequence[Cell]) -> dict[str, Mapping[str, Any] | None]:
    """`pairs/01/baseline chat/c8` -> AIPerf's summary of that phase, None when it left none."""
    found: dict[str, Mapping[str, Any] | None] = {}
    for visit, name in _visits(root):
        for cell in cells:
            path = _summary(visit, cell)
            found[f"{name} {cell.name}"] = read_json(path) if path else None
    return found


def spent(root: Path) -> tuple[int, float]:
    """Whole pairs driven so far, and the seconds that all visits took, AIPerf's start included."""
    records = _visit_records(root)
    pairs = [record["pair"] for record in records]
    return len({pair for pair in pairs if pairs.count(pair) == len(ROLES)}), sum(_seconds(r) for r in records)


def _summary(visit: Path, cell: Cell) -> Path | None:
    """Where AIPerf summed the cell up: in its phase's folder, or, for a process of one phase, in its own."""
    phase = next(iter(sorted(visit.glob(f"aiperf*/phases/{phase_name(cell.name)}/profile_export_aiperf.json"))), None)
    if phase is None and cell.profile.trace:
        parts = [part for part in read_json(visit.parent / "pair.json")["cells"] if part["cell"] == cell.name]
        alone = [visit / f"aiperf{suffix(part['part'])}" / "profile_export_aiperf.json" for part in parts]
        phase = next((path for path in alone if path.is_file()), None)
    return phase


def _cost(plan: Plan, root: Path, visits: Sequence[VisitMeasurement]) -> Cost:
    records = _visit_records(root)
    measured = [cell for visit in visits for cell in visit.cells.values()]
    wall_s = sum(_seconds(record) for record in records)
    gpus = {role: getattr(plan.endpoints, role).gpus for role in ROLES}
    together = plan.engines == "together"  # both arms then hold their GPUs through every visit
    gpu_s = sum(_seconds(r) * (sum(gpus.values()) if together else gpus[r["role"]]) for r in records)
    left = None
    if plan.budget_minutes is not None and gpu_s:
        left = max(0.0, plan.budget_minutes - wall_s / 60) * gpu_s / wall_s
    return Cost(
        wall_s=wall_s,
        requests=sum(cell.asked for cell in measured),
        output_tokens=sum(cell.output_tokens for cell in measured),
        gpu_minutes=gpu_s / 60 if gpu_s else None,
        gpu_minutes_left=left,
    )


def _visit_records(root: Path) -> list[Any]:
    return [read_json(visit / "visit.json") for visit, _ in _visits(root)]


def _seconds(record: Any) -> float:
    return float(record["ended_at"] - record["started_at"])


def _visits(root: Path) -> Iterator[tuple[Path, str]]:
    for record in sorted(root.glob("pairs/*/*/visit.json")):
        yield record.parent, str(record.parent.relative_to(root))


def _hashes(root: Path, cells: Sequence[Cell], criteria: Sequence[Criterion]) -> dict[str, str]:
    profiles = {cell.profile.name: cell.profile.model_dump() for cell in cells}
    # Sets come in another order in every process, and the hash must not: `default` sorts what JSON does not know.
    canonical = json.dumps(profiles, sort_keys=True, default=sorted)
    rules = "\n".join(criterion.text for criterion in criteria)
    return {
        "plan": sha256(root / "plan.yaml"),
        "profiles": hashlib.sha256(canonical.encode()).hexdigest(),
        "criteria": hashlib.sha256(rules.encode()).hexdigest(),
        "code": code_sha256(),
        **({"history": read_json(attempt)["head"]} if (attempt := root / ATTEMPT).is_file() else {}),
        **({"floor": sha256(floor)} if (floor := root / "oracles" / "floor" / "tokens.json").is_file() else {}),
    }

"""A gate over an AIPerf played on a virtual clock: the same verdict whichever step of its journal it was killed at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from harness import capacity, pipeline
from harness.calibration import compare
from harness.client_bias import CALIBRATION, ClientBias
from harness.plan import Plan, make_plan
from harness.progress import silent
from harness.run_store import RunStore, write_json
from harness.traffic import Visit
from tests.engines.dialects import DIALECTS
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, save_tokenizer, toy_tokenizer
from tests.engines.visit import Client, _drive
from tests.test_calibration import SHAPE, known

PACES = {
    "baseline": Pace(ttft_ms=40, prefill_ms=0, itl_ms=8, jitter=0),
    "candidate": Pace(ttft_ms=20, prefill_ms=0, itl_ms=4, jitter=0),
}
PAIRS = 2
KINDS = ["calibration", "capacity", "measure", "oracles", "preflight", "prepare", "tasks", "visit", "workload"]


class Killed(BaseException):
    """What no except clause of the code under test may catch."""


class Played:
    """Stands for AIPerf, the engines and the calibration; counts the visits."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, str]] = []
        self.toys = {role: Toy(toy_tokenizer(), pace) for role, pace in PACES.items()}

    def run_visit(self, visit: Visit, _progress: object) -> list[Path]:
        self.visits.append((visit.pair, visit.role))
        rows = pq.read_table(visit.folder.parent / "workload.parquet").to_pylist()
        records: list[Any] = []
        for cell in visit.cells:
            lines = [row for row in rows if row["cell"] in (cell.name, "warmup" if cell is visit.cells[0] else "")]
            toy = self.toys[visit.role]
            records += asyncio.run(
                _drive(Engine(), [toy], DIALECTS["vllm"], lines, cell.concurrency or 1, Client(), {})
            )
        record = {"pair": visit.pair, "role": visit.role, "slot": visit.slot, "exit_code": 0, "cpu_count": 2}
        write_json(visit.folder / "visit.json", record | {"started_at": 1.0, "ended_at": 2.0, "load_average_1m": 0.1})
        export = visit.folder / "aiperf" / "profile_export_raw.jsonl"
        export.parent.mkdir(exist_ok=True)
        export.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        return [export, visit.folder / "visit.json"]

    def calibrate(self, _plan: Plan, cells: Any, arms: Any, store: RunStore, _progress: object) -> list[Path]:
        good = compare(SHAPE, *known(late_ms=0.1, slower=1.0), load=0)
        good = good.model_copy(update={"schedule_slip": 0.0, "measured_at": 0.0})
        found = {cell.name: dict.fromkeys(arms, good) for cell in cells}
        write_json(store.root / CALIBRATION, ClientBias(client={}, cells=found))
        return [store.root / CALIBRATION]

    @contextmanager
    def engines(self, *_: object) -> Iterator[Any]:
        yield self

    def serving(self, _role: str) -> Any:
        return nullcontext()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    one = Played()
    monkeypatch.setattr(pipeline, "run_visit", one.run_visit)
    monkeypatch.setattr(capacity, "run_visit", one.run_visit)
    monkeypatch.setattr(capacity, "REQUESTS", 4)
    monkeypatch.setattr(pipeline, "Engines", one.engines)
    monkeypatch.setattr(pipeline, "calibrate_run", one.calibrate)
    monkeypatch.setattr(pipeline, "report", lambda *_: None)
    monkeypatch.setattr("harness.plan.QUICK_PAIRS", PAIRS)  # so few are a full run here, calibration and all
    return one


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    data = {
        "model": "toy",
        "tokenizer": str(tokenizer),
        "endpoints": {role: {"url": "http://127.0.0.1:9"} for role in PACES},
        "profiles": [
            {"name": "smoke", "concurrency": [2], "request_count": 2},
            {"name": "burst", "request_count": 2, "tier": "gate"},
        ],
        "tasks": [{"name": "offline-pack", "limit": 7}],
        "pairs": [PAIRS],
    }
    return make_plan(data, source="test", folder=Path("/"))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_step_a_gate_ends_with_the_same_verdict(
    plan: Plan, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One run that is killed at each of its steps in turn: before a step is journalled, or just after."""
    whole = tmp_path / "whole" / "run"
    pipeline.gate(plan, RunStore.create(whole), silent)
    assert sorted({step.partition("/")[0] for step in journal(whole)}) == KINDS
    played.visits.clear()
    record = RunStore.record
    killed_at: list[str] = []

    def dying(store: RunStore, step: str, outputs: list[Path]) -> None:
        first = step not in killed_at
        if moment == "after" or not first:
            record(store, step, outputs)
        if first:
            killed_at.append(step)
            raise Killed(step)

    monkeypatch.setattr(RunStore, "record", dying)
    root = tmp_path / "killed" / "run"
    with pytest.raises(Killed):
        pipeline.gate(plan, RunStore.create(root), silent)
    while True:
        try:
            # A run that has no plan.yaml yet is begun anew by the user's own plan.
            resumed = pipeline.stored_plan(root) if (root / "plan.yaml").exists() else plan
            pipeline.gate(resumed, RunStore(root), silent)
            break
        except Killed:
            pass
    assert killed_at == journal(root) == journal(whole)
    assert (root / "verdict.json").read_bytes() == (whole / "verdict.json").read_bytes()
    expected = 1 if moment == "after" else 2
    assert all(played.visits.count(visit) == expected for visit in played.visits)


def journal(root: Path) -> list[str]:
    return [json.loads(line)["step"] for line in (root / "journal.jsonl").read_text().splitlines() if line]

"""Rates as shares of the baseline's capacity: measured once, written into the plan, the same after a resume."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from harness import capacity
from harness.capacity import REQUESTS, know_capacity, unknown_capacity
from harness.cells import make_cells
from harness.endpoint import Engines
from harness.errors import InvalidRun
from harness.pipeline import stored_plan
from harness.plan import Plan, make_plan
from harness.progress import silent
from harness.resuming import with_measured
from harness.run_store import RunStore
from harness.traffic import Visit
from tests.engines.dialects import DIALECTS
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, save_tokenizer, toy_tokenizer
from tests.engines.visit import Client, _drive

PACE = Pace(ttft_ms=100, prefill_ms=0, itl_ms=10, jitter=0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tok") / "tok")


def a_plan(tokenizer: Path, *profiles: Any) -> Plan:
    endpoints = {role: {"url": "http://127.0.0.1:9"} for role in ("baseline", "candidate")}
    data = {"model": "toy", "tokenizer": str(tokenizer), "endpoints": endpoints, "profiles": list(profiles)}
    return make_plan(data, source="test", folder=Path("/"))


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """AIPerf on a virtual clock; what was driven."""
    visits: list[str] = []

    def run_visit(visit: Visit, progress: Any) -> list[Path]:
        (part,) = visit.parts
        visits.append(part.cells[0].name)
        rows = pq.read_table(visit.folder.parent / "workload.parquet").to_pylist()
        toy = Toy(toy_tokenizer(), PACE)
        concurrency = part.cells[0].concurrency or 1
        records = asyncio.run(_drive(Engine(), [toy], DIALECTS["vllm"], rows, concurrency, Client(), {}))
        (visit.folder / "aiperf").mkdir(parents=True)
        export = visit.folder / "aiperf" / "profile_export_raw.jsonl"
        export.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        return [export]

    monkeypatch.setattr(capacity, "run_visit", run_visit)
    monkeypatch.setattr(capacity, "preflight", lambda *_: None)
    monkeypatch.setattr(Engines, "serving", lambda *_: nullcontext())
    return visits


def test_only_what_is_a_share_of_an_unknown_capacity_is_measured(tokenizer: Path) -> None:
    uses = ["burst", "smoke", {"name": "code-completion", "request_rate": [2]}, {"name": "azure", "capacity_per_s": 3}]
    assert [use.name for use in unknown_capacity(a_plan(tokenizer, *uses))] == ["burst"]
    assert unknown_capacity(a_plan(tokenizer, "burst").model_copy(update={"tier": "smoke"})) == ()


def test_a_rate_is_the_share_of_what_was_measured(tokenizer: Path, tmp_path: Path, driven: list[str]) -> None:
    store = RunStore.create(tmp_path / "run")
    plan = a_plan(tokenizer, "burst")
    known = know_capacity(plan, store, Engines(plan, tmp_path), silent)
    assert driven == ["burst/c32"]
    found = orjson.loads((tmp_path / "run/capacity/burst/capacity.json").read_bytes())
    assert found["served"] == found["asked"] == REQUESTS and found["requests_per_s"] > 1
    (cell,) = make_cells(known)
    assert cell.request_rate == pytest.approx(0.7 * found["requests_per_s"], rel=0.01)
    assert stored_plan(tmp_path / "run") == known, "a resume and a recheck read it from the plan"
    again = know_capacity(plan, store, Engines(plan, tmp_path), silent)
    assert again == known and driven == ["burst/c32"], "a kill before the plan was written measures nothing twice"
    assert with_measured(plan, known) == known


def test_a_trace_is_replayed_at_its_share(tokenizer: Path, tmp_path: Path, driven: list[str]) -> None:
    plan = a_plan(tokenizer, {"name": "azure", "capacity_per_s": 2})
    faster = a_plan(tokenizer, {"name": "azure", "capacity_per_s": 4})
    (slow,), (fast,) = make_cells(plan), make_cells(faster)
    assert slow.profile.trace and fast.profile.trace
    assert fast.profile.trace.speedup_ratio == pytest.approx(2 * slow.profile.trace.speedup_ratio, rel=1e-4)
    assert slow.name == f"azure/t{slow.profile.trace.speedup_ratio:g}"
    unknown = a_plan(tokenizer, "azure")
    known = know_capacity(unknown, RunStore.create(tmp_path / "run"), Engines(unknown, tmp_path), silent)
    assert driven == ["azure/c32"] and unknown_capacity(known) == ()


def test_a_baseline_that_serves_nothing_has_no_capacity(
    tokenizer: Path, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(visit: Visit, progress: Any) -> list[Path]:
        (visit.folder / "aiperf").mkdir(parents=True)
        return []

    monkeypatch.setattr(capacity, "run_visit", refuse)
    plan = a_plan(tokenizer, "burst")
    with pytest.raises(InvalidRun, match="baseline served none of 96 requests of burst"):
        know_capacity(plan, RunStore.create(tmp_path / "run"), Engines(plan, tmp_path), silent)

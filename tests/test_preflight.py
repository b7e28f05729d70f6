"""Before the first visit: a context that is too short and a fixed length that is not kept are found by effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.cells import make_cells
from harness.errors import InvalidRun, UsageError
from harness.plan import Plan, make_plan
from harness.preflight import Preflight, _refuse, preflight
from harness.probes import Capability, Support
from harness.progress import silent
from harness.run_store import RunStore, read_json
from harness.sweep_plan import SweepPlan, make_sweep
from tests.engines.dialects import DIALECTS
from tests.engines.server import Server, serving
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, toy_tokenizer

FAST = Pace(ttft_ms=1, prefill_ms=0, itl_ms=0.1, jitter=0)


@contextmanager
def toy(dialect: str) -> Iterator[str]:
    with serving(Server(Engine(), [Toy(toy_tokenizer(), pace=FAST)], DIALECTS[dialect])) as url:
        yield url


def sweep_of(url: str, profile: str) -> SweepPlan:
    data = {"model": "toy", "endpoints": {"a": {"url": url}}, "profiles": [profile], "tier": "smoke"}
    return make_sweep(data, source="test", folder=Path())


def gate_of(url: str, profile: str) -> Plan:
    endpoints = {"baseline": {"url": url}, "candidate": {"url": url}}
    data = {"model": "toy", "endpoints": endpoints, "profiles": [profile], "tier": "smoke"}
    return make_plan(data, source="test", folder=Path())


def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run")


def test_a_server_that_obeys_is_asked_once(tmp_path: Path) -> None:
    run = store(tmp_path)
    with toy("vllm") as url:
        preflight(sweep_of(url, "decode-easy-fixed"), "a", run, silent)
    found = Preflight.model_validate(read_json(tmp_path / "run/preflight/a.json"))
    assert found.fixed_length is not None and found.fixed_length.support in (Support.YES, Support.UNKNOWN)
    preflight(sweep_of("http://127.0.0.1:9", "decode-easy-fixed"), "a", run, silent)  # nothing is asked again


def test_a_server_that_refuses_the_fields_gets_no_fixed_length_cell(tmp_path: Path) -> None:
    with toy("transformers-serve") as url:
        with pytest.raises(InvalidRun, match=r"a: decode-easy-fixed/c1 asks for answers of a fixed length, .*obey"):
            preflight(sweep_of(url, "decode-easy-fixed"), "a", store(tmp_path), silent)
        preflight(sweep_of(url, "decode-easy"), "a", RunStore.create(tmp_path / "natural"), silent)
    assert read_json(tmp_path / "natural/preflight/a.json")["fixed_length"] is None


@pytest.mark.parametrize(("arm", "refused"), [("baseline", True), ("candidate", False)])
def test_a_gates_candidate_is_judged_by_its_answers(arm: str, *, refused: bool) -> None:
    plan = gate_of("http://127.0.0.1:9", "decode-easy-fixed")
    ignored = Capability(name="fixed length", support=Support.IGNORED, detail="2 without, 2 with")
    ignoring = Preflight(fixed_length=ignored)
    if refused:
        with pytest.raises(InvalidRun, match="2 without, 2 with"):
            _refuse(plan, arm, make_cells(plan), ignoring)
    else:
        _refuse(plan, arm, make_cells(plan), ignoring)


def test_a_context_that_is_too_short_names_both_numbers() -> None:
    plan = sweep_of("http://127.0.0.1:9", "chat-steady")
    with pytest.raises(UsageError, match=r"a: chat-steady \(tier smoke\) needs a context of \d+ tokens and .* has 128"):
        _refuse(plan, "a", make_cells(plan), Preflight(context_tokens=128))
    _refuse(plan, "a", make_cells(plan), Preflight(context_tokens=None))


def test_the_prefix_cache_is_emptied_before_every_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.probes.client import HttpClient, Reply

    asked: list[str] = []

    async def ask(self: Any, path: str, body: Any = None, **_: Any) -> Reply:
        asked.append(path)
        return Reply(200 if path == "/flush_cache" else 404)

    monkeypatch.setattr(HttpClient, "ask", ask)
    run, plan = store(tmp_path), sweep_of("http://127.0.0.1:9", "smoke")
    preflight(plan, "a", run, silent)
    preflight(plan, "a", run, silent)
    assert asked.count("/flush_cache") == 3, "found once, then once a visit"

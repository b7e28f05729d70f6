"""The whole gate with tasks in its plan, AIPerf replaced by a client on a virtual clock: files, verdict, resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness import pipeline, reference_tasks
from harness.judge import judge
from harness.plan import Plan, Reference, make_plan
from harness.progress import silent
from harness.run_store import RunStore, read_json, write_json
from harness.task_grading import grade_tasks
from harness.traffic import Visit
from harness.verdict import Status, Verdict
from oracles.reference import OracleError
from reports.flips import tasks_table
from reports.run_data import read_run
from tests.engines.answer_sheet import AnswerSheet, answers_of
from tests.engines.dialects import DIALECTS
from tests.engines.stream import Engine
from tests.engines.toy import save_tokenizer, toy_tokenizer
from tests.engines.visit import visit as virtual_visit


class Killed(Exception):  # noqa: N818 - what happened, not a fault
    pass


class Engines:
    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def serving(self, _role: str) -> AbstractContextManager[None]:
        return nullcontext()


class Client:
    """Stands for `run_visit`; counts what it asked, and may be killed in the middle of one visit."""

    def __init__(self, candidate: str, killed_in: int | None = None) -> None:
        self.candidate, self.killed_in = candidate, killed_in
        self.visits: list[str] = []
        self.asked: Counter[tuple[str, str]] = Counter()

    def __call__(self, visit: Visit, _progress: object) -> list[Path]:
        self.visits.append(f"{visit.pair} {visit.role}")
        rows = pq.read_table(visit.folder.parent / "workload.parquet").to_pylist()
        if len(self.visits) == self.killed_in:
            raise Killed
        says = (lambda target: target) if visit.role == "baseline" else (lambda target: self.candidate or target)
        sheet = AnswerSheet(answers_of(visit.folder.parents[2]), says)
        virtual_visit(Engine(), [sheet], DIALECTS["vllm"], rows, visit.folder / "aiperf", toy_tokenizer())
        self.asked.update((visit.role, row["item"]) for row in rows if row["kind"] == "task")
        record = {"pair": visit.pair, "role": visit.role, "slot": visit.slot, "exit_code": 0}
        record |= {"started_at": 1.0, "ended_at": 2.0, "load_average_1m": 0.1, "cpu_count": 2}
        write_json(visit.folder / "visit.json", record)
        return sorted(path for path in visit.folder.rglob("*") if path.is_file())


def plan_in(folder: Path) -> Plan:
    data = {
        "model": "toy",
        "tokenizer": str(save_tokenizer(folder / "tokenizer")),
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "profiles": [{"name": "chat-steady", "concurrency": [2, 4], "request_count": 4}],
        "tier": "smoke",
        "tasks": [{"name": "offline-pack", "limit": 35}],
        "pairs": [5],
    }
    return make_plan(data, source="test", folder=Path("/"))


def run(monkeypatch: pytest.MonkeyPatch, plan: Plan, root: Path, client: Client, *, resume: bool = False) -> Verdict:
    monkeypatch.setattr(pipeline, "Engines", Engines)
    monkeypatch.setattr(pipeline, "check_aiperf", lambda: None)
    monkeypatch.setattr(pipeline, "run_visit", client)
    pipeline.check(plan)
    return pipeline.gate(plan, RunStore.open(root) if resume else RunStore.create(root), silent)


def tasks_check(verdict: Verdict) -> Any:
    return next(check for check in verdict.checks if check.metric == "tasks")


def test_a_gate_grades_its_tasks_and_resumes_without_asking_an_item_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, root = plan_in(tmp_path), tmp_path / "run"
    first = Client("no idea", killed_in=4)
    with pytest.raises(Killed):
        run(monkeypatch, plan, root, first)
    items = (root / "tasks/items.parquet").read_bytes()
    second = Client("no idea")
    verdict = run(monkeypatch, pipeline.stored_plan(root), root, second, resume=True)

    assert (root / "tasks/items.parquet").read_bytes() == items, "the sealed items are not drawn again"
    assert set(first.visits[:3]).isdisjoint(second.visits) and first.visits[3] == second.visits[0]
    asked = first.asked + second.asked
    assert set(asked.values()) == {1} and len(asked) == 2 * 35
    check = tasks_check(verdict)
    assert check.status is Status.FAIL and check.n == 35 and check.candidate == 0.0 and check.baseline == 100.0
    assert "35 lost and 0 gained" in check.reason
    assert judge(plan, root) == verdict, "judged again from the files it is the same"
    told = {check.check for check in verdict.checks}
    assert not any(name.startswith("oracle.tasks") for name in told)


def test_a_reference_server_is_asked_the_items_once_for_its_own_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, root = plan_in(tmp_path), tmp_path / "run"
    served = Reference(url="http://r/v1", model="bf16", tasks=True)
    asked: Counter[str] = Counter()

    def ask(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert path == "/v1/chat/completions" and body["model"] == "bf16" and "stream" not in body
        question = body["messages"][-1]["content"]
        asked[question] += 1
        if len(asked) == 1:
            raise OracleError("HTTP 500")
        answer = answers_of(root)[question]
        message = {"content": f"{answer} {answer}", "reasoning_content": "Let me see. " * 2}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}

    run(monkeypatch, plan, root, Client(""))
    monkeypatch.setattr(reference_tasks, "reference_ask", lambda _reference: ask)
    plan = plan.model_copy(update={"reference": served})
    store = RunStore.open(root)
    for _ in range(2):
        reference_tasks.collect_reference_tasks(plan, store, silent)
    assert set(asked.values()) == {1} and len(asked) == 35
    reference_tasks.grade_reference_tasks(plan, root)
    grade_tasks(plan, 5, root, silent)
    told = read_json(root / "oracles/reference/tasks.json")
    assert told["metrics"]["error"]["value"] == pytest.approx(1 / 35) and told["findings"] == []
    assert 0 < told["metrics"]["score"]["value"] < 100
    metrics = read_json(root / "oracles/candidate/tasks.json")["metrics"]
    assert metrics["length_over_reference"]["value"] == pytest.approx(0.5, abs=0.05)
    assert metrics["thinking_over_reference"]["value"] == 0.0
    table = tasks_table(read_run(root), [])
    assert table.columns[-1].label == "Reference" and table.rows[0].items[-1].value == told["metrics"]["score"]["value"]


def test_tasks_that_could_not_be_graded_are_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, root = plan_in(tmp_path), tmp_path / "run"
    monkeypatch.setattr("oracles.task_grades.sha256_of", lambda _prompt: "another")
    verdict = run(monkeypatch, plan, root, Client(""))
    assert tasks_check(verdict).status is Status.INVALID
    unscored = next(check for check in verdict.checks if check.check == "oracle.tasks")
    assert unscored.status is Status.INVALID and "another prompt than was sent" in unscored.reason

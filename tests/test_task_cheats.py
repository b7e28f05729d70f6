"""Engines that plain lm-eval passes and the timed stream does not: good when asked alone, or when lm-eval asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.accuracy import Judged, judge_tasks
from harness.cells import make_cells
from harness.plan import Plan, make_plan
from harness.run_store import read_json
from harness.task_grading import grade_tasks, task_scores
from harness.task_stream import task_source, write_tasks
from harness.verdict import Status
from harness.workload import write_pair
from oracles.task_loading import TaskSpec, load
from oracles.task_model import quiet
from tests.engines.answer_sheet import AnswerSheet, answers_of
from tests.engines.dialects import DIALECTS
from tests.engines.server import Server, serving
from tests.engines.stream import Engine, Request
from tests.engines.toy import toy_tokenizer
from tests.engines.visit import visit

CONCURRENCY, ITEMS = 8, 140


class GoodWhenAlone(Engine):
    name = "good-when-alone"

    def route(self, request: Request) -> int:
        return int(request.in_flight >= CONCURRENCY)


class GoodForLmEval(Engine):
    """Seed 1234, no stream, temperature 0: nobody but lm-eval's own clients asks so."""

    name = "good-for-lm-eval"

    def route(self, request: Request) -> int:
        known = request.seed == 1234 and not request.body.get("stream") and request.temperature == 0
        return int(not known)


class Honest(Engine):
    name = "honest"


class Run:
    """One pair of chat traffic at eight in flight with the pack in it, and the two kinds of weights."""

    def __init__(self, root: Path) -> None:
        self.root = root
        data = {
            "model": "toy",
            "tokenizer": "/nowhere",
            "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
            "profiles": [{"name": "chat-steady", "concurrency": [CONCURRENCY], "request_count": ITEMS}],
            "tier": "smoke",
            "tasks": [{"name": "offline-pack", "limit": ITEMS}],
            "pairs": [2],
        }
        self.plan: Plan = make_plan(data, source="test", folder=Path("/"))
        cells = make_cells(self.plan)
        write_tasks(self.plan, cells, root, lambda *_: None)
        source = task_source(self.plan, cells, 1, root)
        write_pair(self.plan, cells, 1, root / "pairs/01", lambda text: len(text.split()), [source])
        self.rows = pq.read_table(root / "pairs/01/workload.parquet").to_pylist()
        self.good = AnswerSheet(answers_of(root))
        self.bad = AnswerSheet(answers_of(root), lambda target: "I would say 7.")

    def gate(self, candidate: Engine) -> Judged:
        """Both arms through the real reader and lm-eval's graders; the criterion `tasks >= -1.0pt`."""
        for role, engine in (("baseline", Honest()), ("candidate", candidate)):
            folder = self.root / "pairs/01" / role
            visit(
                engine, [self.good, self.bad], DIALECTS["vllm"], self.rows, folder, toy_tokenizer(),
                concurrency=CONCURRENCY,
            )  # fmt: skip
        grade_tasks(self.plan, 1, self.root, lambda *_: None)
        scores = task_scores(self.root)
        assert scores is not None
        return judge_tasks(scores, -1.0)

    def plain_lm_eval(self, engine: Engine) -> float:
        """lm-eval's own chat client, one request at a time, against the same engine over a socket."""
        import lm_eval
        from lm_eval.api.registry import get_model

        tasks = load(TaskSpec("offline-pack"), self.root / "tasks/pack", chat=True)
        with serving(Server(engine, [self.good, self.bad])) as url, quiet():
            client = get_model("local-chat-completions")(
                model="toy", base_url=f"{url}/v1/chat/completions", num_concurrent=1
            )
            done: Any = lm_eval.evaluate(
                client,
                {"tasks": tasks},
                limit=1,
                apply_chat_template=True,
                fewshot_as_multiturn=True,
                bootstrap_iters=0,
            )
        scores = [sample["exact_match"] for samples in done["samples"].values() for sample in samples]
        return sum(scores) / len(scores)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def test_an_honest_engine_passes_both(run: Run) -> None:
    assert run.gate(Honest()).observed == 0.0
    assert run.plain_lm_eval(Honest()) == 1.0


@pytest.mark.parametrize("engine", [GoodWhenAlone(), GoodForLmEval()], ids=lambda engine: engine.name)
def test_an_engine_that_lm_eval_passes_fails_in_the_stream(run: Run, engine: Engine) -> None:
    assert run.plain_lm_eval(engine) == 1.0
    judged = run.gate(engine)
    assert judged.status is Status.FAIL and (judged.high or 0.0) < -20, judged.reason
    flips = pq.read_table(run.root / "oracles/candidate/flips.parquet").to_pylist()
    assert {flip["direction"] for flip in flips} == {"lost"} and len(flips) > ITEMS // 4
    assert flips[0]["baseline_extracted"] == flips[0]["target"] != flips[0]["candidate_extracted"]
    result = read_json(run.root / "oracles/candidate/tasks.json")
    assert (
        result["metrics"]["difference"]["value"] < -20 and result["metrics"]["difference.pack_json"]["n"] == ITEMS // 14
    )
    assert any(note.startswith("Alarm:") for note in result["notes"])
    assert result["status"] == "scored" and result["metrics"]["score"]["value"] < 75

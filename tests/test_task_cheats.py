"""Engines that plain lm-eval passes and the timed stream does not: good when asked alone, or when lm-eval asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.accuracy import Judged, judge_tasks
from harness.plan import Plan, make_plan
from harness.run_store import read_json
from harness.task_grading import grade_tasks, task_scores
from harness.task_stream import task_source, write_tasks
from harness.verdict import Status
from harness.workload import make_cells, write_pair
from oracles.task_loading import TaskSpec, load
from oracles.task_model import quiet
from oracles.tasks import read_items
from tests.engines.dialects import DIALECTS
from tests.engines.server import Server, serving
from tests.engines.stream import Engine, Event, Request, Stream, Usage
from tests.engines.toy import pieces_of, toy_tokenizer
from tests.engines.visit import visit

CONCURRENCY, ITEMS = 8, 140


class Weights:
    """A model that knows every answer of the pack, or gets them wrong; other questions get small talk."""

    def __init__(self, answers: dict[str, str], says: Callable[[str], str]) -> None:
        self.answers, self.says = answers, says

    async def events(self, request: Request) -> Stream:
        target = self.answers.get(request.messages[-1]["content"])
        text = self.says(target) if target is not None else f"Well, that depends on {len(request.prompt)} things."
        tokenizer = toy_tokenizer()
        ids = tokenizer.encode(text).ids
        usage = Usage(len(request.prompt) // 4, len(ids) + 1)
        yield Event(20.0, role=True)
        for step, (token, piece) in enumerate(pieces_of(ids, tokenizer)):
            yield Event(20.0 + 4.0 * step, text=piece, ids=(token,))
        yield Event(20.0 + 4.0 * len(ids), finish="stop", usage=usage)


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
        items = read_items(root / "tasks/items.parquet")
        answers = {json.loads(item.messages)[-1]["content"]: item.target for item in items}
        self.good = Weights(answers, lambda target: target)
        self.bad = Weights(answers, lambda target: "I would say 7.")

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

        tasks = load(TaskSpec("offline-pack"), self.root / "tasks/pack", chat=True)
        with serving(Server(engine, [self.good, self.bad])) as url, quiet():
            done: Any = lm_eval.simple_evaluate(
                model="local-chat-completions",
                model_args={"model": "toy", "base_url": f"{url}/v1/chat/completions", "num_concurrent": 1},
                tasks=list(tasks.values()),
                limit=2,
                apply_chat_template=True,
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
    assert result["status"] == "scored" and result["metrics"]["score"]["value"] < 75

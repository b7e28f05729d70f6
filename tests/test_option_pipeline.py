"""The whole gate with a task of options in its plan: asked after the pairs, once, graded, judged; killed, resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import logits, option_tasks
from harness.accuracy import judge_tasks
from harness.judge import judge
from harness.option_grading import option_scores
from harness.pipeline import stored_plan
from harness.plan import Plan, make_plan
from harness.probes import Capability, Support
from harness.run_store import read_json
from harness.verdict import Status
from oracles.task_options import collect_options
from tests.test_task_options import encode, words_task
from tests.test_task_pipeline import Client, Killed, run
from tests.tiny_model import tiny_folder
from tests.tiny_server import Server

ITEMS, OPTIONS = 12, 48


class Arm(Server):
    """Counts the prompts it was asked about; the judge is killed at one of them."""

    def __init__(self, *bend: Any) -> None:
        super().__init__(*bend)
        self.prompts: Counter[tuple[int, ...]] = Counter()
        self.kills: tuple[int, ...] = ()
        self.dead = False

    def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.dead = self.dead or tuple(body["prompt"]) == self.kills
        if self.dead:
            raise Killed
        self.prompts[tuple(body["prompt"])] += 1
        return super().__call__(path, body)


def plan_in(folder: Path) -> Plan:
    data = {
        "model": "m",
        "reference": {"path": str(tiny_folder())},
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "profiles": [{"name": "chat-steady", "concurrency": [2], "request_count": 4}],
        "tier": "smoke",
        "tasks": [{"name": "offline-pack", "limit": 14}, {"name": words_task(folder).name, "options": True}],
        "pairs": [4],
        "floor_tokens": 64,
        "logit_documents": 4,
    }
    return make_plan(data, source="test", folder=Path("/"))


@pytest.fixture
def arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Arm]:
    """An honest baseline and a candidate whose log-probabilities are upside down."""
    servers = {"baseline": Arm(), "candidate": Arm(lambda table, _phase: -table)}

    async def proved(_target: object) -> Capability:
        return Capability(name="prompt_logprobs", support=Support.YES, detail="true")

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("oracles.task_options.IN_FLIGHT", 1)
    monkeypatch.setattr(option_tasks.logprobs, "prompt_logprobs", proved)
    monkeypatch.setattr(option_tasks.logprobs, "echo", proved)
    for asker in (option_tasks, logits):
        monkeypatch.setattr(asker, "endpoint_ask", lambda _plan, arm: servers[arm])
    return servers


def test_a_gate_asks_every_option_once_and_judges_them_apart(
    arms: dict[str, Arm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, root = plan_in(tmp_path), tmp_path / "run"
    asked = [tuple(one.ids) for one in collect_options(words_task(tmp_path), encode, seed=1)[1]]
    arms["candidate"].kills = asked[OPTIONS // 2]
    first, second = Client(""), Client("")
    with pytest.raises(Killed):
        run(monkeypatch, plan, root, first)
    assert 0 < sum(arms["candidate"].prompts[ids] for ids in asked) < OPTIONS
    arms["candidate"].kills, arms["candidate"].dead = (), False
    verdict = run(monkeypatch, stored_plan(root), root, second, resume=True)

    assert second.visits == [] and set(first.asked.values()) == {1} and len(first.asked) == 2 * 14
    assert len(set(asked)) == OPTIONS
    for server in arms.values():
        assert {server.prompts[ids] for ids in asked} == {1}, "no option is asked twice, over both runs"

    told = read_json(root / "oracles/candidate/options.json")["metrics"]
    scores = option_scores(root)
    assert told["difference"]["n"] == ITEMS and scores is not None and (scores.baseline != scores.candidate).any()
    assert judge_tasks(scores, -1.0).status is not Status.PASS
    assert read_json(root / "oracles/candidate/tasks.json")["metrics"]["difference"]["n"] == 14, "never pooled"
    assert {"tasks", "tasks.options"} <= {check.check for check in verdict.checks}
    assert judge(plan, root) == verdict, "judged again from the files it is the same"
    assert "asked apart from the timed stream" in (root / "report.html").read_text(encoding="utf-8")

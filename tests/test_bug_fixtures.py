"""Bug reports of logprob endpoints, as the responses they gave: none of them may be believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.cells import make_cells
from harness.probes import logprobs
from harness.probes.capability import Support, Target
from harness.probes.client import Reply
from harness.task_stream import write_tasks
from tests.test_tasks import graded, plan_with

TRUE = [None, -5.1, -0.7, -3.2, -1.1, -0.4, -0.9]  # five prompt tokens and two the engine would add
IDS = [11, 12, 13, 14, 15, 16, 17]


@dataclass(frozen=True)
class Endpoint:
    """Answers greedy questions truthfully and prompt questions the way the bug does."""

    echoed: dict[str, Any] | None = None
    prompt_rows: list[Any] | None = None
    chat_content: list[Any] | None = None

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = 0) -> Reply:
        body = body or {}
        if "chat" in path:
            content = {"content": self.chat_content} if self.chat_content is not None else None
            choice: dict[str, Any] = {"message": {"content": "Red"}, "logprobs": content}
        elif body.get("echo"):
            choice = {"text": body["prompt"] + " fr", **(self.echoed or {})}
        elif "prompt_logprobs" in body:
            choice = {"text": " x", "prompt_logprobs": self.prompt_rows}
        else:
            choice = {"text": " Paris,", "logprobs": {"token_logprobs": TRUE[-2:], "top_logprobs": [{}, {}]}}
        usage = {"prompt_tokens": len(TRUE), "completion_tokens": body.get("max_tokens")}
        return Reply(200, json.dumps({"choices": [{"index": 0, **choice}], "usage": usage}))


def probe(name: str, endpoint: Endpoint) -> Support:
    target = Target(endpoint, "m", encode=lambda _: IDS)
    return asyncio.run(getattr(logprobs, name)(target)).support


def echoed(values: list[Any]) -> dict[str, Any]:
    return {"logprobs": {"token_logprobs": values, "top_logprobs": [{}] * len(values)}}


def rows(values: list[Any]) -> list[Any]:
    return [v if v is None else {str(i): {"logprob": v, "rank": 1}} for i, v in zip(IDS, values, strict=False)]


def test_a_true_endpoint_is_believed() -> None:
    assert probe("echo", Endpoint(echoed=echoed([*TRUE, -2.0]))) is Support.YES
    assert probe("prompt_logprobs", Endpoint(prompt_rows=rows(TRUE))) is Support.YES


@pytest.mark.parametrize(
    ("report", "values"),
    [
        ("llama.cpp#27174: only the generated token", [-2.0]),
        ("Model-Optimizer#1577: rows cut by KV reuse", [*TRUE[:4], -2.0]),
        ("llama-cpp-python: off by one", [*TRUE[1:], -2.0, -2.0]),
        ("trtllm#2406: always 0.0", [0.0] * 8),
        ("vllm#5334: offsets and tokens malformed", ["-5.1"] * 8),
        ("vllm#22881: NaN written as null", [None] * 8),
    ],
)
def test_wrong_echo_is_not_believed(report: str, values: list[Any]) -> None:
    assert probe("echo", Endpoint(echoed=echoed(values))) is not Support.YES, report


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ("vllm#5162: rows of another prompt", rows([None, -9.0, -8.0, -9.5, -8.8, -9.9, -7.7])),
        ("vllm#42019: stale rows at the end", rows([*TRUE[:5], -12.0, -12.0])),
        ("vllm PR#38711: catastrophic near the end of the context", rows([*TRUE[:5], -45.0, -61.0])),
        ("vllm#17876: always 0.0", rows([None, *[0.0] * 6])),
        ("ignored", None),
        ("no object a row", [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_wrong_prompt_logprobs_are_not_believed(report: str, found: list[Any] | None) -> None:
    assert probe("prompt_logprobs", Endpoint(prompt_rows=found)) is not Support.YES, report


def test_alternatives_keyed_by_text_that_collide_are_not_counted_twice() -> None:
    """vllm#44319: `true` and another token that decodes to `true`: asked for 5, four keys came."""
    four = {"true": -0.1, "false": -2.0, "yes": -3.0, "no": -4.0}
    block = {"token_logprobs": [-0.1] * 4, "top_logprobs": [four] * 4}

    class Colliding(Endpoint):
        async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = 0) -> Reply:
            usage = {"completion_tokens": 4}
            return Reply(200, json.dumps({"choices": [{"text": "x", "logprobs": block}], "usage": usage}))

    found = asyncio.run(logprobs.completion_logprobs(Target(Colliding(), "m")))
    assert found.value == 1 and "only 4" in found.detail


def test_fewer_logprobs_than_tokens_is_partly() -> None:
    """llama.cpp merges the tokens of a split character into one chunk and loses their logprobs."""
    content = [{"logprob": -0.5, "top_logprobs": [1] * 1000}] * 2
    assert probe("chat_logprobs", Endpoint(chat_content=content)) is Support.PARTLY


@pytest.mark.parametrize(
    ("report", "task", "wrong"),
    [
        ("proeval PR#19: the minus sign was lost", "pack_arithmetic", "-{}"),
        ("claude-cookbooks#497: correct was found in incorrect", "pack_facts", "un{}able"),
        ("lm-eval#1204, lighteval#686: an empty answer is no right one", "pack_arithmetic", ""),
    ],
)
def test_graders_take_no_wrong_answer_for_a_right_one(report: str, task: str, wrong: str, tmp_path: Path) -> None:
    """That right ones are not all graded 0, and thoughts are not graded, is in tests/test_tasks.py."""
    plan = plan_with(tasks=[{"name": "offline-pack", "limit": 14}])
    write_tasks(plan, make_cells(plan), tmp_path, lambda *_: None)
    rows = graded(tmp_path, lambda item: wrong.replace("{}", item.target, 1) if item.task == task else item.target)
    assert {row["score"] for row in rows if row["task"] == task} == {0.0}, report
    assert {row["score"] for row in rows if row["task"] != task} == {1.0}

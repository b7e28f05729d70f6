"""A real model's answers, recorded once and played at a set pace: AIPerf, sockets and the reference are all real.

What two cores cannot do for sixty engines is to decode every answer anew. `bank` reads the answers of a finished gate;
`Recorded` serves them. A prompt that was never asked (a cheat rewrote it) is answered by the toy model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tests.engines.stream import Event, Request, Stream, Usage
from tests.engines.toy import Pace, Toy, pieces_of

Answer = dict[str, Any]


def bank(run: Path, role: str) -> dict[str, Answer]:
    """Answers of one arm of a finished run, by what was asked; the warm-up is left out."""
    answers: dict[str, Answer] = {}
    for pair in sorted((run / "pairs").iterdir()):
        asked = pq.read_table(pair / "workload.parquet").to_pylist()
        came = {row["line"]: row for row in pq.read_table(pair / role / "requests.parquet").to_pylist()}
        for row in asked:
            answer = came[row["line"]]
            if answer["status"] == "ok":
                key = _key(json.loads(row["messages"]), row["seed"] & 0x7FFFFFFF, row["temperature"])
                fields = ("text", "finish_reason", "usage_prompt_tokens", "usage_completion_tokens", "token_ids")
                answers[key] = {name: answer[name] for name in fields}
    return answers


@dataclass(frozen=True)
class Recorded:
    """Serves recorded answers token by token at `pace`."""

    answers: dict[str, Answer]
    tokenizer: Tokenizer
    pace: Pace
    otherwise: Toy = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "otherwise", Toy(self.tokenizer, self.pace))

    async def events(self, request: Request) -> Stream:
        """The recorded answer, cut where this request asks for less."""
        answer = self.answers.get(_key(request.messages, request.seed, request.temperature))
        answer = answer or self.answers.get(_key(request.messages, 0, 0.0))
        if answer is None:
            async for event in self.otherwise.events(request):
                yield event
            return
        ids = answer["token_ids"] or self.tokenizer.encode(answer["text"], add_special_tokens=False).ids
        ids, finish = list(ids)[: request.max_tokens], answer["finish_reason"]
        if request.max_tokens < len(answer["token_ids"] or ids):
            finish = "length"
        made = len(ids) + (finish == "stop")
        if finish == answer["finish_reason"]:
            made = answer["usage_completion_tokens"] or made
        usage = Usage(answer["usage_prompt_tokens"] or 0, made)
        async for event in self._timed(ids, finish, usage, request.in_flight):
            yield event

    async def _timed(self, ids: Iterable[int], finish: str, usage: Usage, in_flight: int) -> Stream:
        at = self.pace.ttft_ms + self.pace.prefill_ms * usage.prompt_tokens
        step = self.pace.itl_ms + self.pace.load_ms * (in_flight - 1)
        yield Event(at, role=True)
        for token, text in pieces_of(list(ids), self.tokenizer):
            yield Event(at, text=text, ids=(token,), usage=usage)
            at += step
        yield Event(at, finish=finish, usage=usage)


def _key(messages: list[dict[str, Any]], seed: int, temperature: float) -> str:
    """Greedy answers do not depend on the seed."""
    return json.dumps([[(m["role"], m["content"]) for m in messages], seed if temperature > 0 else 0])

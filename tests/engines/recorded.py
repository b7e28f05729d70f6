"""A real model's answers, recorded once and played at a set pace: AIPerf, sockets and the reference are all real.

What two cores cannot do for seventy engines is to decode every answer anew. `tests.engines.generate` decodes everything
that a workload asks, without its stop strings; `Recorded` serves what the model said, cut where a request says so. A
prompt that was never asked is answered by the toy model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from tests.engines.stream import Event, Request, Stream, Usage
from tests.engines.toy import Pace, Toy, pieces_of

Answer = dict[str, Any]
Bank = dict[str, Answer]


def read_bank(file: Path) -> Bank:
    """Answers by what was asked; a line that a killed recording left unfinished is dropped."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    answers = [orjson.loads(line) for line in lines if line.endswith(b"\n")]
    return {answer["key"]: answer for answer in answers}


@dataclass(frozen=True)
class Recorded:
    """Serves recorded answers token by token at `pace`; with `thinks` the first half of each is reasoning."""

    answers: Bank
    tokenizer: Tokenizer
    pace: Pace
    thinks: bool = False
    otherwise: Toy = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "otherwise", Toy(self.tokenizer, self.pace, thinks=self.thinks))

    async def events(self, request: Request) -> Stream:
        """The recorded answer, cut at this request's stop strings and max_tokens."""
        answer = self.answers.get(key_of(request))
        if answer is None:
            async for event in self.otherwise.events(request):
                yield event
            return
        ids, finish = list(answer["ids"]), str(answer["finish"])
        text = self.tokenizer.decode(ids)
        cut = min((at for at in map(text.find, request.stop) if at >= 0), default=-1)
        if cut >= 0:
            ids, finish = self.tokenizer.encode(text[:cut], add_special_tokens=False).ids, "stop"
        if len(ids) >= request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
        usage = Usage(int(answer["prompt_tokens"]), len(ids) + (finish == "stop"))
        async for event in self._timed(ids, finish, usage, request.in_flight):
            yield event

    async def _timed(self, ids: Sequence[int], finish: str, usage: Usage, in_flight: int) -> Stream:
        at = self.pace.ttft_ms + self.pace.prefill_ms * usage.prompt_tokens
        step = self.pace.itl_ms + self.pace.load_ms * (in_flight - 1)
        yield Event(at, role=True)
        for number, (token, text) in enumerate(pieces_of(list(ids), self.tokenizer)):
            thought = self.thinks and number < len(ids) // 2
            yield Event(at, text=text, ids=(token,), usage=usage, reasoning=thought)
            at += step
        yield Event(at, finish=finish, usage=usage)


def key_of(request: Request) -> str:
    """Greedy answers do not depend on the seed."""
    said = [(message["role"], message["content"]) for message in request.messages]
    return json.dumps([said, *((request.seed, request.temperature) if request.temperature > 0 else ())])

"""A model that knows the answers to a run's task items, or gets them wrong in a way of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from oracles.tasks import read_items
from tests.engines.stream import Event, Request, Stream, Usage
from tests.engines.toy import pieces_of, toy_tokenizer


def answers_of(root: Path) -> dict[str, str]:
    """Question -> right answer, out of a run's tasks/items.parquet."""
    return {json.loads(i.messages)[-1]["content"]: i.target for i in read_items(root / "tasks/items.parquet")}


class AnswerSheet:
    """`says` makes the answer out of the right one; what is no task item gets small talk."""

    def __init__(self, answers: dict[str, str], says: Callable[[str], str] = str) -> None:
        self.answers, self.says = answers, says

    async def events(self, request: Request) -> Stream:
        target = self.answers.get(request.messages[-1]["content"])
        text = self.says(target) if target is not None else f"Well, that depends on {len(request.prompt)} things."
        tokenizer = toy_tokenizer()
        whole = tokenizer.encode(text).ids
        ids = whole[: request.max_tokens]
        finish = "stop" if len(whole) < request.max_tokens else "length"
        usage = Usage(len(request.prompt) // 4, len(ids) + (finish == "stop"))
        yield Event(20.0, role=True)
        for step, (token, piece) in enumerate(pieces_of(ids, tokenizer)):
            yield Event(20.0 + 4.0 * step, text=piece, ids=(token,))
        yield Event(20.0 + 4.0 * len(ids), finish=finish, usage=usage)

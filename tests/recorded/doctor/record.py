"""Record what a real server answers to the doctor: every question with its whole reply.

    python -m tests.recorded.doctor.record NAME URL MODEL [TOKENIZER_FOLDER]

writes tests/recorded/doctor/NAME.json.gz.
"""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from harness.doctor import diagnose
from harness.probes import Target
from harness.probes.client import EVENT_LIMIT, HttpClient, Reply

HERE = Path(__file__).parent


def key(path: str, body: Mapping[str, Any] | None) -> str:
    return orjson.dumps([path, body], option=orjson.OPT_SORT_KEYS).decode()


@dataclass
class Recorder:
    """Passes questions on to the real client and keeps the replies in order."""

    client: HttpClient
    exchanges: dict[str, list[Any]] = field(default_factory=dict)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT) -> Reply:
        reply = await self.client.ask(path, body, stop_after=stop_after)
        self.exchanges.setdefault(key(path, body), []).append(asdict(reply))
        return reply


@dataclass
class Replayed:
    """Answers as the recorded server did; a question that was never asked fails the test."""

    exchanges: dict[str, list[Any]]

    @classmethod
    def load(cls, name: str) -> Replayed:
        return cls(orjson.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes())))

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT) -> Reply:
        replies = self.exchanges[key(path, body)]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return Reply(**{**reply, "events": tuple((ms, data) for ms, data in reply["events"])})


def main(name: str, url: str, model: str, tokenizer: str | None = None) -> None:
    encode = None
    if tokenizer:
        words = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
        encode = lambda text: list(words.encode(text).ids)  # noqa: E731
    recorder = Recorder(HttpClient(url))
    diagnosis = asyncio.run(diagnose(name, url, Target(recorder, model, encode), print))
    data = gzip.compress(orjson.dumps(recorder.exchanges), mtime=0)
    (HERE / f"{name}.json.gz").write_bytes(data)
    print(diagnosis.dialect, diagnosis.dialect_reason, len(data))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What an engine is here: a request in, timed events out, whatever dialect then puts them on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Token counts as an engine claims them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Event:
    """One event of a response, due `at_ms` after the request came in."""

    at_ms: float
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    role: bool = False  # the opening chunk that carries no text
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None  # an error event inside the 200 stream
    reasoning: bool = False  # the text is thought, not answer
    hang_up: bool = False  # the connection closes here, nothing more is sent


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818 - what it is, not a fault here
    """Answer with this HTTP status instead of a stream."""

    status: int
    message: str
    at_ms: float = 1.0


@dataclass
class Request:
    """One request as the engine sees it."""

    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    index: int = 0  # arrival number, from 0
    in_flight: int = 1  # requests running when it came, itself included
    connection: int = 0
    at_s: float = 0.0  # arrival, seconds since the engine started

    @property
    def messages(self) -> list[dict[str, Any]]:
        if "messages" in self.body:
            return list(self.body["messages"])
        return [{"role": "user", "content": str(self.body.get("prompt", ""))}]

    @property
    def prompt(self) -> str:
        return "\n".join(str(message.get("content", "")) for message in self.messages)

    @property
    def max_tokens(self) -> int:
        return int(self.body.get("max_tokens") or self.body.get("max_completion_tokens") or 128)

    @property
    def temperature(self) -> float:
        return float(self.body.get("temperature") or 0.0)

    @property
    def seed(self) -> int:
        return int(self.body.get("seed") or 0)

    @property
    def stop(self) -> list[str]:
        stop = self.body.get("stop") or []
        return [stop] if isinstance(stop, str) else list(stop)

    @property
    def ignore_eos(self) -> bool:
        return bool(self.body.get("ignore_eos"))

    def but(self, **fields: Any) -> Request:
        """The same request with other body fields; None removes one."""
        body = {k: v for k, v in {**self.body, **fields}.items() if v is not None}
        return Request(body, self.headers, self.index, self.in_flight, self.connection, self.at_s)


Stream = AsyncIterator[Event]


class Engine:
    """An honest engine: passes every request to `upstream` and every event through.

    `upstreams` are the models it could ask; index 0 is the one it claims to be. A cheat overrides one method.
    """

    name = "honest"
    does = "answers every request with the model it claims to run"
    rows: tuple[int, ...] = ()  # of the catalogue in docs/threat-model.md
    check = ""  # the check that must name it

    def route(self, request: Request) -> int:
        """Which upstream answers; 0 is the claimed model."""
        return 0

    def rewrite(self, request: Request) -> Request:
        """The request as it is handed to the upstream."""
        return request

    async def respond(self, request: Request, honest: Stream) -> Stream:
        """The events to send, made from those of the honest answer (which costs nothing until it is read)."""
        async for event in honest:
            yield event


def words_of(event: Event) -> int:
    """Tokens in an event: its ids, or one for text whose ids an upstream did not give."""
    return len(event.ids) or int(bool(event.text))

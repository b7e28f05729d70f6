"""One question to an endpoint and its whole reply, bounded: what the doctor's probes speak through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson

from harness.events import Answer, read_answer

BODY_LIMIT = 8 << 20
EVENT_LIMIT = 4096


@dataclass(frozen=True)
class Reply:
    """What came back. `status` 0 means no HTTP answer at all, and `error` says why."""

    status: int
    body: str = ""
    events: tuple[tuple[float, str], ...] = ()  # (milliseconds from the request, data of a server-sent event)
    error: str = ""

    @property
    def ok(self) -> bool:
        """A 200 that is not an error in disguise."""
        return self.status == 200 and not self.error and "error" not in self.json

    @property
    def json(self) -> dict[str, Any]:
        """The body as an object, {} when it is none."""
        try:
            value = orjson.loads(self.body) if self.body else {}
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice of a whole answer, {} when there is none."""
        choices = self.json.get("choices")
        return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}

    @property
    def text(self) -> str:
        """The text of a whole answer, whichever endpoint gave it."""
        message = self.choice.get("message")
        value = message.get("content") if isinstance(message, dict) else self.choice.get("text")
        return value if isinstance(value, str) else ""

    def usage(self, key: str) -> int | None:
        """A count the engine claims, None when it claims none."""
        usage = self.json.get("usage")
        value = usage.get(key) if isinstance(usage, dict) else None
        return value if type(value) is int else None

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Every event that is a JSON object."""
        found = []
        for _, data in self.events:
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    @property
    def answer(self) -> Answer:
        """The stream as the gate itself reads it; event times are nanoseconds from the request."""
        return read_answer(
            {"perf_ns": int(ms * 1e6), "packets": [{"name": "data", "value": data}]} for ms, data in self.events
        )

    @property
    def why(self) -> str:
        """A short sentence about a reply that is not ok."""
        if self.error:
            return self.error
        said = self.json.get("error") or self.json.get("detail") or self.json.get("message") or self.body
        if isinstance(said, dict):
            said = said.get("message") or said
        return f"HTTP {self.status}: {' '.join(str(said).split())[:160]}"


class Client(Protocol):
    """Asks one endpoint; `body` None is a GET, `stop_after` closes a stream after so many events."""

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT) -> Reply:
        """Never raises for what the server or the network does: the reply says it."""


@dataclass
class HttpClient:
    """The real one. A connection a request: a server that closes kept-alive ones must not look broken."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT) -> Reply:
        """Send and read everything, or up to the limits."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._ask(path, body, stop_after)
        except TimeoutError:
            return Reply(0, error=f"no whole answer within {self.timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Reply(0, error=f"{type(error).__name__}: {str(error)[:160]}")

    async def _ask(self, path: str, body: Mapping[str, Any] | None, stop_after: int) -> Reply:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, headers=self.headers) as session:
            start = time.perf_counter()
            request = (
                session.get(self.url + path)
                if body is None
                else session.post(
                    self.url + path, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
                )
            )
            async with request as response:
                if body is None or not body.get("stream") or response.status != 200:
                    return Reply(response.status, await _read_body(response))
                return await _read_events(response, start, stop_after)


async def _read_body(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > BODY_LIMIT:
            break
    return body[:BODY_LIMIT].decode("utf-8", "replace")


async def _read_events(response: aiohttp.ClientResponse, start: float, stop_after: int) -> Reply:
    events: list[tuple[float, str]] = []
    buffer = b""
    error = ""
    try:
        async for piece in response.content.iter_any():
            stamp = (time.perf_counter() - start) * 1e3
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    events.append((stamp, line[5:].strip().decode("utf-8", "replace")))
            if len(events) >= stop_after or len(buffer) > BODY_LIMIT:
                break
    except (aiohttp.ClientError, OSError) as failure:
        error = f"the stream was cut: {type(failure).__name__}"
    return Reply(response.status, events=tuple(events[:stop_after]), error=error)

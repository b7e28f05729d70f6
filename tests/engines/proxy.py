"""A real engine behind the same hooks: its stream, read as it comes, is what a cheat works on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.engines.stream import Event, Refusal, Request, Stream, Usage


@dataclass(frozen=True)
class Upstream:
    """An OpenAI-compatible endpoint.

    model: replaces the name in the request when the upstream calls it otherwise. extra: fields of every request to it.
    """

    url: str
    model: str | None = None
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    async def events(self, request: Request) -> Stream:
        """Ask it and yield its events with the time they came, in milliseconds since the request."""
        path = "/v1/chat/completions" if "messages" in request.body else "/v1/completions"
        body = {**request.body, "stream": True, "stream_options": {"include_usage": True}}
        body |= ({"model": self.model} if self.model else {}) | dict(self.extra)
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            # A connection a request: engines that drop kept-alive connections must not show as failures.
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(self.url.rstrip("/") + path, json=body) as response,
            ):
                if response.status != 200:
                    raise Refusal(response.status, (await response.text())[:300])
                async for event in _events(response, started):
                    yield event
        except (TimeoutError, aiohttp.ClientError) as error:
            yield Event(_ms(started), error=f"upstream: {type(error).__name__}")


async def _events(response: aiohttp.ClientResponse, started: float) -> AsyncIterator[Event]:
    finish: str | None = None
    usage: Usage | None = None
    async for line in response.content:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        chunk = orjson.loads(line[6:])
        if chunk.get("error"):
            yield Event(_ms(started), error=str(chunk["error"])[:300])
            return
        usage = _usage(chunk.get("usage")) or usage
        for choice in chunk.get("choices", [])[:1]:
            finish = choice.get("finish_reason") or finish
            event = _event(choice, _ms(started))
            if event.text or event.ids or event.role:
                yield event
    # Engines differ in whether usage comes with the finish, after it or never: here both close the stream.
    yield Event(_ms(started), finish=finish, usage=usage, hang_up=finish is None)


def _event(choice: dict[str, Any], at_ms: float) -> Event:
    delta = choice.get("delta") or {"content": choice.get("text")}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    text = delta.get("content") or reasoning or ""
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = tuple(choice.get("token_ids") or (e["id"] for e in entries if "id" in e))
    logprobs = tuple(float(e["logprob"]) for e in entries) if len(entries) == len(ids) else ()
    return Event(at_ms, text, ids, logprobs, role="role" in delta and not text, reasoning=bool(reasoning))


def _usage(value: dict[str, Any] | None) -> Usage | None:
    if not value:
        return None
    cached = (value.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(int(value.get("prompt_tokens", 0)), int(value.get("completion_tokens", 0)), int(cached))


def _ms(started: float) -> float:
    return (time.monotonic() - started) * 1e3

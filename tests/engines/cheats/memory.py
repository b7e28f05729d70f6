"""Answering from memory what was to be computed."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.engines.cheats.weights import CLAIMED, SMALLER
from tests.engines.stream import Engine, Event, Request, Stream


class MemoisesResponses(Engine):
    name = "memoises-responses"
    does = "keeps every answer and plays it back when the same prompt returns"
    rows = (15, 37)
    check = "repeats"

    def __init__(self) -> None:
        self.kept: dict[str, list[Event]] = {}

    def key(self, request: Request) -> str:
        return f"{request.prompt}/{request.max_tokens}/{request.temperature}/{request.seed}"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        key = self.key(request)
        if key in self.kept:
            for i, event in enumerate(self.kept[key]):
                yield replace(event, at_ms=1.0 + i * 0.3)
            return
        events = []
        async for event in honest:
            events.append(event)
            yield event
        self.kept[key] = events


class FuzzyCache(MemoisesResponses):
    name = "fuzzy-cache"
    does = "takes two prompts for the same when only their numbers differ, and is careful with the timing"
    rows = (17,)
    check = "minimal-pairs"

    def key(self, request: Request) -> str:
        return re.sub(r"\d+", "#", request.prompt)

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = self.kept.get(self.key(request))
        if events is None:
            events = self.kept[self.key(request)] = [event async for event in honest]
        for event in events:
            yield event


class PrecomputedAnswers(Engine):
    name = "precomputed-answers"
    does = "has the answers to the benchmark's public prompts in a table and plays them four times as fast"
    rows = (16, 18)
    check = "nonce-twins"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        # The table of all public prompts, put as a rule: it holds what has no fresh number before it.
        known = not re.match(r"(?:.{1,32}\n\n)?\W*(?:\w+\W+)?\d{5}\b", str(request.messages[-1].get("content", "")))
        async for event in honest:
            yield replace(event, at_ms=event.at_ms / 4) if known else event


class StalePrefix(Engine):
    name = "stale-prefix"
    does = "answers a prompt that it has seen before from a prefix cache that was overwritten since"
    rows = (29,)
    check = "order"

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def route(self, request: Request) -> int:
        known = request.prompt in self.seen
        self.seen.add(request.prompt)
        return SMALLER if known else CLAIMED


class CachedSample(MemoisesResponses):
    name = "cached-sample"
    does = "samples once for a prompt and serves that sample for every seed, at honest speed"
    rows = (7, 8)
    check = "seeds"

    def key(self, request: Request) -> str:
        return request.prompt


class AlwaysGreedy(Engine):
    name = "always-greedy"
    does = "ignores temperature and seed, and decodes greedily whatever is asked"
    rows = (7,)
    check = "seeds"

    def rewrite(self, request: Request) -> Request:
        return request.but(temperature=0.0)


class SlidingWindow(Engine):
    name = "sliding-window"
    does = "drops the middle of long prompts, and claims to have read them whole"
    rows = (27, 28)
    check = "needles"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            usage = event.usage and replace(
                event.usage, prompt_tokens=event.usage.prompt_tokens + self.dropped(request)
            )
            yield replace(event, usage=usage)

    def dropped(self, request: Request) -> int:
        """Prompt tokens that it claims and did not read, near enough."""
        return max(0, len(request.prompt) - len(self.rewrite(request).prompt)) // 4

    def rewrite(self, request: Request) -> Request:
        prompt = request.prompt
        if len(prompt) < 250:
            return request
        return request.but(messages=[{"role": "user", "content": f"{prompt[:60]}\n{prompt[-60:]}"}])


class CrossTalk(Engine):
    name = "cross-talk"
    does = "under load some answers end as another request's did: corrupted KV cache"
    rows = (29,)
    check = "same-answers"

    def __init__(self) -> None:
        self.last: list[Event] = []

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        if request.in_flight > 2 and self.last:
            events = self.last
        else:
            self.last = events
        for event in events:
            yield event

"""Serving another, cheaper model part of the time. The tokens themselves tell, under the BF16 reference."""

from __future__ import annotations

from dataclasses import replace

from tests.engines.stream import Engine, Request, Stream

CLAIMED, SMALLER = 0, 1


class SmallerModel(Engine):
    name = "smaller-model"
    does = "always serves the cheaper weights under the claimed name"
    rows = (18, 22, 45)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return SMALLER


class RoutesEasyPrompts(Engine):
    name = "routes-easy-prompts"
    does = "sends short prompts to the cheaper model"
    rows = (26,)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return SMALLER if len(request.prompt) < 400 else CLAIMED


class WorseUnderLoad(Engine):
    name = "worse-under-load"
    does = "serves the cheaper weights while two or more requests run"
    rows = (23, 24)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return SMALLER if request.in_flight >= 2 else CLAIMED


class DegradesOtherScripts(Engine):
    name = "degrades-other-scripts"
    does = "serves the cheaper weights for anything but plain English"
    rows = (31,)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return CLAIMED if request.prompt.isascii() and "```" not in request.prompt else SMALLER


class OneBadReplica(Engine):
    name = "one-bad-replica"
    does = "one connection in four ends at a replica with broken weights"
    rows = (33,)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return SMALLER if request.connection % 4 == 3 else CLAIMED


class GoodAtFirst(Engine):
    name = "good-at-first"
    does = "behaves for the first twenty requests, which look like a check, then serves the cheaper weights"
    rows = (34,)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return CLAIMED if request.index < 20 else SMALLER


class KnowsTheBenchmark(Engine):
    name = "knows-the-benchmark"
    does = "serves the cheaper weights to the load generator, the claimed ones to anybody else"
    rows = (19,)
    check = "token_margin"

    def route(self, request: Request) -> int:
        return SMALLER if "aiperf" in request.headers.get("user-agent", "").lower() else CLAIMED


class CarefulWithLogprobs(Engine):
    name = "careful-with-logprobs"
    does = "serves the claimed weights when logprobs are asked for, the cheaper ones otherwise"
    rows = (20, 22)
    check = "logprob-twins"

    def route(self, request: Request) -> int:
        return CLAIMED if request.body.get("logprobs") else SMALLER


class LaxDraft(Engine):
    name = "lax-draft"
    does = "accepts every tenth draft token without looking"
    rows = (25, 32)
    check = "token_margin"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        count = 0
        async for event in honest:
            count += 1
            guess = count % 10 == 0 and event.text.startswith(" ") and len(event.text) > 2
            yield replace(event, text=" rather", ids=()) if guess else event


class DegradesLate(Engine):
    name = "degrades-late"
    does = "after 32 tokens skips layers: words come out in the wrong order"
    rows = (24, 28)
    check = "token_margin"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        texts = [event.text for event in events]
        for i in range(33, len(events) - 2, 2):
            texts[i], texts[i + 1] = texts[i + 1], texts[i]
        for event, text in zip(events, texts, strict=True):
            yield replace(event, text=text)

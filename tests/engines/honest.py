"""Honest engines that a careless check would accuse."""

from __future__ import annotations

from dataclasses import replace
from inspect import isclass

from tests.engines.stream import Engine, Event, Request, Stream

OTHER_NUMERICS = 2  # upstream: 0 is the claimed model, 1 a cheaper one, 2 the claimed one computed otherwise


class BlockSpeculator(Engine):
    name = "block-speculator"
    does = "honest: accepts one to six draft tokens a step and sends each step as one event"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        held: list[Event] = []
        size, at = 1, None
        async for event in honest:
            if event.role:
                yield event
                continue
            at = event.at_ms if at is None else at
            held.append(event)
            if len(held) >= size or event.finish:
                texts, ids = "".join(e.text for e in held), tuple(i for e in held for i in e.ids)
                yield replace(event, at_ms=at, text=texts, ids=ids, logprobs=())
                at += 9.0
                held = []
                size = 1 + (size * 7 + request.index + len(texts)) % 6


class TwoReplicas(Engine):
    name = "two-replicas"
    does = "honest: a balancer before two equal replicas, the second on a machine with other numerics"

    def route(self, request: Request) -> int:
        return OTHER_NUMERICS * (request.connection % 2)


class OtherNumerics(Engine):
    name = "other-numerics"
    does = "honest: the claimed weights on a machine that computes otherwise (in the real matrix: Q8_0 of them)"

    def route(self, request: Request) -> int:
        return OTHER_NUMERICS


class SlowStart(Engine):
    name = "slow-start"
    does = "honest: the first requests are slow (compilation), then all is well"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        wait = 900.0 if request.index < 2 else 0.0
        async for event in honest:
            yield replace(event, at_ms=event.at_ms + wait)


def engines() -> dict[str, type[Engine]]:
    """Every honest engine by name."""
    mine = [c for c in globals().values() if isclass(c) and issubclass(c, Engine)]
    return {c.name: c for c in mine}

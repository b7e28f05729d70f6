"""Moving the bytes, not the work: what a stopwatch sees and what a reader gets."""

from __future__ import annotations

from dataclasses import replace

from tests.engines.stream import Engine, Event, Request, Stream, Usage


class EmptyFirstChunk(Engine):
    name = "empty-first-chunk"
    does = "sends a chunk with empty content at once, to look like a first token, and is slow to start"
    rows = (9,)
    check = "ttft"  # neutralised: TTFT counts content, so the slow start shows

    async def respond(self, request: Request, honest: Stream) -> Stream:
        yield Event(0.5, role=True)
        yield Event(0.6, text="")
        async for event in honest:
            yield replace(event, at_ms=event.at_ms + 120) if not event.role else replace(event, at_ms=0.7)


class ZeroWidthFirstToken(Engine):
    name = "zero-width-first-token"
    does = "opens with a character of no width, so that the first event has content"
    rows = (9,)
    check = "opening"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        yield Event(0.5, role=True)
        yield Event(0.6, text="\u200b")
        async for event in honest:
            if not event.role:
                yield event


class FirstTokenThenStall(Engine):
    name = "first-token-then-stall"
    does = "guesses the first token with a small model at once; the real work starts then"
    rows = (10, 11)
    check = "stalled-opening"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        first = True
        async for event in honest:
            if event.role or first:
                first = event.role
                yield replace(event, at_ms=2.0)
            else:
                yield replace(event, at_ms=400 + event.at_ms)


class BufferThenBurst(Engine):
    name = "buffer-then-burst"
    does = "computes the whole answer, then writes all of it at once: TPOT is next to nothing"
    rows = (11,)
    check = "bursts"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        for i, event in enumerate(events):
            yield replace(event, at_ms=events[-1].at_ms + i * 0.02)


class PacedReplay(Engine):
    name = "paced-replay"
    does = "computes the whole answer, then plays it back smoothly at four times the speed it was made"
    rows = (11,)
    check = "bursts"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        start, last = events[0].at_ms, events[-1].at_ms
        for event in events:
            yield replace(event, at_ms=last + (event.at_ms - start) / 12)


class OneBigEvent(Engine):
    name = "one-big-event"
    does = "packs 64 tokens into one event"
    rows = (12,)
    check = "bursts"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        held: list[Event] = []
        async for event in honest:
            held.append(event)
            if len(held) == 64 or event.finish:
                yield _packed(held)
                held = []


class ManyEventsPerToken(Engine):
    name = "many-events-per-token"
    does = "sends every token in pieces, so that who counts events sees a faster engine"
    rows = (12,)
    check = "event-counts"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            for i, character in enumerate(event.text[:-1]):
                yield Event(event.at_ms + i * 0.05, text=character)
            yield replace(event, text=event.text[-1:], at_ms=event.at_ms + 0.4)


class InflatedUsage(Engine):
    name = "inflated-usage"
    does = "claims 60 % more tokens than it made, where the limit on them leaves room"
    rows = (13,)
    check = "usage-tokens"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            usage = event.usage
            if usage and event.finish == "stop":
                usage = replace(usage, completion_tokens=int(usage.completion_tokens * 1.6))
            yield replace(event, usage=usage)


class HugeUsage(Engine):
    name = "huge-usage"
    does = "claims 19,503 tokens for a short answer"
    rows = (13,)
    check = "usage-bytes"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, usage=Usage(20, 19503)) if event.finish else event


class UsageWhenItSuits(Engine):
    name = "usage-when-it-suits"
    does = "leaves usage out where the count would show"
    rows = (13,)
    check = "usage-everywhere"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, usage=None) if request.index % 3 == 0 else event


class IdsOfAnotherAnswer(Engine):
    name = "ids-of-another-answer"
    does = "streams token ids of a better answer than the text it shows"
    rows = (21,)
    check = "ids-text"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, text=event.text[::-1])


class FakedLogprobs(Engine):
    name = "faked-logprobs"
    does = "claims logprob 0 for every token"
    rows = (21,)
    check = "logprobs"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, logprobs=(0.0,) * len(event.ids))


class ImpossibleSpeed(Engine):
    name = "impossible-speed"
    does = "streams faster than the memory could be read (an answer from a table)"
    rows = (39,)
    check = "impossible-speed"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        for i, event in enumerate(events):
            yield replace(event, at_ms=events[0].at_ms + i * 0.3)


def _packed(held: list[Event]) -> Event:
    if len(held) == 1:
        return held[0]
    return replace(held[-1], text="".join(e.text for e in held), ids=tuple(i for e in held for i in e.ids), logprobs=())

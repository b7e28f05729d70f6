"""Saying less, more, or something else than the model would."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from tests.engines.stream import Engine, Event, Request, Stream, Usage, words_of

FILLER = " Thank you for reading. I hope that this was of some help to you, and do ask again whenever you like."


async def typed(text: str, like: Event, at_ms: float, step_ms: float = 2.0) -> Stream:
    """Words of made-up text, one an event, as if decoded."""
    for i, word in enumerate(text.split(" ")):
        yield replace(like, at_ms=at_ms + i * step_ms, text=word if i == 0 else f" {word}", finish=None, role=False)


def ending(last: Event, at_ms: float, finish: str, made: int | None = None) -> Event:
    """The closing event, with the count of tokens really sent; with no usage when words were made up."""
    usage = None if made is None else replace(last.usage or Usage(0, 0), completion_tokens=made)
    return Event(at_ms, finish=finish, usage=usage)


class LetterA(Engine):
    name = "letter-a"
    does = "answers every prompt with the letter a, as fast as the wire allows"
    rows = (1,)
    check = "loops"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            if event.role:
                yield event
                continue
            for i in range(request.max_tokens):
                yield Event(event.at_ms + i * 0.5, text=" a")
            yield ending(event, event.at_ms + request.max_tokens * 0.5, "length")
            return


class DraftFriendlyLoop(Engine):
    name = "draft-friendly-loop"
    does = "after a quarter of the answer repeats its last words, which any draft model predicts, eight tokens an event"
    rows = (2,)
    check = "loops"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        recent: deque[Event] = deque(maxlen=8)
        made = 0
        async for event in honest:
            yield event if event.role else replace(event, finish=None)
            if not event.role and event.text:
                recent.append(event)
                made += words_of(event)
            if made >= max(12, request.max_tokens // 4) or event.finish:
                break
        at = event.at_ms
        block = "".join(e.text for e in recent)
        tokens = sum(words_of(e) for e in recent)
        while tokens and made + tokens <= request.max_tokens:
            at += 8.0
            made += tokens
            yield Event(at, text=block, ids=tuple(i for e in recent for i in e.ids))
        yield ending(event, at, "stop", made + 1)


class EarlyEos(Engine):
    name = "early-eos"
    does = "ends every answer after 40 % of it"
    rows = (3,)
    check = "short-answers"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        kept = [replace(e, finish=None) for e in events[: max(2, int(len(events) * 0.4))]]
        for event in kept:
            yield event
        made = sum(words_of(event) for event in kept)
        yield ending(events[-1], kept[-1].at_ms, "stop", made + 1)


class Padding(Engine):
    name = "padding"
    does = "after the answer sends line breaks that nobody sees, to raise tokens per second"
    rows = (4,)
    check = "padding"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        made = 0
        async for event in honest:
            made += words_of(event)
            yield replace(event, finish=None)
        for i in range(made, request.max_tokens):
            yield Event(event.at_ms + 0.5 * i, text="\n ")
        yield ending(event, event.at_ms + 0.5 * request.max_tokens, event.finish or "stop")


class LateEos(Engine):
    name = "late-eos"
    does = "talks on after the answer is complete: polite words that cost nothing"
    rows = (4,)
    check = "long-answers"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        made = 0
        async for event in honest:
            made += words_of(event)
            yield replace(event, finish=None)
        at = event.at_ms
        async for word in typed(FILLER, Event(at), at + 1):
            if made + 4 > request.max_tokens:
                break
            yield word
            made, at = made + 2, word.at_ms
        yield ending(event, at, event.finish or "stop")


class OneLength(Engine):
    name = "one-length"
    does = "cuts long answers and stretches short ones, so that the mean stays right"
    rows = (5,)
    check = "length-spread"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        goal, made, last = request.max_tokens * 3 // 8, 0, Event(0)
        async for event in honest:
            last = event
            if made < goal:
                made += words_of(event)
                yield replace(event, finish=None)
        at = last.at_ms
        while made + 8 < goal:
            async for word in typed(" And so it goes on, as it did.", Event(at), at + 1):
                yield word
                made, at = made + 2, word.at_ms
        yield ending(last, at, "stop")


class IgnoresMaxTokens(Engine):
    name = "ignores-max-tokens"
    does = "runs on past max_tokens: longer answers, more tokens per second"
    rows = (6,)
    check = "max-tokens"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        made = 0
        async for event in honest:
            made += words_of(event)
            yield replace(event, finish=None)
        if event.finish == "length":
            async for word in typed(FILLER, Event(event.at_ms), event.at_ms + 1):
                yield word
                made += 1
            event = replace(event, at_ms=word.at_ms)
        yield ending(event, event.at_ms, event.finish or "length", made)


class IgnoresStop(Engine):
    name = "ignores-stop"
    does = "never looks for stop strings"
    rows = (6,)
    check = "stop-strings"

    def rewrite(self, request: Request) -> Request:
        return request.but(stop=None)


class IgnoresIgnoreEos(Engine):
    name = "ignores-ignore-eos"
    does = "stops by itself where a fixed length was asked for"
    rows = (6,)
    check = "fixed-length"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        made = 0
        async for event in honest:
            made += words_of(event)
            if request.ignore_eos and made > 8 and event.text.rstrip().endswith((".", ":", ",", ";", "?")):
                yield replace(event, finish=None)
                yield ending(event, event.at_ms, "stop", made + 1)
                return
            yield event


class FillerOpening(Engine):
    name = "filler-opening"
    does = "sends Okay at once, then starts to compute"
    rows = (10,)
    check = "opening"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        yield Event(2.0, role=True)
        yield Event(3.0, text="Okay, ")
        async for event in honest:
            if not event.role:
                yield event


class CannedAnswer(Engine):
    name = "canned-answer"
    does = "sends one fluent paragraph whatever was asked"
    rows = (18,)
    check = "same-answers"
    text = "That is a good question. There are several ways to look at it, and each of them has its merits for you."

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            if not event.role:
                break
        async for word in typed(self.text, Event(0), event.at_ms):
            yield word
        yield ending(event, word.at_ms, "stop")


class Refuses(Engine):
    name = "refuses-hard-ones"
    does = "politely declines every third request, the long ones first"
    rows = (35,)
    check = "refusals"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        if len(request.prompt) < 600 and request.index % 3:
            async for event in honest:
                yield event
            return
        async for event in honest:
            if not event.role:
                break
        async for word in typed("I'm sorry, but I can't help with that request.", Event(0), event.at_ms):
            yield word
        yield ending(event, word.at_ms, "stop")


class NoThinking(Engine):
    name = "no-thinking"
    does = "a reasoning model that skips most of its reasoning"
    rows = (42,)
    check = "short-answers"

    async def respond(self, request: Request, honest: Stream) -> AsyncIterator[Event]:
        saved = made = 0
        async for event in honest:
            if event.reasoning:
                made += 1
                if made % 10:
                    saved += words_of(event)
                    continue
            usage = event.usage and replace(event.usage, completion_tokens=event.usage.completion_tokens - saved)
            yield replace(event, usage=usage)


class AsciiOnly(Engine):
    name = "ascii-only"
    does = "leaves rare scripts out of its vocabulary"
    rows = (30, 31)
    check = "script"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, text="".join(c if ord(c) < 0x250 else " one" for c in event.text))

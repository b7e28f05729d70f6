"""Serving some requests at the cost of others, or not at all."""

from __future__ import annotations

from dataclasses import replace

from tests.engines.stream import Engine, Event, Refusal, Request, Stream


class ErrorInsideStream(Engine):
    name = "error-inside-stream"
    does = "gives up in the middle of every tenth answer with an error event, HTTP status 200"
    rows = (35, 41)
    check = "stream-errors"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        count = 0
        async for event in honest:
            count += 1
            if request.index % 10 == 7 and count > 6:
                yield Event(event.at_ms, error="CUDA out of memory")
                return
            yield event


class PartialStream(Engine):
    name = "partial-stream"
    does = "drops the connection in the middle of every tenth answer: no finish_reason, no [DONE]"
    rows = (41,)
    check = "truncated-streams"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        count = 0
        async for event in honest:
            count += 1
            if request.index % 10 == 7 and count > 6:
                yield Event(event.at_ms, hang_up=True)
                return
            yield event


class NoFinishReason(Engine):
    name = "no-finish-reason"
    does = "ends without saying why"
    rows = (41,)
    check = "finish-reason"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, finish=None)


class FalseLength(Engine):
    name = "false-length"
    does = "stops half-way and says that max_tokens was reached"
    rows = (3, 6)
    check = "length-finish"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        events = [event async for event in honest]
        half = events[: max(2, len(events) // 2)]
        for event in half:
            yield replace(event, finish=None)
        yield Event(half[-1].at_ms, finish="length", usage=half[-1].usage)


class ShedsLong(Engine):
    name = "sheds-long-requests"
    does = "refuses long prompts as overload (429)"
    rows = (35,)
    check = "failures"

    def rewrite(self, request: Request) -> Request:
        if len(request.prompt) > 600:
            raise Refusal(429, "engine overloaded, try again later")
        return request


class ShedsOneScript(Engine):
    name = "sheds-one-script"
    does = "fails now and then, and always on the same kind of text"
    rows = (31, 35)
    check = "shedding"

    def rewrite(self, request: Request) -> Request:
        if any("\u4e00" <= c <= "\u9fff" for c in request.prompt):
            raise Refusal(500, "internal error")
        return request


class EmptyAnswers(Engine):
    name = "empty-answers"
    does = "answers every fourth request with nothing, at once"
    rows = (3, 35)
    check = "empty-answers"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            if request.index % 4 == 0 and not event.role:
                yield Event(event.at_ms, finish="stop", usage=event.usage and replace(event.usage, completion_tokens=1))
                return
            yield event


class Starves(Engine):
    name = "starves-some"
    does = "lets every fifth request wait so that the median is fine"
    rows = (36,)
    check = "starvation"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        wait = 1500.0 if request.index % 5 == 3 else 0.0
        async for event in honest:
            yield replace(event, at_ms=event.at_ms + wait)


class DroppedContext(Engine):
    name = "dropped-context"
    does = "reads only the last 300 characters of a prompt, and its usage says so"
    rows = (14, 27, 43)
    check = "prompt-tokens"

    def rewrite(self, request: Request) -> Request:
        return request.but(messages=[{"role": "user", "content": request.prompt[-300:]}])


class NanText(Engine):
    name = "nan-text"
    does = "serves on after its logits became NaN: token 0 for ever"
    rows = (44,)
    check = "nan-text"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield replace(event, text="!" if event.text else "") if request.index % 8 == 5 else event

"""How the endpoint streams: events, role chunk, usage, token ids, split characters, several streams at once."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.probes.capability import Capability, Support, Target, listing, mapping, refused
from harness.probes.client import Reply

ASK_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
QUESTION = "Write one long sentence about the sea."
OTHER_QUESTION = "Write one long sentence about the mountains."
TOO_QUICK_MS = 20  # shorter streams may miss each other by the client's own delay
EMOJI = "Hello 😀 🚀 😀 🚀 😀 🚀 😀 🚀 😀 🚀 😀"


async def streaming(target: Target) -> Capability:
    """Are there several content events, a finish reason and [DONE]; when does the role event come?"""
    reply = await target.chat(QUESTION, max_tokens=12, **ASK_USAGE)
    if not reply.ok:
        return refused("streaming", reply)
    answer = reply.answer
    traits = {
        "role_event": _role_event(reply),
        "done": "yes" if answer.done else "no",
        "timings": "yes" if any("timings" in chunk for chunk in reply.chunks) else "no",
    }
    events = len(answer.event_ns)
    detail = f"{events} content events for {answer.usage.get('completion_tokens', 'an unknown number of')} tokens"
    detail += f"; first event: {_role_event_ahead(reply, traits['role_event'])}"
    missing = [] if answer.done else ["no [DONE]"]
    missing += [] if answer.finish_reason else ["no finish_reason"]
    support = Support.YES if not missing else Support.PARTLY
    if events < 2:
        support, missing = Support.WRONG, [*missing, "the text came in one piece, so nothing can be timed"]
    return Capability(
        name="streaming", support=support, detail="; ".join([detail, *missing]), value=events, traits=traits
    )


async def usage(target: Target) -> Capability:
    """Where token counts stand in a stream, asked for and unasked."""
    asked = await target.chat(QUESTION, max_tokens=6, **ASK_USAGE)
    if not asked.ok:
        return refused("usage in a stream", asked)
    unasked = await target.chat(QUESTION, max_tokens=6, stream=True)
    completion = await target.complete("The sea is", max_tokens=6, stream=True)
    traits = {"usage_asked": _usage_place(asked), "usage_unasked": _usage_place(unasked)}
    detail = f"asked: {traits['usage_asked']}; unasked: {traits['usage_unasked']}"
    if completion.ok:
        traits["usage_completions_unasked"] = _usage_place(completion)
        detail += f"; completions unasked: {traits['usage_completions_unasked']}"
    count = asked.answer.usage.get("completion_tokens")
    support = Support.IGNORED if count is None else Support.YES
    return Capability(name="usage in a stream", support=support, detail=detail, value=count, traits=traits)


async def usage_per_event(target: Target) -> Capability:
    """Does continuous_usage_stats put a running count into every event?"""
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await target.chat(QUESTION, max_tokens=6, stream=True, stream_options=options)
    if not reply.ok:
        return refused("usage in every event", reply)
    counts = reply.answer.event_usage
    known = [count for count in counts if count is not None]
    # One event of six may end a request whose usage stands in its last event anyway.
    support = Support.YES if counts and len(known) == len(counts) else Support.IGNORED
    return Capability(
        name="usage in every event",
        support=support,
        detail=f"{len(known)} of {len(counts)} content events carried a count",
    )


async def token_ids(target: Target) -> Capability:
    """Do the stream's events carry the ids of their tokens?"""
    base: dict[str, Any] = {"max_tokens": 8, **ASK_USAGE}
    wish = await target.chat(QUESTION, return_token_ids=True, **base)
    if wish.ok and (ids := wish.answer.ids):
        return _ids_found("return_token_ids", ids, wish)
    reply = await target.chat(QUESTION, logprobs=True, top_logprobs=1, **base)
    if reply.ok and (ids := reply.answer.ids):
        return _ids_found("logprobs", ids, reply)
    named = await target.chat(QUESTION, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, **base)
    if named.ok and "token_id:" in str(named.events):
        return Capability(
            name="token ids",
            support=Support.PARTLY,
            detail="only as token names (return_tokens_as_token_ids)",
            traits={"ids": "names"},
        )
    if not wish.ok and not reply.ok:
        return refused("token ids", wish)
    said = "return_token_ids ignored" if wish.ok else f"return_token_ids: {wish.why}"
    support = Support.IGNORED if wish.ok else Support.REFUSED
    return Capability(
        name="token ids", support=support, detail=f"{said}; none inside logprobs", traits={"ids": support.value}
    )


async def split_characters(target: Target) -> Capability:
    """What happens to a character made of several tokens: an event a token, or one event for all?"""
    reply = await target.complete(EMOJI, max_tokens=24, **ASK_USAGE)
    if not reply.ok:
        return refused("split characters", reply)
    events = len([chunk for chunk in reply.chunks if listing(chunk.get("choices"))])
    tokens = reply.answer.usage.get("completion_tokens")
    empty = sum(1 for chunk in reply.chunks if _text(chunk) == "" and not _finish(chunk))
    if not any(ord(letter) > 127 for letter in "".join(reply.answer.text)):
        return Capability(name="split characters", support=Support.UNKNOWN, detail="the model wrote none", value=tokens)
    if tokens is not None and events < tokens:
        return Capability(
            name="split characters",
            support=Support.PARTLY,
            detail=f"merged: {tokens} tokens came as {events} events, so events must not be counted as tokens",
            value=events,
        )
    return Capability(
        name="split characters",
        support=Support.YES,
        detail=f"an event a token, {empty} of {events} with empty text",
        value=events,
    )


async def several_at_once(target: Target) -> Capability:
    """Do two streams live beside each other, or does the second cut, or wait for, the first?"""
    replies = await asyncio.gather(
        target.chat(QUESTION, max_tokens=64, stream=True), target.chat(OTHER_QUESTION, max_tokens=64, stream=True)
    )
    whole = [reply for reply in replies if reply.ok and reply.answer.finish_reason]
    if len(whole) < 2:
        broken = next(reply for reply in replies if reply not in whole)
        return Capability(
            name="two streams at once",
            support=Support.WRONG,
            detail=f"{2 - len(whole)} of 2 was cut: {broken.why if not broken.ok else 'no finish_reason'}",
        )
    spans = [(reply.answer.event_ns[0], reply.answer.event_ns[-1]) for reply in replies if reply.answer.event_ns]
    overlap = len(spans) == 2 and max(first for first, _ in spans) < min(last for _, last in spans)
    if not overlap and any(last - first < TOO_QUICK_MS * 1e6 for first, last in spans):
        return Capability(name="two streams at once", support=Support.UNKNOWN, detail="both whole, too quick to tell")
    return Capability(
        name="two streams at once",
        support=Support.YES if overlap else Support.PARTLY,
        detail="both whole, side by side" if overlap else "both whole, one after the other",
    )


def _ids_found(way: str, ids: list[int], reply: Reply) -> Capability:
    counted = reply.answer.usage.get("completion_tokens")
    whole = counted is None or counted == len(ids)
    return Capability(
        name="token ids",
        support=Support.YES if whole else Support.PARTLY,
        detail=f"by {way}: {len(ids)} ids for {counted if counted is not None else 'uncounted'} tokens",
        value=len(ids),
        traits={"ids": way},
    )


def _role_event(reply: Reply) -> str:
    for chunk in reply.chunks:
        choices = listing(chunk.get("choices"))
        delta = mapping(mapping(choices[0]).get("delta")) if choices else {}
        if "role" not in delta:
            return "none"
        if "content" not in delta:
            return "role only"
        if delta["content"]:
            return "with text"
        return "null content" if delta["content"] is None else "empty content"
    return "none"


def _role_event_ahead(reply: Reply, kind: str) -> str:
    if kind == "none":
        return "text"
    words = {"role only": "a role", "null content": "a role with null content"}.get(kind, f"a role {kind}")
    content = reply.answer.event_ns
    ahead_ms = max(0.0, content[0] / 1e6 - reply.events[0][0]) if content and reply.events else 0.0
    return f"{words.replace('empty', 'with empty')}, {ahead_ms:.0f} ms before the first text"


def _usage_place(reply: Reply) -> str:
    for chunk in reply.chunks:
        if mapping(chunk.get("usage")).get("completion_tokens") is None:
            continue
        if not listing(chunk.get("choices")):
            return "own event"
        return "finish event" if _finish(chunk) else "every event"
    return "never"


def _finish(chunk: dict[str, Any]) -> bool:
    choices = listing(chunk.get("choices"))
    return bool(choices) and bool(mapping(choices[0]).get("finish_reason"))


def _text(chunk: dict[str, Any]) -> str | None:
    choices = listing(chunk.get("choices"))
    value = mapping(choices[0]).get("text") if choices else None
    return value if isinstance(value, str) else None

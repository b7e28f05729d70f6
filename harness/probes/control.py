"""What the endpoint obeys (lengths, seeds, stops, token prompts), and its tokenizer, cache and context."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from harness.probes.capability import Capability, Support, Target, listing, mapping, refused
from harness.probes.client import Reply

# Small instruct models end a bare completion at once, and every chat model ends a one-word answer.
SHORT_COMPLETION = "Write a story about the sea."
SHORT_CHATS = ("Reply with the single word: yes", "What is 1+1? Answer with one digit only.")
FORCED = 24
LONG_TEXT = " ".join(f"Shelf {n} holds {n * 7 % 31} books about rivers." for n in range(24))
_Ask = Callable[..., Awaitable[Reply]]
RESETS = ("/reset_prefix_cache", "/flush_cache")
_LIMIT_IN_REFUSAL = re.compile(r"(?:context|maximum)[^0-9]{0,60}?(\d{3,8})", re.IGNORECASE)


async def ignore_eos(target: Target) -> Capability:
    """Does ignore_eos push a short answer past its natural end?"""
    return await _lengthened("ignore_eos", _both_ways(target), {"ignore_eos": True})


async def min_tokens(target: Target) -> Capability:
    """Does min_tokens push a short answer past its natural end?"""
    return await _lengthened("min_tokens", _both_ways(target), {"min_tokens": FORCED})


async def fixed_length(target: Target, api: str) -> Capability:
    """Do the two together, as a fixed-length cell sends them through this API, make an answer exactly so long?"""
    asks = [pair for pair in _both_ways(target) if (pair[0] == target.complete) == (api == "completions")]
    return await _lengthened("fixed length", asks, {"ignore_eos": True, "min_tokens": FORCED})


async def seed(target: Target) -> Capability:
    """At temperature 1, does one seed repeat an answer and another change it?"""

    async def ask(number: int) -> Reply:
        return await target.chat("Tell me a story.", max_tokens=16, temperature=1, seed=number)

    first, again, other = await ask(11), await ask(11), await ask(12)
    if not first.ok:
        return refused("seed", first)
    if first.text != again.text:
        return Capability(name="seed", support=Support.IGNORED, detail="the same seed gave two answers")
    if first.text == other.text:
        greedy = await target.chat("Tell me a story.", max_tokens=16)
        why = "; temperature 1 gave the greedy answer, so nothing is sampled here" if greedy.text == first.text else ""
        return Capability(name="seed", support=Support.UNKNOWN, detail=f"two seeds gave the same answer{why}")
    return Capability(name="seed", support=Support.YES, detail="repeats with its seed, changes with another")


async def repeats_at_zero(target: Target) -> Capability:
    """Is a greedy answer the same twice?"""
    first = await target.chat("Tell me about the moon.", max_tokens=24)
    if not first.ok:
        return refused("greedy repeats", first)
    again = await target.chat("Tell me about the moon.", max_tokens=24)
    same = first.text == again.text
    return Capability(
        name="greedy repeats",
        support=Support.YES if same else Support.PARTLY,
        detail="two greedy answers were equal" if same else "two greedy answers differed",
    )


async def stop(target: Target) -> Capability:
    """Does a stop string end the answer before it?"""
    free = await target.chat("Count from one to ten in words.", max_tokens=24)
    words = free.text.split()
    if not free.ok or len(words) < 4:
        return refused("stop", free) if not free.ok else _short("stop")
    mark = words[3]
    reply = await target.chat("Count from one to ten in words.", max_tokens=24, stop=[mark])
    if not reply.ok:
        return refused("stop", reply)
    obeyed = mark not in reply.text and len(reply.text) < len(free.text)
    return Capability(
        name="stop",
        support=Support.YES if obeyed else Support.IGNORED,
        detail="the answer ended before the stop string" if obeyed else f"the answer holds {mark!r}",
    )


async def zero_tokens(target: Target) -> Capability:
    """What does max_tokens 0 mean here: nothing, one, no limit, an error?"""
    reply = await target.complete("One, two, three,", max_tokens=0, stream=True, stop_after=40)
    if not reply.ok:
        return refused("max_tokens 0", reply)
    events = len(reply.answer.event_ns)
    support = {0: Support.YES, 1: Support.WRONG}.get(events, Support.WRONG)
    told = "no limit" if events > 2 else f"{events} tokens"
    return Capability(name="max_tokens 0", support=support, detail=f"gives {told}", value=events)


async def token_prompt(target: Target) -> Capability:
    """Are token ids accepted as a prompt, and a list of such prompts?"""
    ids = [400 + n for n in range(7)]
    reply = await target.complete(ids, max_tokens=1)
    if not reply.ok:
        return refused("token-id prompt", reply)
    count = reply.usage("prompt_tokens")
    if count not in (len(ids), len(ids) + 1):  # one more where the server puts a start token before it
        detail = f"{len(ids)} ids were counted as {count} prompt tokens"
        return Capability(name="token-id prompt", support=Support.WRONG, detail=detail, value=count)
    both = await target.complete([ids, ids[:3]], max_tokens=1)
    choices = len(listing(both.json.get("choices"))) if both.ok else 0
    several = f"a list of two gave {choices} answers" if both.ok else f"a list of two: {both.why}"
    return Capability(name="token-id prompt", support=Support.YES, detail=f"counted right; {several}", value=count)


async def unknown_field(target: Target) -> Capability:
    """Is a field nobody knows refused? Where it is not, a typing mistake in a request goes unseen."""
    reply = await target.chat("Hi", max_tokens=1, enginegate_probe=True)
    if reply.ok:
        return Capability(name="unknown field", support=Support.IGNORED, detail="accepted without a word")
    return refused("unknown field", reply)


async def tokenize(target: Target) -> Capability:
    """Does /tokenize answer, and with the model's own tokens?"""
    text = "Hello 2024 wörld"
    reply = await target.client.ask("/tokenize", {"model": target.model, "prompt": text, "content": text})
    ids = [token for token in listing(reply.json.get("tokens")) if isinstance(token, int)]
    if not reply.ok or not ids:
        return refused("/tokenize", reply)
    if target.encode is None:
        return Capability(name="/tokenize", support=Support.YES, detail=f"{len(ids)} ids, unchecked", value=len(ids))
    own = target.encode(text)
    same = ids in (own, own[1:]) or ids[1:] == own
    detail = "the plan's tokenizer's ids" if same else f"{ids} where the plan's tokenizer says {own}"
    return Capability(name="/tokenize", support=Support.YES if same else Support.WRONG, detail=detail, value=len(ids))


async def cache(target: Target) -> Capability:
    """Does usage show a prefix-cache hit, and can the cache be emptied?"""

    async def hit() -> int | None:
        reply = await target.chat(LONG_TEXT, max_tokens=1)
        value = mapping(mapping(reply.json.get("usage")).get("prompt_tokens_details")).get("cached_tokens")
        return value if type(value) is int else None

    await hit()
    warm = await hit()
    accepted = [path for path in RESETS if (await target.client.ask(path, {})).status == 200]
    how = f"{accepted[0]} answers 200" if accepted else "no reset endpoint"
    if not warm:
        seen = "usage shows no cached tokens" if warm is None else "no hit on a repeated prompt"
        return Capability(name="prefix cache", support=Support.UNKNOWN, detail=f"{seen}; {how}", value=warm)
    cold = await hit()
    if accepted and cold is not None and cold < warm:
        detail = f"{warm} tokens hit, {cold} after {accepted[0]}"
        return Capability(name="prefix cache", support=Support.YES, detail=detail, value=warm)
    return Capability(
        name="prefix cache",
        support=Support.PARTLY,
        detail=f"{warm} tokens hit on a repeated prompt; {how}{', without effect' if accepted else ''}",
        value=warm,
    )


async def declared_context(target: Target) -> int | None:
    """Tokens of context that /v1/models declares for the model; None when it does not."""
    listed = await target.client.ask("/v1/models")
    for model in (mapping(entry) for entry in listing(listed.json.get("data"))):
        value = model.get("max_model_len") or mapping(model.get("meta")).get("n_ctx")
        if model.get("id") == target.model and type(value) is int:
            return value
    return None


async def context_length(target: Target) -> Capability:
    """How many tokens fit: declared in /v1/models, or named when far too many are asked for."""
    declared = await declared_context(target)
    if declared is not None:
        return _context(declared, "declared in /v1/models")
    reply = await target.complete(SHORT_COMPLETION, max_tokens=9_999_999, stream=True, stop_after=2)
    found = _LIMIT_IN_REFUSAL.search(reply.why) if not reply.ok else None
    if found and int(found[1]) < 9_999_999:
        return _context(int(found[1]), "named when too much was asked for")
    return Capability(name="context length", support=Support.UNKNOWN, detail="not declared, and no limit was named")


def _context(value: int, where: str) -> Capability:
    detail = f"{value}, {where}"
    return Capability(name="context length", support=Support.YES, detail=detail, value=value, unit="tokens")


def _both_ways(target: Target) -> list[tuple[_Ask, str]]:
    """Questions whose answers end early, with the API that each goes through."""
    return [(target.complete, SHORT_COMPLETION), *((target.chat, text) for text in SHORT_CHATS)]


async def _lengthened(name: str, asks: Sequence[tuple[_Ask, str]], wish: dict[str, Any]) -> Capability:
    """Find an answer that ends by itself before FORCED tokens, then ask again with the wish."""
    last: Reply | None = None
    for ask, text in asks:
        free = await ask(text, max_tokens=FORCED)
        last = free
        if not free.ok or free.choice.get("finish_reason") != "stop":
            continue
        forced = await ask(text, max_tokens=FORCED, **wish)
        if not forced.ok:
            return refused(name, forced)
        before, after = _length(free), _length(forced)
        longer = forced.choice.get("finish_reason") == "length" and (after is None or after >= FORCED)
        counted = f"{before} tokens without, {after} with" if after is not None else "judged by finish_reason"
        return Capability(name=name, support=Support.YES if longer else Support.IGNORED, detail=counted, value=after)
    if last is not None and not last.ok:
        return refused(name, last)
    ask, text = asks[0]
    forced = await ask(text, max_tokens=FORCED, **wish)  # whether it is obeyed cannot be seen; a refusal can
    return refused(name, forced) if 400 <= forced.status < 500 else _short(name)


def _length(reply: Reply) -> int | None:
    return reply.usage("completion_tokens")


def _short(name: str) -> Capability:
    return Capability(name=name, support=Support.UNKNOWN, detail="the model gave no answer this can be judged by")

"""Log-probabilities: how many, in which shape, and whether those of the prompt are true.

A server may return confident, wrong prompt logprobs (llama-cpp-python's echo is off by one). Two positions are checked:
against the endpoint's own greedy decoding of the same text, and against the BF16 reference when there is one.
"""

from __future__ import annotations

from typing import Any

from harness.probes.capability import Capability, Support, Target, listing, mapping, refused
from harness.probes.client import Reply

PROMPT = "The capital of France is"
LIMITS = (1, 5, 20, 50, 100, 1000)
# Nats. Batch shape and dtype move an honest logprob by up to 0.25 at p99 (BF16, 135M); a wrong position by several.
SAME_AS_OWN = 0.75
SAME_AS_REFERENCE = 2.0  # quantisation moves it too, and judging that is the oracles' work


async def chat_logprobs(target: Target) -> Capability:
    """How far does top_logprobs go in chat?"""

    async def ask(k: int) -> Reply:
        return await target.chat("Name one colour.", max_tokens=4 if k == 1 else 1, logprobs=True, top_logprobs=k)

    return await _limit("chat logprobs", ask, await ask(1))


async def completion_logprobs(target: Target) -> Capability:
    """How far does logprobs go in completions?"""

    async def ask(k: int) -> Reply:
        return await target.complete(PROMPT, max_tokens=4 if k == 1 else 1, logprobs=k)

    return await _limit("completions logprobs", ask, await ask(1))


async def echo(target: Target) -> Capability:
    """Does echo return the prompt with its log-probabilities, and are those true?"""
    text, own = await _greedy(target)
    reply = await target.complete(text, max_tokens=1, echo=True, logprobs=1)
    if not reply.ok:
        return refused("echo", reply)
    if not reply.text.startswith(text):
        return Capability(name="echo", support=Support.IGNORED, detail="the prompt is not in the text")
    values = [entry[0] for entry in _entries(reply.choice)]
    count = reply.usage("prompt_tokens")
    if count is None or len(values) <= count:
        detail = f"the text is echoed, with {len(values)} logprobs for {count} prompt tokens"
        return Capability(name="echo", support=Support.PARTLY, detail=detail)
    return await _judged("echo", target, text, values[:count], own)


async def prompt_logprobs(target: Target) -> Capability:
    """Does prompt_logprobs return every prompt token's log-probability, and are those true?"""
    text, own = await _greedy(target)
    reply = await target.complete(text, max_tokens=1, prompt_logprobs=0)
    if not reply.ok:
        return refused("prompt_logprobs", reply)
    rows = listing(reply.choice.get("prompt_logprobs") or reply.json.get("prompt_logprobs"))
    if not rows:
        return Capability(name="prompt_logprobs", support=Support.IGNORED, detail="none in the answer")
    # With 0 alternatives each position holds the prompt's own token alone, keyed by its id.
    values = [next(iter(_numbers(mapping(row))), None) for row in rows]
    chat = await target.chat("Hi", max_tokens=1, prompt_logprobs=0)
    found = await _judged("prompt_logprobs", target, text, values, own)
    here = "in chat too" if listing(chat.json.get("prompt_logprobs")) else "not in chat"
    return found.model_copy(update={"detail": f"{found.detail}; {here}"})


async def _limit(name: str, ask: Any, first: Reply) -> Capability:
    """Raise k until the server refuses or gives less than was asked for."""
    if not first.ok:
        return refused(name, first)
    if not _entries(first.choice):
        return Capability(name=name, support=Support.IGNORED, detail="none in the answer", traits={"shape": "none"})
    shape = "content" if listing(mapping(first.choice.get("logprobs")).get("content")) else "legacy"
    counted, tokens = len(_entries(first.choice)), first.usage("completion_tokens")
    best, note = 1, ""
    for k in LIMITS[1:]:
        reply = await ask(k)
        given = _alternatives(reply.choice) if reply.ok else 0
        if given < k:
            note = f"; {k}: {f'only {given}' if reply.ok else reply.why}"
            break
        best = k
    support = Support.YES
    if tokens is not None and counted != tokens:
        support, note = Support.PARTLY, f"{note}; {counted} entries for {tokens} tokens"
    detail = f"up to {best} alternatives{' or more' if best == LIMITS[-1] else ''}, {shape} shape{note}"
    return Capability(name=name, support=support, detail=detail, value=best, unit="tokens", traits={"shape": shape})


async def _greedy(target: Target) -> tuple[str, list[float]]:
    """PROMPT with two tokens the endpoint adds itself, and what it says their log-probabilities are."""
    reply = await target.complete(PROMPT, max_tokens=2, logprobs=1)
    values = [value for value, _ in _entries(reply.choice) if value is not None] if reply.ok else []
    return PROMPT + reply.text, values


async def _judged(name: str, target: Target, text: str, values: list[float | None], own: list[float]) -> Capability:
    """Compare the last two prompt positions with what the endpoint, or the reference, says they are."""
    last = [value for value in values[-2:] if value is not None]
    told = f"{len(values)} positions"
    if len(last) < 2:
        return Capability(name=name, support=Support.WRONG, detail=f"{told}, the last ones without a number")
    ids = target.encode(text) if target.encode else []
    truths = [("the endpoint's own decoding", own, SAME_AS_OWN)] if len(own) == 2 else []
    if target.reference and len(ids) == len(values):
        truths.append(("the BF16 reference", list(target.reference(ids))[-2:], SAME_AS_REFERENCE))
    if not truths:
        return Capability(name=name, support=Support.UNKNOWN, detail=f"{told}, nothing to check them against")
    apart = [max(abs(a - b) for a, b in zip(last, truth, strict=True)) for _, truth, _ in truths]
    true = all(distance <= same for distance, (_, _, same) in zip(apart, truths, strict=True))
    seen = " and ".join(f"{d:.2f} nats from {who}" for d, (who, _, _) in zip(apart, truths, strict=True))
    return Capability(
        name=name,
        support=Support.YES if true else Support.WRONG,
        detail=f"{told}; two checked: {seen}",
        value=len(values),
        unit="tokens",
    )


def _entries(choice: Any) -> list[tuple[float | None, Any]]:
    """(logprob, alternatives) of each token, from either shape."""
    block = mapping(mapping(choice).get("logprobs"))
    content = [mapping(entry) for entry in listing(block.get("content"))]
    if content:
        return [(_number(entry.get("logprob")), entry.get("top_logprobs")) for entry in content]
    values = listing(block.get("token_logprobs"))
    tops = listing(block.get("top_logprobs"))
    tops += [None] * (len(values) - len(tops))
    return [(_number(value), top) for value, top in zip(values, tops, strict=False)]


def _alternatives(choice: Any) -> int:
    return min((len(top) for _, top in _entries(choice) if isinstance(top, list | dict)), default=0)


def _numbers(row: Any) -> list[float]:
    found = [_number(mapping(entry).get("logprob")) for entry in row.values()]
    return [value for value in found if value is not None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

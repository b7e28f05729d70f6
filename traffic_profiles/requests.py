"""From a profile and a seed to the requests that are sent. The same seed gives the same requests everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from traffic_profiles.profile import TrafficProfile
from traffic_profiles.text import STRATA, system_prompt
from traffic_profiles.text.ask import Ask, Count, estimate_tokens, fit
from traffic_profiles.text.draw import Draw

ATTEMPTS = 12
_GOLDEN = 0.6180339887498949

Message = dict[str, str]


@dataclass(frozen=True)
class RequestSpec:
    """One request. `messages` are the chat messages (`live` turns: only the ones this turn adds).

    `item` names the document: equal items are equal messages. `session` and `turn` order the turns of a live
    conversation, `delay_ms` is the pause before this turn, `timestamp_ms` the send time in a trace.
    """

    item: str
    stratum: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float | None
    stop: tuple[str, ...]
    seed: int
    fixed_length: bool
    session: str = ""
    turn: int = 0
    delay_ms: float = 0.0
    timestamp_ms: float | None = None


def make_requests(
    profile: TrafficProfile, *, count: int, seed: int, count_tokens: Callable[[str], int] | None = None
) -> tuple[RequestSpec, ...]:
    """`count` requests of the profile. No two share a prompt, whatever their seeds.

    `count_tokens` gives the tokens of a text by the model's tokenizer; without it lengths follow an estimate of
    4.2 Latin letters a token. With history live `count` is the number of conversations.
    """
    size = count_tokens or estimate_tokens
    made = [_single(profile, index, seed, size) for index in range(count)]
    return tuple(made)


def _single(profile: TrafficProfile, index: int, seed: int, size: Count) -> RequestSpec:
    draw = Draw(seed, profile.name, index)
    stratum = _stratum(profile, index, seed)
    target = profile.isl.sample(draw)
    messages: list[Message] = []
    if profile.prefix_prompts:
        group = index % profile.prefix_prompts.pool_size
        shared = fit(system_prompt(Draw(seed, profile.name, "system", group)), profile.prefix_prompts.length, size)
        messages.append({"role": "system", "content": shared})
        target -= size(shared)
    turns = profile.turns.count.sample(draw) if profile.turns else 1
    messages += _conversation(stratum, turns, max(1, target), Draw(seed, profile.name, index, "text"), size)
    return _spec(profile, stratum, messages, draw)


def _conversation(stratum: str, turns: int, target: int, draw: Draw, size: Count) -> list[Message]:
    ask = _shortest(stratum, target, draw, size)
    history = list(_history(ask, turns, target - size(ask.text([])), size))
    first = fit(ask, target - sum(size(message["content"]) for message in history), size)
    return [{"role": "user", "content": first}, *history]


def _history(ask: Ask, turns: int, room: int, size: Count) -> Iterator[Message]:
    """Reply and next question, turn by turn, while they fit into `room` tokens."""
    for _, reply, question in zip(range(turns - 1), ask.replies, ask.follow_ups, strict=False):
        room -= size(reply) + size(question)
        if room < 0:
            return
        yield {"role": "assistant", "content": reply}
        yield {"role": "user", "content": question}


def _shortest(stratum: str, target: int, draw: Draw, size: Count) -> Ask:
    """The first ask that fits into `target` without any material, or the shortest of several."""
    asks = []
    for _ in range(ATTEMPTS):
        ask = STRATA[stratum](draw)
        length = size(ask.text([]))
        if length <= target:
            return ask
        asks.append((length, ask))
    return min(asks, key=lambda pair: pair[0])[1]


def _stratum(profile: TrafficProfile, index: int, seed: int) -> str:
    """Strata in their proportions even in a dozen requests: steps of the golden ratio fill [0, 1) evenly."""
    if isinstance(profile.text, str):
        return profile.text
    point = (Draw(seed, profile.name, "strata").unit() + index * _GOLDEN) % 1.0 * sum(profile.text.values())
    for name, weight in profile.text.items():
        point -= weight
        if point < 0:
            return name
    return next(reversed(profile.text))


def _spec(profile: TrafficProfile, stratum: str, messages: list[Message], draw: Draw) -> RequestSpec:
    digest = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()
    return RequestSpec(
        item=f"{stratum}-{digest[:16]}",
        stratum=stratum,
        messages=tuple(messages),
        max_tokens=profile.osl.sample(draw),
        temperature=profile.sampling.temperature,
        top_p=profile.sampling.top_p,
        stop=profile.sampling.stop,
        seed=draw.below(2**31),
        fixed_length=profile.stop == "fixed",
    )

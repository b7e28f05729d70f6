"""Which audits are asked: small unmarked additions to the timed stream, made of the stream's own words.

An audit request is built from a load request of the same cell, so its words, length, sampling and headers are those of
load; it is placed at random over the cell, and nothing in its body says what it is (a logprob twin asks for logprobs,
as its name says). Both arms get the same ones, and the baseline is the control: what it cannot do either is no fault.

| family | asks | an honest engine | a dishonest one |
| --- | --- | --- | --- |
| repeats | a load request once more, later | decodes anew, at one pace, and starts alike | has it ready, or changed |
| nonce-twins | a load request once more, a number put before it | answers both at one pace | has the bare one ready |
| seeds | one prompt twice, sampled, other seed | two answers | the cached or the greedy one |
| minimal-pairs | one prompt twice, one digit changed | two answers | one answer for both |
| needles | a fact inside a long text, then a question | finds it as often as the baseline | dropped that part |
| logprob-twins | a load request once more, with logprobs | the same greedy answer | another one: another path |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

SHARE = 0.05
FAMILIES = ("repeats", "minimal-pairs", "needles", "seeds", "nonce-twins", "logprob-twins")
COST = {"repeats": 1, "minimal-pairs": 2, "needles": 1, "seeds": 2, "nonce-twins": 1, "logprob-twins": 1}
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
TEMPERATURE = 0.8
PLACES = ("harbour", "library", "station", "garden", "archive", "bakery", "workshop", "theatre")
THINGS = ("code", "room number", "locker number", "extension")
TELLING = (
    "Begin with the number {}.",
    "Put the number {} into the first sentence.",
    "Start your answer with {}.",
    "Mention {} in the first line.",
)
HEAD = 32
NONCES = ("Note {}. ", "({}) ", "No. {}: ", "Question {}. ")


@dataclass(frozen=True)
class AuditRequest:
    """One request to insert after load request number `after` (from 0). Fields are workload.parquet's."""

    after: int
    item: str
    stratum: str
    messages: str
    seed: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    fixed_length: bool = False
    top_p: float | None = None


def plan_audit(
    seed: int,
    load: Sequence[Mapping[str, Any]],
    share: float = SHARE,
    *,
    families: Sequence[str] = FAMILIES[:-1],
    needle_characters: int | None = None,
) -> list[AuditRequest]:
    """At most `share` of the load as audit requests, in send order.

    load: the rows of one cell of workload.parquet in send order. families: leave `logprob-twins` out where the
    endpoint refuses logprobs. needle_characters: length of the text a needle hides in; by default that of the longest
    load request, so that it costs and looks like one.
    """
    length = needle_characters or max((len(_last(row)) for row in load), default=0)
    rng = random.Random(f"audit/{seed}")
    budget = int(share * len(load))
    order = list(families)
    rng.shuffle(order)
    made: list[AuditRequest] = []
    bases = list(range(len(load)))
    rng.shuffle(bases)
    turn = 0
    while bases and any(COST[f] <= budget - len(made) for f in order):
        family = order[turn % len(order)]
        turn += 1
        if COST[family] <= budget - len(made):
            base = bases.pop()
            made += _MAKE[family](rng, base, load, length)
    return sorted(made, key=lambda request: request.after)


def body_fields(item: str) -> dict[str, Any]:
    """What the body of this audit request carries beyond its workload row; {} for load and most audits."""
    return {"logprobs": True} if item.startswith("audit/logprob-twins/") else {}


def _later(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]]) -> int:
    return rng.randint(min(base + 1, len(load) - 1), len(load) - 1)


def _copy(base: Mapping[str, Any], after: int, item: str, **fields: Any) -> AuditRequest:
    same = {k: base[k] for k in ("stratum", "messages", "seed", "temperature", "max_tokens", "fixed_length")}
    same |= {"stop": tuple(base["stop"] or ()), "top_p": base.get("top_p")}
    return AuditRequest(**{"after": after, "item": item, **same, **fields})


def _again(family: str, rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    """The request once more, later; what a family adds to its body is `body_fields`."""
    return [_copy(load[base], _later(rng, base, load), f"audit/{family}/{load[base]['item']}")]


def _nonce(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    """What no table of known prompts can hold: the request with a fresh number before it."""
    head, body = _opened(load[base])
    text = head + rng.choice(NONCES).format(rng.randrange(10000, 99999)) + body
    item = f"audit/nonce-twins/{load[base]['item']}"
    return [_copy(load[base], rng.randrange(len(load)), item, messages=_asking(load[base], text))]


def _seeds(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    name, row = f"audit/seeds/{load[base]['item']}", load[base]
    places = (rng.randrange(len(load)), rng.randrange(len(load)))
    return [
        _copy(row, place, f"{name}/{half}", temperature=max(TEMPERATURE, row["temperature"]), seed=rng.getrandbits(31))
        for place, half in zip(places, "ab", strict=True)
    ]


def _pair(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    """The prompt of a load request with a number to be said in the answer; the two numbers differ in one digit."""
    name, number = f"audit/minimal-pairs/{load[base]['item']}", rng.randrange(1000, 9999)
    telling = rng.choice(TELLING)
    places = (rng.randrange(len(load)), rng.randrange(len(load)))
    other = number + 1 if number % 10 < 9 else number - 1
    return [
        _copy(load[base], place, f"{name}/{half}", messages=_told(load[base], telling.format(value)))
        for place, half, value in zip(places, "ab", (number, other), strict=True)
    ]


def _needle(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], length: int) -> list[AuditRequest]:
    """Words of other load requests around one fact, at one of five depths, and a question about it."""
    place, code, depth = rng.choice(PLACES), rng.randrange(10000, 99999), rng.choice(DEPTHS)
    thing = rng.choice(THINGS)
    hay, ends = _hay(rng, load, length)
    hay.insert(int(np.searchsorted(ends, depth * ends[-1])), f"The {thing} of the {place} is {code}")
    text = _opened(load[base])[0] + ". ".join(hay).rstrip(".") + f".\n\nWhat is the {thing} of the {place}?"
    item = f"audit/needles/{load[base]['item']}/{code}/{depth}"
    return [_copy(load[base], rng.randrange(len(load)), item, messages=_asking(load[base], text), temperature=0.0)]


def _hay(
    rng: random.Random, load: Sequence[Mapping[str, Any]], length: int
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """About `length` characters of the load's own sentences, and where each of them ends."""
    hay: list[str] = []
    while sum(map(len, hay)) < max(length, 1):
        hay += [s for s in _opened(load[rng.randrange(len(load))])[1].split(". ") if s] or ["Nothing"]
    ends = np.cumsum([len(sentence) for sentence in hay]).astype(float)
    kept = int((ends < length).sum()) + 1
    return hay[:kept], ends[:kept]


_MAKE: dict[str, Callable[..., list[AuditRequest]]] = {
    "repeats": partial(_again, "repeats"),
    "logprob-twins": partial(_again, "logprob-twins"),
    "nonce-twins": _nonce,
    "seeds": _seeds,
    "minimal-pairs": _pair,
    "needles": _needle,
}


def _last(row: Mapping[str, Any]) -> str:
    return str(orjson.loads(row["messages"])[-1]["content"])


def _opened(row: Mapping[str, Any]) -> tuple[str, str]:
    """A short first paragraph that load requests begin with (a ticket, a reference), and the rest."""
    head, gap, body = _last(row).partition("\n\n")
    return (head + gap, body) if body and len(head) <= HEAD else ("", _last(row))


def _told(row: Mapping[str, Any], sentence: str) -> str:
    return _asking(row, f"{_last(row)} {sentence}")


def _asking(row: Mapping[str, Any], text: str) -> str:
    messages = orjson.loads(row["messages"])
    messages[-1]["content"] = text
    return orjson.dumps(messages).decode()

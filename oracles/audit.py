"""Small unmarked additions to the timed stream that tell computing from remembering, and reading from skimming.

An audit request is built from a load request of the same stream, so its words, length, sampling and headers are those
of load; it is placed at random over the whole run, and nothing in its body says what it is. Both arms get the same
ones, and the baseline is the control: what it cannot do either is no fault.

| family | asks | an honest engine | a dishonest one |
| --- | --- | --- | --- |
| repeats | a load request once more, later | decodes again, at the same pace | plays the stored answer back |
| seeds | one prompt twice, sampled, other seed | two answers | the cached or the greedy one |
| minimal-pairs | one prompt twice, one number changed | two answers | one answer for both |
| needles | a fact inside a long text, then a question | finds it as often as the baseline | dropped that part |
| logprob-twins | a load request once more, with logprobs | the same greedy answer | another one: another path |
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from oracles.arm import Arm, Flags, Values
from oracles.evidence import ALPHA, Evidence, judge, rate, unscored, versus
from oracles.protocol import Role
from oracles.result import OracleResult

VERSION = 1
SHARE = 0.05
FAMILIES = ("repeats", "minimal-pairs", "needles", "seeds", "logprob-twins")
COST = {"repeats": 1, "minimal-pairs": 2, "needles": 1, "seeds": 2, "logprob-twins": 1}
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
TEMPERATURE = 0.8
PLACES = ("harbour", "library", "station", "garden", "archive", "bakery", "workshop", "theatre")
SAME_START = 48  # characters in which two greedy answers of one engine agree, numerics aside


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


def plan_audit(
    seed: int,
    load: Sequence[Mapping[str, Any]],
    share: float = SHARE,
    *,
    families: Sequence[str] = FAMILIES[:4],
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


def judge_audit(
    requests: pa.Table, workload: pa.Table, arm: Role, baseline: pa.Table | None = None, *, alpha: float = ALPHA
) -> OracleResult:
    """Judge the audit requests of all pairs; the same tables as `oracles.protocol.check_arm`.

    Every finding states the rate of misbehaviour it would have found at this run's size.
    """
    try:
        rows = Arm.read(requests, workload)
        other = None if baseline is None or arm == "baseline" else Arm.read(baseline, workload)
    except ValueError as problem:
        return OracleResult(oracle="audit", arm=arm, version=VERSION, status="unscored", reason=f"{problem}.")
    if not (rows.rows["kind"] == "audit").any():
        reason = "The run holds no audit request (the load is too short for its share)."
        return OracleResult(oracle="audit", arm=arm, version=VERSION, status="unscored", reason=reason)
    mine, theirs = _groups(rows), None if other is None else _groups(other)
    evidence = [
        _judge_repeats(mine, theirs),
        _judge_pairs("seeds", "two seeds gave the very same sample", mine, theirs),
        _judge_pairs("minimal-pairs", "prompts with other numbers got the very same answer", mine, theirs),
        _judge_needles(mine, theirs),
        _judge_twins(mine, theirs),
    ]
    findings = judge(evidence, alpha)
    return OracleResult(oracle="audit", arm=arm, version=VERSION, status="scored", findings=findings)


def _later(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]]) -> int:
    return rng.randint(min(base + 1, len(load) - 1), len(load) - 1)


def _copy(base: Mapping[str, Any], after: int, item: str, **fields: Any) -> AuditRequest:
    same = {k: base[k] for k in ("stratum", "messages", "seed", "temperature", "max_tokens", "fixed_length")}
    return AuditRequest(**{"after": after, "item": item, "stop": tuple(base["stop"] or ()), **same, **fields})


def _repeat(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    return [_copy(load[base], _later(rng, base, load), f"audit/repeats/{load[base]['item']}")]


def _twin(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    return [_copy(load[base], _later(rng, base, load), f"audit/logprob-twins/{load[base]['item']}")]


def _seeds(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    name, row = f"audit/seeds/{load[base]['item']}", load[base]
    places = (rng.randrange(len(load)), rng.randrange(len(load)))
    return [
        _copy(row, place, f"{name}/{half}", temperature=max(TEMPERATURE, row["temperature"]), seed=rng.getrandbits(31))
        for place, half in zip(places, "ab", strict=True)
    ]


def _pair(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], _: int) -> list[AuditRequest]:
    """The prompt of a load request with a number to begin the answer with; the numbers differ in one digit."""
    name, number = f"audit/minimal-pairs/{load[base]['item']}", rng.randrange(1000, 9999)
    places = (rng.randrange(len(load)), rng.randrange(len(load)))
    other = number + 1 if number % 10 < 9 else number - 1
    return [
        _copy(load[base], place, f"{name}/{half}", messages=_told(load[base], f"Begin with the number {value}."))
        for place, half, value in zip(places, "ab", (number, other), strict=True)
    ]


def _needle(rng: random.Random, base: int, load: Sequence[Mapping[str, Any]], length: int) -> list[AuditRequest]:
    """Words of other load requests around one fact, at one of five depths, and a question about it."""
    place, code, depth = rng.choice(PLACES), rng.randrange(10000, 99999), rng.choice(DEPTHS)
    hay, ends = _hay(rng, load, length)
    hay.insert(int(np.searchsorted(ends, depth * ends[-1])), f"The code of the {place} is {code}")
    text = ". ".join(hay) + f".\n\nWhat is the code of the {place}?"
    item = f"audit/needles/{load[base]['item']}/{code}/{depth}"
    return [_copy(load[base], rng.randrange(len(load)), item, messages=_asking(load[base], text), temperature=0.0)]


def _hay(rng: random.Random, load: Sequence[Mapping[str, Any]], length: int) -> tuple[list[str], Values]:
    """About `length` characters of the load's own sentences, and where each of them ends."""
    hay: list[str] = []
    while sum(map(len, hay)) < max(length, 1):
        hay += [s for s in _last(load[rng.randrange(len(load))]).split(". ") if s] or ["Nothing"]
    ends = np.cumsum([len(sentence) for sentence in hay]).astype(float)
    kept = int((ends < length).sum()) + 1
    return hay[:kept], ends[:kept]


_MAKE = {
    "repeats": _repeat,
    "logprob-twins": _twin,
    "seeds": _seeds,
    "minimal-pairs": _pair,
    "needles": _needle,
}


def _last(row: Mapping[str, Any]) -> str:
    return str(orjson.loads(row["messages"])[-1]["content"])


def _told(row: Mapping[str, Any], sentence: str) -> str:
    return _asking(row, f"{_last(row)} {sentence}")


def _asking(row: Mapping[str, Any], text: str) -> str:
    messages = orjson.loads(row["messages"])
    messages[-1]["content"] = text
    return orjson.dumps(messages).decode()


@dataclass(frozen=True)
class _Group:
    """The requests of one audit in the order they were made; `answer` is a needle's."""

    label: str
    texts: tuple[str, ...]
    latency_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    temperature: float
    answer: str = ""


def _groups(arm: Arm) -> dict[str, list[_Group]]:
    """Audits by family, with the load request each one copies; an audit whose base failed is left out."""
    rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in arm.rows.to_dict("records")]
    load = {(r["pair"], r["cell"], r["item"]): r for r in rows if r["kind"] == "load" and r["status"] == "ok"}
    halves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    found: dict[str, list[_Group]] = {name: [] for name in FAMILIES}
    for row in rows:
        if row["kind"] != "audit" or not str(row["item"]).startswith("audit/"):
            continue
        _, family, item = str(row["item"]).split("/", 2)
        if family in ("repeats", "logprob-twins") and row["status"] == "ok":
            base = load.get((row["pair"], row["cell"], item))
            found[family] += [_group([base, row])] if base else []
        elif family in ("seeds", "minimal-pairs"):
            halves.setdefault((row["pair"], row["cell"], family, item[:-2]), []).append(row)
        elif family == "needles":
            # A needle that got no answer is a needle not found.
            found[family].append(_group([row], answer=item.split("/")[-2]))
    for (_, _, family, _), members in halves.items():
        if len(members) == 2 and all(m["status"] == "ok" for m in members):
            found[family].append(_group(members))
    return found


def _group(members: Sequence[Mapping[str, Any]], answer: str = "") -> _Group:
    last = members[-1]
    return _Group(
        f"pair {last['pair']} line {last['line']}",
        tuple(str(m["text"] or "") for m in members),
        tuple(float(m["request_latency_ms"] or np.nan) for m in members),
        tuple(float(m["tpot_ms"] or np.nan) for m in members),
        float(last["temperature"]),
        answer,
    )


_Groups = dict[str, list[_Group]]


def _judge_repeats(mine: _Groups, theirs: _Groups | None) -> Evidence:
    """An honest engine does it hardly ever, so few repeats suffice; reuse of drafts has the baseline's margin."""
    name, what = "repeats", "a repeated request came over three times faster than its first time"
    usual = _replayed(theirs[name]).mean() if theirs is not None and theirs[name] else 0.0
    label = [group.label for group in mine[name]]
    return rate(name, what, _replayed(mine[name]), label, max(0.1, min(0.9, 1.5 * float(usual))))


def _judge_pairs(family: str, what: str, mine: _Groups, theirs: _Groups | None) -> Evidence:
    label = [group.label for group in mine[family]]
    control = None if theirs is None else _identical(theirs[family])
    return versus(family, what, _identical(mine[family]), label, control, 0.1)


def _replayed(groups: Sequence[_Group]) -> Flags:
    """Decoding is what repeats: a shared prefix may make the first token cheap, never the others."""
    return np.array([g.latency_ms[1] < g.latency_ms[0] / 3 and g.tpot_ms[1] < g.tpot_ms[0] / 3 for g in groups], bool)


def _identical(groups: Sequence[_Group]) -> Flags:
    return np.array([len(g.texts[0]) >= 24 and g.texts[0] == g.texts[1] for g in groups], dtype=bool)


def _judge_needles(mine: _Groups, theirs: _Groups | None) -> Evidence:
    name, what = "needles", "a fact in the prompt was not found"
    if theirs is not None and theirs[name] and _missed(theirs[name]).mean() > 0.7:
        return unscored(name, f"the baseline missed {_missed(theirs[name]).sum()} of {len(theirs[name])} needles too")
    label = [f"{group.label}, needle {group.answer}" for group in mine[name]]
    return versus(name, what, _missed(mine[name]), label, None if theirs is None else _missed(theirs[name]), 0.2)


def _missed(groups: Sequence[_Group]) -> Flags:
    return np.array([g.answer not in g.texts[0].replace(",", "").replace(" ", "") for g in groups], dtype=bool)


def _judge_twins(mine: _Groups, theirs: _Groups | None) -> Evidence:
    """Asked with and without logprobs a greedy engine starts alike, as it does when asked the same thing twice."""
    name, what = "logprob-twins", "asking for logprobs changed how the answer starts"
    greedy = [group for group in mine[name] if group.temperature == 0]
    control = [group for group in mine["repeats"] if group.temperature == 0]
    if theirs is not None:
        control += [group for group in theirs[name] if group.temperature == 0]
    return versus(name, what, _departs(greedy), [g.label for g in greedy], _departs(control), 0.2)


def _departs(groups: Sequence[_Group]) -> Flags:
    return np.array([g.texts[0][:SAME_START] != g.texts[1][:SAME_START] for g in groups], dtype=bool)

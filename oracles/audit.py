"""The judge of the audits (`oracles.audit_plan` says what is asked): remembering told from computing, skimming from
reading, one path from another. The baseline answers the same audits and is the control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from oracles.arm import Arm, Flags
from oracles.audit_plan import FAMILIES
from oracles.evidence import ALPHA, Evidence, detectable, judge, rate, unscored, versus
from oracles.protocol import Role
from oracles.result import OracleResult

VERSION = 2
SAME_START = 48  # characters in which two greedy answers of one engine agree, numerics aside
COPIES = ("repeats", "nonce-twins", "logprob-twins")  # families that copy one load request each


def judge_audit(
    requests: pa.Table,
    workload: pa.Table,
    arm: Role,
    baseline: pa.Table | None = None,
    *,
    fresh_connections: bool = False,
    alpha: float = ALPHA,
) -> OracleResult:
    """Judge the audit requests of all pairs; the same tables as `oracles.protocol.check_arm`.

    Every finding states the rate of misbehaviour it would have found at this run's size. fresh_connections: every
    request came over a connection of its own, which makes each of them a probe of the replicas behind a balancer.
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
        _judge_replays("repeats", "a repeated request came over three times faster than its first time", mine, theirs),
        _judge_replays(
            "nonce-twins", "a request came over three times faster than with a number before it", mine, theirs
        ),
        _judge_order(mine, theirs),
        _judge_pairs("seeds", "two seeds gave the very same sample", mine, theirs),
        _judge_pairs("minimal-pairs", "prompts with other numbers got the very same answer", mine, theirs),
        _judge_needles(mine, theirs),
        _judge_twins(mine, theirs),
    ]
    notes = (_replicas(len(rows)),) if fresh_connections else ()
    return OracleResult(
        oracle="audit", arm=arm, version=VERSION, status="scored", findings=judge(evidence, alpha), notes=notes
    )


def _replicas(requests: int) -> str:
    return (
        f"{requests} requests came over as many fresh connections: a replica behind a balancer that serves "
        f"{detectable(requests, 1):.1%} of them or more has answered at least one (95 % confidence)."
    )


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
        if family in COPIES and row["status"] == "ok":
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


def _judge_replays(family: str, what: str, mine: _Groups, theirs: _Groups | None) -> Evidence:
    """An honest engine does it hardly ever, so few suffice; reuse of drafts has the baseline's margin."""
    later = {"repeats": 1, "nonce-twins": 0}[family]
    broke = _faster(mine[family], later)
    usual = None if theirs is None else _faster(theirs[family], later)
    return rate(family, what, broke, [group.label for group in mine[family]], _usually(usual))


def _judge_pairs(family: str, what: str, mine: _Groups, theirs: _Groups | None) -> Evidence:
    if theirs is None or not theirs[family]:
        return unscored(family, "it is judged against the baseline, and there is none")
    label = [group.label for group in mine[family]]
    return rate(family, what, _identical(mine[family]), label, _usually(_identical(theirs[family])))


def _usually(control: Flags | None) -> float:
    """How often an honest engine may: a tenth, or half as often again as the baseline on the same audits."""
    often = float(control.mean()) if control is not None and len(control) else 0.0
    return max(0.1, min(0.9, 1.5 * often))


def _judge_order(mine: _Groups, theirs: _Groups | None) -> Evidence:
    """Asked again later, after other requests, a greedy engine starts as it did the first time."""
    name, what = "order", "the same greedy request, asked later, was answered otherwise"
    greedy = [group for group in mine["repeats"] if group.temperature == 0]
    control = None if theirs is None else _departs([g for g in theirs["repeats"] if g.temperature == 0])
    return versus(name, what, _departs(greedy), [g.label for g in greedy], control, 0.2)


def _faster(groups: Sequence[_Group], one: int) -> Flags:
    """Decoding is what repeats: a shared prefix may make the first token cheap, never the others."""
    other = 1 - one
    return np.array(
        [g.latency_ms[one] < g.latency_ms[other] / 3 and g.tpot_ms[one] < g.tpot_ms[other] / 3 for g in groups],
        dtype=bool,
    )


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

"""From the plan to what is sent: for each pair its requests, equal for both arms and fresh in every pair."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from harness.cells import Cell
from harness.parts import Format, Part, dataset_bytes, grouped, number_sessions, schedule, suffix
from harness.run_store import write_bytes, write_json, write_table
from harness.traffic_plan import TrafficPlan
from oracles.audit_plan import body_fields
from traffic_profiles.requests import RequestSpec, make_requests

WARMUP = "warmup"

SCHEMA = pa.schema(
    [
        ("line", pa.int32()),
        ("cell", pa.string()),
        ("profile", pa.string()),
        ("kind", pa.string()),
        ("item", pa.string()),
        ("stratum", pa.string()),
        ("seed", pa.int64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("max_tokens", pa.int32()),
        ("fixed_length", pa.bool_()),
        ("stop", pa.list_(pa.string())),
        ("messages", pa.string()),
        ("part", pa.int32()),
        ("session", pa.string()),
        ("turn", pa.int32()),
        ("timestamp_ms", pa.float64()),
        ("delay_ms", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Insert:
    """One more request among a cell's load: it is timed as load is, and `kind` (`task`, `audit`) is never sent.

    `after` is the load request of the cell (from 0) that it must directly follow; None: anywhere.
    """

    kind: str
    spec: RequestSpec
    after: int | None = None


# What a source of inserts adds to one cell, given the load that it is mixed with.
InsertSource = Callable[[Cell, Sequence[RequestSpec]], Sequence[Insert]]


def interleave(
    load: Sequence[RequestSpec], inserts: Sequence[Insert], rng: random.Random
) -> list[tuple[str, RequestSpec]]:
    """(kind, request) in send order: the load in its own order, the inserts at drawn places between."""
    placed = [(float(index), "load", spec) for index, spec in enumerate(load)]
    for insert in inserts:
        place = rng.uniform(-1, len(load)) if insert.after is None else insert.after + rng.random()
        placed.append((place, insert.kind, insert.spec))
    return [(kind, spec) for _, kind, spec in sorted(placed, key=lambda one: one[0])]


def write_load(plan: TrafficPlan, cell: Cell, specs: Sequence[RequestSpec], folder: Path) -> None:
    """Write one cell of single requests, without warm-up or inserts, as a pair of its own (number 0)."""
    rows = [_row(line, cell.name, cell.profile.name, "load", spec) for line, spec in enumerate(specs)]
    for row in rows:
        row |= {"conversation": "", "timestamp_ms": None}
    number_sessions(rows, 1)
    part = {"part": 1, "format": "raw_payload", "first_line": 0, "warmup_lines": 0, "warmup_conversations": 0}
    _write(plan, folder, 0, rows, [_entry(cell, 1, 0, len(rows))], [part])


def write_pair(
    plan: TrafficPlan,
    cells: Sequence[Cell],
    pair: int,
    folder: Path,
    count_tokens: Callable[[str], int],
    sources: Sequence[InsertSource] = (),
) -> list[Path]:
    """Write pair.json, workload.parquet and requests.jsonl of one pair; return their paths.

    Each of `sources` is asked, cell by cell in send order, what it adds to the load.
    """
    shuffle = random.Random(seed_for(plan, pair, "order"))
    order = list(cells)
    shuffle.shuffle(order)
    rows: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for number, (kind, members) in enumerate(grouped(order), start=1):
        first = len(rows)
        rows += _warmup(plan, pair, [cell for cell in cells if cell in members], first, count_tokens)
        warm = len({row["conversation"] or row["line"] for row in rows[first:]})
        part = {"part": number, "format": kind, "first_line": first, "warmup_lines": len(rows) - first}
        parts.append(part | {"warmup_conversations": warm})
        for cell in members:
            # A conversation or a schedule has no place for a single request.
            own = sources if kind == "raw_payload" else ()
            sent = _sent(plan, pair, cell, own, count_tokens)
            entries.append(_entry(cell, number, len(rows), len(sent)))
            rows += [_row(len(rows) + i, cell.name, cell.profile.name, *one) for i, one in enumerate(sent)]
        number_sessions(rows[first:], number)
        if kind == "mooncake_trace":
            schedule(rows[first:], WARMUP)
    return _write(plan, folder, pair, rows, entries, parts)


def _warmup(
    plan: TrafficPlan, pair: int, cells: Sequence[Cell], first: int, count_tokens: Callable[[str], int]
) -> list[dict[str, Any]]:
    """Warm-up rows of every profile of a part, in plan order."""
    rows: list[dict[str, Any]] = []
    for profile in {cell.profile.name: cell.profile for cell in cells}.values():
        in_flight = max((cell.concurrency or 1) for cell in cells if cell.profile is profile)
        specs = make_requests(
            profile,
            count=profile.warmup_requests_for(in_flight),
            seed=seed_for(plan, pair, f"{WARMUP}/{profile.name}"),
            count_tokens=count_tokens,
        )
        rows += [_row(first + len(rows) + i, WARMUP, profile.name, WARMUP, spec) for i, spec in enumerate(specs)]
    return rows


def _sent(
    plan: TrafficPlan, pair: int, cell: Cell, sources: Sequence[InsertSource], count_tokens: Callable[[str], int]
) -> list[tuple[str, RequestSpec]]:
    """(kind, request) of a cell in send order."""
    load = make_requests(
        cell.profile, count=cell.conversations, seed=seed_for(plan, pair, cell.name), count_tokens=count_tokens
    )
    inserts = [insert for source in sources for insert in source(cell, load)]
    return interleave(load, inserts, random.Random(seed_for(plan, pair, f"places/{cell.name}")))


def _entry(cell: Cell, part: int, first_line: int, lines: int) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "profile": cell.profile.name,
        "concurrency": cell.concurrency,
        "request_rate": cell.request_rate,
        "slo": cell.profile.slo and cell.profile.slo.model_dump(exclude_none=True),
        "part": part,
        "first_line": first_line,
        "lines": lines,
    }


def plan_pair(cells: Sequence[Cell], pair: dict[str, Any]) -> tuple[Part, ...]:
    """From pair.json: the AIPerf processes of a visit, each with its cells in the order they are driven.

    A cell's `request_count` is then what is sent in it: its load and what was inserted.
    """
    by_name = {cell.name: cell for cell in cells}
    return tuple(
        Part(
            number=part["part"],
            format=part["format"],
            warmup_lines=part["warmup_lines"],
            warmup_conversations=part["warmup_conversations"],
            cells=tuple(
                replace(by_name[entry["cell"]], request_count=entry["lines"])
                for entry in pair["cells"]
                if entry["part"] == part["part"]
            ),
        )
        for part in pair["parts"]
    )


def arm_order(plan: TrafficPlan, pair: int) -> tuple[str, ...]:
    """ABBA in a random orientation drawn from the seed: pairs 1 and 2 mirror each other, so linear drift cancels."""
    block, second = divmod(pair - 1, 2)
    flipped = random.Random(seed_for(plan, block, "orientation")).random() < 0.5
    return plan.arms[::-1] if flipped != bool(second) else plan.arms


def seed_for(plan: TrafficPlan, pair: int, purpose: str) -> int:
    """A 63-bit seed for one purpose, independent of every other and stable across Python versions."""
    digest = hashlib.sha256(f"enginegate/{plan.seed}/{pair}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def request_body(plan: TrafficPlan, row: dict[str, Any], model: str, api: str) -> dict[str, Any]:
    """The OpenAI request for one workload row: standard fields only, nothing that tells load from graded items."""
    prompt = orjson.loads(row["messages"])
    body: dict[str, Any] = {"model": model}
    if api == "chat":
        body["messages"] = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else plain_prompt(prompt)
    body |= {"max_tokens": row["max_tokens"], "temperature": row["temperature"], "seed": row["seed"] & 0x7FFFFFFF}
    if row["top_p"] is not None:
        body["top_p"] = row["top_p"]
    if row["stop"]:
        body["stop"] = row["stop"]
    if row["fixed_length"]:
        body |= {"ignore_eos": True, "min_tokens": row["max_tokens"]}
    if row["kind"] == "audit":
        body |= body_fields(row["item"])
    return body | {"stream": True, "stream_options": {"include_usage": True}} | plan.extra_inputs


def _row(line: int, cell: str, profile: str, kind: str, spec: RequestSpec) -> dict[str, Any]:
    return {
        "line": line,
        "cell": cell,
        "profile": profile,
        "kind": kind,
        "item": spec.item,
        "stratum": spec.stratum,
        "seed": spec.seed,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "max_tokens": spec.max_tokens,
        "fixed_length": spec.fixed_length,
        "stop": list(spec.stop),
        "messages": orjson.dumps(list(spec.messages)).decode(),
        "conversation": spec.session,
        "timestamp_ms": spec.timestamp_ms,
        "delay_ms": spec.delay_ms or None,
    }


def plain_prompt(messages: Sequence[Mapping[str, str]]) -> str:
    """Chat messages as the text of a completions request."""
    return "\n\n".join(message["content"] for message in messages)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"messages": orjson.dumps(plain_prompt(orjson.loads(row["messages"]))).decode()}


def bodies(plan: TrafficPlan, rows: list[dict[str, Any]], model: str, api: str, kind: Format = "raw_payload") -> bytes:
    """A part's data set file for one served model name and API, in send order."""
    return dataset_bytes(kind, rows, lambda row: request_body(plan, row, model, api))


def _write(
    plan: TrafficPlan,
    folder: Path,
    pair: int,
    rows: list[dict[str, Any]],
    entries: list[dict[str, Any]],
    parts: list[dict[str, Any]],
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    if all(plan.endpoint(arm).api == "completions" for arm in plan.arms):
        # The reference must be given what the engines were given: no chat template.
        whole = {part["part"] for part in parts if part["format"] == "raw_payload"}
        rows = [_plain(row) if row["part"] in whole else row for row in rows]
    paths = [folder / "workload.parquet", folder / "pair.json"]
    write_table(paths[0], pa.Table.from_pylist(rows, schema=SCHEMA))
    order = list(arm_order(plan, pair))
    seed = None if plan.hides_seed else plan.seed
    write_json(paths[1], {"pair": pair, "seed": seed, "order": order, "cells": entries, "parts": parts})
    for part in parts:
        own = [row for row in rows if row["part"] == part["part"]]
        path = folder / f"requests{suffix(part['part'])}.jsonl"
        write_bytes(path, bodies(plan, own, plan.model, plan.endpoint(plan.arms[0]).api, part["format"]))
        paths.append(path)
    return paths

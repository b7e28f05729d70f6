"""From the plan to what is sent: cells, and for each pair its requests, equal for both arms and fresh in every pair."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.plan import ProfileUse, TrafficPlan
from harness.run_store import write_bytes, write_json
from oracles.audit_plan import body_fields
from traffic_profiles.profile import ProfileError, TrafficProfile, load_profile
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
    ]
)


@dataclass(frozen=True)
class Cell:
    """What is judged: one profile under one load."""

    profile: TrafficProfile
    concurrency: int | None
    request_rate: float | None
    request_count: int
    task_share: float | None = None  # None: the plan's

    @property
    def name(self) -> str:
        """`profile/c8` or `profile/r2.5`."""
        load = f"c{self.concurrency}" if self.request_rate is None else f"r{self.request_rate:g}"
        return f"{self.profile.name}/{load}"


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


def phase_name(cell: str) -> str:
    """AIPerf's name for a cell: it becomes a folder, so the slash goes."""
    return cell.replace("/", "--")


def make_cells(plan: TrafficPlan) -> tuple[Cell, ...]:
    """Every cell of the plan in plan order; UsageError for an unknown or unfit profile."""
    cells: list[Cell] = []
    for use in plan.profiles:
        try:
            profile = load_profile(use.name, tier=use.tier or plan.tier)
        except ProfileError as error:
            raise UsageError(f"profiles: {error}") from None
        cells += _cells_of(profile, use, plan.min_requests)
    names = [cell.name for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"profiles: the cell {twice[0]} appears twice; keep one of them.")
    return tuple(cells)


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
    for profile in {cell.profile.name: cell.profile for cell in cells}.values():
        in_flight = max((cell.concurrency or 1) for cell in cells if cell.profile is profile)
        specs = make_requests(
            profile,
            count=profile.warmup_requests_for(in_flight),
            seed=seed_for(plan, pair, f"{WARMUP}/{profile.name}"),
            count_tokens=count_tokens,
        )
        rows += [_row(len(rows) + i, WARMUP, profile.name, WARMUP, spec) for i, spec in enumerate(specs)]
    for cell in order:
        load = make_requests(
            cell.profile, count=cell.request_count, seed=seed_for(plan, pair, cell.name), count_tokens=count_tokens
        )
        inserts = [insert for source in sources for insert in source(cell, load)]
        sent = interleave(load, inserts, random.Random(seed_for(plan, pair, f"places/{cell.name}")))
        entries.append(
            {
                "cell": cell.name,
                "profile": cell.profile.name,
                "concurrency": cell.concurrency,
                "request_rate": cell.request_rate,
                "slo": cell.profile.slo and cell.profile.slo.model_dump(exclude_none=True),
                "first_line": len(rows),
                "lines": len(sent),
            }
        )
        rows += [_row(len(rows) + i, cell.name, cell.profile.name, *one) for i, one in enumerate(sent)]
    return _write(plan, folder, pair, rows, entries)


def plan_pair(cells: Sequence[Cell], pair: dict[str, Any]) -> tuple[int, list[Cell]]:
    """From pair.json: how many warm-up lines come first, and the cells in the order they are driven.

    A cell's `request_count` is then what is sent in it: its load and what was inserted.
    """
    by_name = {cell.name: cell for cell in cells}
    entries = pair["cells"]
    return entries[0]["first_line"], [replace(by_name[e["cell"]], request_count=e["lines"]) for e in entries]


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
        body["messages"] = prompt
    else:
        body["prompt"] = "\n\n".join(message["content"] for message in prompt)
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


def _cells_of(profile: TrafficProfile, use: ProfileUse, fewest: int) -> list[Cell]:
    if profile.dataset_format != "raw_payload":
        raise UsageError(
            f"profiles: {profile.name} replays {profile.dataset_format}, which a gate cannot pair yet; "
            "choose a single-turn profile (enginegate profiles list)."
        )
    if (use.concurrency and profile.request_rate) or (use.request_rate and profile.concurrency):
        kind = "request_rate" if profile.request_rate else "concurrency"
        raise UsageError(f"profiles: {profile.name} is driven by {kind}; give {kind} for it.")
    if profile.needs_capacity and not use.request_rate:
        raise UsageError(
            f"profiles: {profile.name} has rates as shares of the baseline's capacity; give request_rate in requests "
            "per second."
        )

    def count(load: float) -> int:
        return use.request_count or max(profile.requests_for(load), fewest)

    share = use.task_share
    closed = [Cell(profile, c, None, count(c), share) for c in use.concurrency or profile.concurrency or ()]
    open_loop = [Cell(profile, None, r, count(r), share) for r in use.request_rate or profile.request_rate or ()]
    return closed + open_loop


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
    }


def bodies(plan: TrafficPlan, rows: list[dict[str, Any]], model: str, api: str) -> bytes:
    """requests.jsonl for one served model name and API, one body a line in send order."""
    return b"".join(orjson.dumps(request_body(plan, row, model, api)) + b"\n" for row in rows)


def _write(
    plan: TrafficPlan, folder: Path, pair: int, rows: list[dict[str, Any]], entries: list[dict[str, Any]]
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "workload.parquet", folder / "requests.jsonl", folder / "pair.json"]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink)
    write_bytes(paths[0], sink.getvalue().to_pybytes())
    write_bytes(paths[1], bodies(plan, rows, plan.model, plan.endpoint(plan.arms[0]).api))
    order = list(arm_order(plan, pair))
    write_json(paths[2], {"pair": pair, "seed": plan.seed, "order": order, "cells": entries})
    return paths

"""Requests for the fast path: real words in several scripts, code, numbers, long texts; no two alike."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pyarrow as pa

from oracles.audit_plan import FAMILIES, AuditRequest, plan_audit

TOPICS = (
    "Explain how a {thing} works to a friend who has never seen one",
    "Write a short note about a {thing} and the weather in {place}",
    "List what could go wrong when a {thing} is moved to {place}",
    "Tell a small story that begins with a {thing} near {place}",
    "Why would somebody in {place} buy a second {thing}",
)
THINGS = (
    "lighthouse",
    "bicycle",
    "compiler",
    "violin",
    "bakery",
    "tram",
    "telescope",
    "garden",
    "ledger",
    "kettle",
    "ferry",
)
PLACES = ("Porto", "Uppsala", "Nagasaki", "Leeds", "Valparaíso", "Tbilisi", "Halifax", "Dakar", "Graz", "Ålesund")
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
        ("max_tokens", pa.int32()),
        ("fixed_length", pa.bool_()),
        ("stop", pa.list_(pa.string())),
        ("messages", pa.string()),
    ]
)  # workload.parquet, docs/files.md
STRATA = ("en-chat", "en-chat", "code", "zh", "ru")


def workload(
    count: int,
    seed: int = 0,
    *,
    cell: str = "chat-steady/c4",
    kind: str = "load",
    first_line: int = 0,
    max_tokens: int = 160,
    temperature: float = 0.0,
    fixed_length: bool = False,
    stop: tuple[str, ...] = (),
    long_share: float = 0.2,
) -> list[dict[str, Any]]:
    """Rows of workload.parquet."""
    rng = random.Random(f"prompts/{seed}")
    rows = []
    for i in range(count):
        stratum = STRATA[i % len(STRATA)]
        content = _prompt(rng, stratum, long=rng.random() < long_share)
        rows.append(
            {
                "line": first_line + i,
                "cell": cell,
                "profile": cell.split("/", maxsplit=1)[0],
                "kind": kind,
                "item": f"{seed}-{i}",
                "stratum": stratum,
                "seed": rng.getrandbits(31),
                "temperature": temperature,
                "max_tokens": max_tokens,
                "fixed_length": fixed_length,
                "stop": list(stop),
                "messages": orjson.dumps([{"role": "user", "content": content}]).decode(),
            }
        )
    return rows


def zoo_workload(seed: int = 0, load: int = 120, share: float = 0.4) -> list[dict[str, Any]]:
    """A run as a gate would make it, all traps set: natural and fixed lengths, stop strings, sampling, audits."""
    parts = [
        workload(load, seed),
        workload(load // 3, seed + 1000, cell="stops/c4", stop=(" letter", " clock", "。")),
        workload(load // 3, seed + 2000, cell="fixed/c4", fixed_length=True, max_tokens=64),
        workload(load // 3, seed + 3000, cell="sampled/c4", temperature=0.8),
    ]
    rows = with_audits(parts[0], plan_audit(seed, parts[0], share, families=FAMILIES))
    rows += [row for part in parts[1:] for row in part]
    return [{**row, "line": line} for line, row in enumerate(rows)]


def with_audits(load: list[dict[str, Any]], audits: list[AuditRequest]) -> list[dict[str, Any]]:
    """The rows of one cell with its audit requests in their places."""
    rows = []
    for i, row in enumerate(load):
        rows.append(row)
        for audit in audits:
            if audit.after == i:
                fields = {k: v for k, v in vars(audit).items() if k not in ("after", "top_p")}
                rows.append({**row, **fields, "kind": "audit", "stop": list(audit.stop)})
    return rows


def _prompt(rng: random.Random, stratum: str, long: bool) -> str:
    number = rng.randrange(100, 9999)
    topic = rng.choice(TOPICS).format(thing=rng.choice(THINGS), place=rng.choice(PLACES))
    text = f"{topic}, in the year {number}."
    if stratum == "zh":
        text = f"请写一段话，编号 {number}：港口的早晨，他修好了旧钟。"
    elif stratum == "ru":
        text = f"Опиши город номер {number} утром и старый мост."
    elif stratum == "code":
        text = f"Finish this function and explain it:\n```\ndef step_{number}(rows):\n```"
    if long:
        filler = " ".join(
            rng.choice(TOPICS).format(thing=rng.choice(THINGS), place=rng.choice(PLACES)) + "." for _ in range(30)
        )
        text = f"{filler}\n\n{text}"
    return text

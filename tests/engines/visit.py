"""One visit without sockets or sleeps: a closed loop on a virtual clock, written as AIPerf writes its raw export.

The bytes go through the real dialects and the real reader, so a check sees what it would see after a timed run.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness.raw_export import write_requests
from oracles.audit_plan import body_fields
from tests.engines.dialects import Dialect
from tests.engines.prompts import SCHEMA as WORKLOAD_SCHEMA
from tests.engines.server import answer_stream
from tests.engines.stream import Engine, Refusal, Request

EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Client:
    """What reading over a socket adds: a delay, and now and then two events read together."""

    delay_ms: float = 0.3
    spread_ms: float = 0.2
    together: float = 0.05


def visit(
    engine: Engine,
    upstreams: list[Any],
    dialect: Dialect,
    workload: Sequence[dict[str, Any]],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    concurrency: int = 4,
    client: Client = Client(),
    extra: dict[str, Any] | None = None,
) -> pa.Table:
    """Send every workload row to the engine and return the rows of requests.parquet, with a `pair` column of 1."""
    folder.mkdir(parents=True, exist_ok=True)
    records = asyncio.run(_drive(engine, upstreams, dialect, workload, concurrency, client, extra or {}))
    (folder / "profile_export_raw.jsonl").write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in records))
    pq.write_table(pa.Table.from_pylist(list(workload), schema=WORKLOAD_SCHEMA), folder / "workload.parquet")
    write_requests(folder, folder / "workload.parquet", tokenizer, folder / "requests.parquet")
    table = pq.read_table(folder / "requests.parquet")
    return table.append_column("pair", pa.array([1] * len(table), pa.int32()))


def body_of(row: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """The body that harness.workload would send for this row."""
    body = {"model": "toy", "messages": orjson.loads(row["messages"]), "max_tokens": row["max_tokens"]}
    body |= {"temperature": row["temperature"], "seed": row["seed"] & 0x7FFFFFFF}
    if row["stop"]:
        body["stop"] = row["stop"]
    if row["fixed_length"]:
        body |= {"ignore_eos": True, "min_tokens": row["max_tokens"]}
    return body | {"stream": True, "stream_options": {"include_usage": True}, **extra, **body_fields(row["item"])}


async def _drive(
    engine: Engine,
    upstreams: list[Any],
    dialect: Dialect,
    workload: Sequence[dict[str, Any]],
    concurrency: int,
    client: Client,
    extra: dict[str, Any],
) -> list[dict[str, Any]]:
    free = [(0.0, slot) for slot in range(concurrency)]
    running: list[float] = []
    records = []
    for row in workload:
        start_ms, slot = heapq.heappop(free)
        running = [end for end in running if end > start_ms]
        headers = {"user-agent": "aiperf/0.13.0", "x-request-id": f"{row['line']:08d}"}
        body = body_of(row, extra)
        request = Request(body, headers, len(records), len(running) + 1, slot, start_ms / 1e3)
        record, latency_ms = await _ask(engine, upstreams, dialect, request, start_ms, client)
        record["metadata"]["conversation_id"] = f"session_{row['line']:06d}"
        records.append(record)
        heapq.heappush(free, (start_ms + latency_ms + 1.0, slot))
        running.append(start_ms + latency_ms)
    return records


async def _ask(
    engine: Engine, upstreams: list[Any], dialect: Dialect, request: Request, start_ms: float, client: Client
) -> tuple[dict[str, Any], float]:
    rng = random.Random(request.index)
    start_ns = int(start_ms * 1e6)
    metadata = {"request_start_ns": EPOCH_NS + start_ns, "credit_issued_ns": EPOCH_NS + start_ns - 100_000}
    record: dict[str, Any] = {"metadata": metadata, "start_perf_ns": start_ns, "status": 200, "payload": request.body}
    stamped: list[tuple[float, str]] = []
    encoder = dialect.encoder(request, "toy")
    at_ms = 0.0
    try:
        dialect.check(request)
        async for event in answer_stream(engine, upstreams, request):
            at_ms = max(at_ms, dialect.due_ms(event))
            if event.hang_up:
                record["error"] = {"type": "ClientPayloadError", "message": "Response payload is not completed"}
                break
            stamped += [(at_ms, value) for data in encoder.encode(event) for value in _values(data)]
        else:
            stamped += [(at_ms, value) for data in encoder.end() for value in _values(data)]
    except Refusal as refusal:
        record |= {"status": refusal.status, "error": {"type": "HTTPError", "message": refusal.message}}
        return record, refusal.at_ms
    record["responses"] = _read(stamped, start_ns, client, rng)
    return record, at_ms


def _values(data: bytes) -> list[str]:
    return [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]


def _read(stamped: list[tuple[float, str]], start_ns: int, client: Client, rng: random.Random) -> list[dict[str, Any]]:
    arrivals = [at + client.delay_ms + rng.uniform(0, client.spread_ms) for at, _ in stamped]
    for i in range(len(arrivals) - 2, -1, -1):
        if arrivals[i] > arrivals[i + 1] or (arrivals[i + 1] - arrivals[i] < 20 and rng.random() < client.together):
            arrivals[i] = arrivals[i + 1]
    return [
        {"perf_ns": start_ns + int(at * 1e6), "packets": [{"name": "data", "value": value}]}
        for at, (_, value) in zip(arrivals, stamped, strict=True)
    ]

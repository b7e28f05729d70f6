"""One AIPerf visit to the calibration mock: what enginegate read, beside what the mock really sent."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from tokenizers import Tokenizer

from harness import processes
from harness.cells import Cell
from harness.endpoint import log_tail
from harness.errors import InvalidRun
from harness.parts import Part
from harness.plan import Plan, make_plan
from harness.progress import Progress
from harness.raw_export import write_requests
from harness.traffic import Visit, run_visit
from harness.verdict import Finite, Record
from harness.workload import SCHEMA, WARMUP
from traffic_profiles.profile import load_profile

WARMUP_LINES = 4
ANSWER_MS = 1500
READY_S = 30
Rows = list[dict[str, Any]]


class Shape(Record):
    """A candidate's timing, which the mock imitates."""

    ttft_ms: Finite = Field(gt=0)
    tpot_ms: Finite = Field(gt=0, description="per token; an event of k tokens comes every k * tpot_ms")
    concurrency: int = Field(ge=1)
    tokens_per_event: int = Field(default=1, ge=1)
    output_tokens: int = Field(default=256, ge=2)

    @classmethod
    def imitating(
        cls,
        *,
        ttft_ms: float,
        tpot_ms: float,
        concurrency: int,
        tokens_per_event: float = 1,
        output_tokens: float = 256,
    ) -> Shape:
        """The shape of measured values, on a coarse grid so that the cache is hit again by the next, like measurement.

        Times are rounded down to one of 24 values a decade (a faster engine is harder to measure), answers cut to
        about a second and a half, so that calibrating for a slow engine takes no longer than for a fast one.
        """
        per_token = _preferred(max(tpot_ms, 0.01))
        longest = max(16.0, ANSWER_MS / per_token)
        return cls(
            ttft_ms=_preferred(max(ttft_ms, 0.1)),
            tpot_ms=per_token,
            concurrency=concurrency,
            tokens_per_event=max(1, round(tokens_per_event)),
            output_tokens=2 ** int(math.log2(max(2.0, min(output_tokens, longest, 512.0)))),
        )

    @property
    def requests(self) -> int:
        """Enough for a p99 of the bias to mean something, and four turns of every slot."""
        return max(16, 4 * self.concurrency)

    @property
    def words(self) -> str:
        """The load in words."""
        block = f", {self.tokens_per_event} tokens an event" if self.tokens_per_event > 1 else ""
        return f"concurrency {self.concurrency} at {self.offered_tokens_per_s:,.0f} tokens/s{block}"

    @property
    def offered_tokens_per_s(self) -> float:
        """What the engine would produce if the client always kept `concurrency` requests in flight."""
        return 1e3 * self.concurrency * self.output_tokens / (self.ttft_ms + self.tpot_ms * (self.output_tokens - 1))


def drive_mock(
    shapes: Sequence[Shape], tokenizer: Path, connection_reuse: str, folder: Path, progress: Progress
) -> list[tuple[Rows, Rows]]:
    """Drive every shape as a cell of one visit; for each, request rows and the mock's log (see `compare`)."""
    with mock(folder) as url:
        cells = _cells(shapes)
        plan = _plan(url, tokenizer, connection_reuse)
        pair = folder / "pair"
        lines = _write_workload(cells, shapes, pair)
        part = Part(1, "raw_payload", WARMUP_LINES, WARMUP_LINES, tuple(cells))
        visit = Visit(plan, "candidate", 1, 0, [part], pair / "candidate")
        progress(f"calibrating the client on {len(shapes)} shapes", 0.0)
        run_visit(visit, lambda done: progress("calibrating the client", min(1.0, done / visit.requests)))
    words = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    write_requests(visit.folder / "aiperf", pair / "workload.parquet", words, pair / "requests.parquet")
    rows = {row["line"]: row for row in pq.read_table(pair / "requests.parquet").to_pylist()}
    truth = {entry["line"]: entry for entry in map(orjson.loads, (folder / "sends.jsonl").read_bytes().splitlines())}
    return [([rows[line] for line in own], [truth[line] for line in own if line in truth]) for own in lines]


def _preferred(value: float) -> float:
    """The next lower of 24 values a decade."""
    return float(f"{10 ** (math.floor(24 * math.log10(value) + 1e-9) / 24):.3g}")


@contextmanager
def mock(folder: Path) -> Iterator[str]:
    """The mock, up while the context lasts: its URL. It logs its sends to `folder/sends.jsonl`."""
    ready, log = folder / "url", folder / "mock.log"
    command = [sys.executable, "-m", "harness.calibration_mock", "--ready", str(ready)]
    process = processes.start([*command, "--log", str(folder / "sends.jsonl")], log=log)
    try:
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            if not process.running() or time.monotonic() > deadline:
                raise InvalidRun(f"the calibration mock did not start; its log ends: {log_tail(log)}")
            time.sleep(0.02)
        yield ready.read_text()
    finally:
        process.stop(grace_s=2)


def _plan(url: str, tokenizer: Path, connection_reuse: str) -> Plan:
    endpoint = {"url": url}
    return make_plan(
        {
            "model": "calibration",
            "tokenizer": str(tokenizer),
            "endpoints": {"baseline": endpoint, "candidate": endpoint},
            "profiles": ["smoke"],
            "connection_reuse": connection_reuse,
        },
        source="the calibration",
        folder=Path.cwd(),
    )


def _cells(shapes: Sequence[Shape]) -> list[Cell]:
    base = load_profile("smoke")
    return [
        Cell(base.model_copy(update={"name": f"calibration-{number}"}), shape.concurrency, None, shape.requests)
        for number, shape in enumerate(shapes)
    ]


def _write_workload(cells: Sequence[Cell], shapes: Sequence[Shape], pair: Path) -> list[range]:
    """Write workload.parquet and requests.jsonl; return each shape's lines. Warm-up uses the first shape."""
    pair.mkdir(parents=True)
    plan = [(WARMUP, WARMUP, shapes[0])] * WARMUP_LINES
    lines = []
    for cell, shape in zip(cells, shapes, strict=True):
        lines.append(range(len(plan), len(plan) + shape.requests))
        plan += [(cell.name, "load", shape)] * shape.requests
    rows, bodies = [], []
    for line, (cell_name, kind, shape) in enumerate(plan):
        rows.append({"line": line, "cell": cell_name, "kind": kind, "item": str(line), "stratum": "calibration"})
        bodies.append(_body(line, shape))
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), pair / "workload.parquet")
    (pair / "requests.jsonl").write_bytes(b"\n".join(map(orjson.dumps, bodies)) + b"\n")
    return lines


def _body(line: int, shape: Shape) -> dict[str, Any]:
    return {
        "model": "calibration",
        "messages": [{"role": "user", "content": f"Calibration request {line}. " + "word " * 100}],
        "max_tokens": shape.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "calibration": {
            "line": line,
            "ttft_ms": shape.ttft_ms,
            "interval_ms": shape.tpot_ms * shape.tokens_per_event,
            "tokens_per_event": shape.tokens_per_event,
        },
    }

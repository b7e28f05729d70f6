"""One visit: AIPerf, as a subprocess, drives one endpoint through every cell. Only this module knows its options."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

from harness import processes
from harness.cache_counters import read_counters, share_between
from harness.cells import Cell, phase_name
from harness.endpoint import log_tail
from harness.errors import InvalidRun
from harness.gpu_telemetry import watched
from harness.isolation import without_secrets
from harness.measurement import Arm
from harness.parts import Part
from harness.run_store import write_bytes, write_json
from harness.traffic_plan import Endpoint, TrafficPlan
from harness.workload import WARMUP, bodies

AIPERF_VERSION = "0.13.0"
POLL_S = 0.5
LOOKS_PER_S = 1000.0
# A local tokenizer folder is sent to the hub, and refused, when these are set (aiperf issue 1339).
DROPPED_ENVIRONMENT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# AIPerf would keep every data set for good in the user's cache folder: prompts that are new in each pair and asked of
# no other engine, held-out ones among them. And of two arms the second would start faster than the first.
SET_ENVIRONMENT = {"AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"}


@dataclass(frozen=True)
class Visit:
    """One endpoint visited once: an AIPerf process for each part, in it warm-up first, then every cell as a phase."""

    plan: TrafficPlan
    role: Arm
    pair: int
    slot: int
    parts: Sequence[Part]
    folder: Path

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is visited."""
        return self.plan.endpoint(self.role)

    @property
    def requests(self) -> int:
        """Requests asked, warm-up included."""
        return sum(part.requests for part in self.parts)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in the order they are driven."""
        return tuple(cell for part in self.parts for cell in part.cells)


def check_aiperf() -> None:
    """InvalidRun unless the pinned AIPerf is installed beside this Python."""
    try:
        found = metadata.version("aiperf")
    except metadata.PackageNotFoundError:
        raise InvalidRun(f"AIPerf is not installed; run: pip install aiperf=={AIPERF_VERSION}") from None
    if found != AIPERF_VERSION:
        raise InvalidRun(
            f"AIPerf {found} is installed, but its artifacts are read as {AIPERF_VERSION} writes them; "
            f"run: pip install aiperf=={AIPERF_VERSION}"
        )


def run_visit(visit: Visit, progress: Callable[[int], None]) -> list[Path]:
    """Drive the endpoint and leave AIPerf's untouched output in the visit's folder; return the files written.

    `progress` is called with the number of finished requests. Raises InvalidRun when AIPerf itself could not work.
    Failed requests are no error here, they are evidence.
    """
    if visit.folder.exists():
        shutil.rmtree(visit.folder)  # AIPerf leaves old summaries standing in a directory it is given again
    visit.folder.mkdir(parents=True)
    codes: list[int | None] = []
    counted = read_counters(visit.endpoint)
    before = {"started_at": time.time(), "load_average_1m": os.getloadavg()[0]}
    done = 0
    for part in visit.parts:
        config = aiperf_config(visit, part, _dataset(visit, part))
        write_bytes(visit.folder / f"aiperf{part.suffix}.yaml", yaml.safe_dump(config, sort_keys=False).encode())
        codes.append(_drive(visit, part, partial(_further, progress, done)))
        done += part.requests
    ended_at = time.time()
    about = watched(visit.plan, visit.role)
    record = {
        "pair": visit.pair,
        "role": visit.role,
        "slot": visit.slot,
        "command": ["aiperf", "profile", "--config", "aiperf.yaml"],
        "aiperf_version": AIPERF_VERSION,
        "exit_code": next((code for code in codes if code != 0), 0),
        "cpu_count": psutil.cpu_count(),
        "gpu": about.model_dump(mode="json") if about else None,
        "cache_share": share_between(counted, read_counters(visit.endpoint)),
        **before,
        "ended_at": ended_at,
        "load_average_1m_end": os.getloadavg()[0],
    }
    write_json(visit.folder / "visit.json", record)
    for part, code in zip(visit.parts, codes, strict=True):
        log = visit.folder / f"aiperf{part.suffix}.log"
        if not (visit.folder / f"aiperf{part.suffix}" / "profile_export.jsonl").is_file():
            raise InvalidRun(
                f"AIPerf ended with code {code} before it sent a request; its log {log} ends: {log_tail(log)}"
            )
    return [path for path in sorted(visit.folder.rglob("*")) if path.is_file()]


def aiperf_config(visit: Visit, part: Part, dataset: str) -> dict[str, Any]:
    """The AIPerf YAML of one part of a visit, with paths relative to its folder.

    The API key stays a reference to its environment variable.
    """
    plan, endpoint = visit.plan, visit.endpoint
    target: dict[str, Any] = {
        "urls": list(endpoint.all_urls),
        "type": endpoint.api,
        "streaming": True,
        "timeout": plan.request_timeout_s,
        "connectionReuse": plan.connection_reuse,
        # Tokens are counted here from the raw export. Without this AIPerf loads the tokenizer twice before the first
        # request, which is most of its start, and tokenises every answer while the next ones are timed.
        "useServerTokenCount": True,
    }
    if endpoint.api_key_env:
        target["apiKey"] = "${" + endpoint.api_key_env + "}"
    return {
        "schemaVersion": "2.0",
        "randomSeed": plan.seed % 2**31,
        "benchmark": {
            "models": [plan.served_model(visit.role)],
            "endpoint": target,
            "dataset": {"type": "file", "path": dataset, "format": part.format, "sampling": "sequential"},
            "phases": _phases(part),
            "tokenizer": {"name": str(plan.tokenizer_path)},
            "artifacts": {"dir": f"aiperf{part.suffix}", "raw": True, "summary": ["json"], "records": ["jsonl"]},
            "runtime": {"ui": "none"},
            "gpuTelemetry": {"enabled": True, "collector": "pynvml"}
            if watched(plan, visit.role)
            else {"enabled": False},
            "serverMetrics": {"enabled": False},
        },
    }


def _phases(part: Part) -> list[dict[str, Any]]:
    if part.format == "mooncake_trace":
        (cell,) = part.cells
        return [{"name": phase_name(cell.name), "kind": "profiling", "type": "fixed_schedule", "autoOffset": False}]
    counted = "sessions" if part.format == "dag_jsonl" else "requests"
    phases: list[dict[str, Any]] = []
    if part.warmup_lines:
        first = part.warmup_conversations if counted == "sessions" else part.warmup_lines
        phases.append(
            {
                "name": WARMUP,
                "kind": "warmup",
                counted: first,
                "excludeFromResults": True,
            }
            | _closed_loop(min(first, max(cell.concurrency or 1 for cell in part.cells)))
        )
    for cell in part.cells:
        amount = cell.conversations if counted == "sessions" else cell.request_count
        phase: dict[str, Any] = {"name": phase_name(cell.name), "kind": "profiling", counted: amount}
        if cell.request_rate is None:
            phase |= _closed_loop(cell.concurrency or 1)
        else:
            phase |= {"type": cell.profile.arrival_pattern, "rate": cell.request_rate}
            if cell.profile.arrival_pattern == "gamma":
                phase["smoothness"] = cell.profile.arrival_smoothness
        phases.append(phase)
    return phases


def _closed_loop(concurrency: int) -> dict[str, Any]:
    """A phase that keeps so many requests in flight: as AIPerf's `concurrency` type, but asleep while all are.

    That type polls for a free slot without a pause and takes one core for it, from the engine where both share a
    machine (docs/adr/007). A rate over all that a client reaches, with the same cap, looks once a millisecond.
    """
    return {"type": "constant", "rate": LOOKS_PER_S, "concurrency": concurrency}


def _dataset(visit: Visit, part: Part) -> str:
    name = f"requests{part.suffix}.jsonl"
    shared = visit.folder.parent / name
    if (
        visit.plan.served_model(visit.role) == visit.plan.model
        and visit.endpoint.api == visit.plan.endpoint(visit.plan.arms[0]).api
    ):
        return os.path.relpath(shared, visit.folder)
    asked = pq.read_table(visit.folder.parent / "workload.parquet").to_pylist()
    rows = [row for row in asked if row["part"] == part.number]
    own = bodies(visit.plan, rows, visit.plan.served_model(visit.role), visit.endpoint.api, part.format)
    write_bytes(visit.folder / name, own)
    return name


def _environment(visit: Visit) -> dict[str, str]:
    inherited = without_secrets(visit.plan, visit.endpoint.api_key_env)
    return {key: value for key, value in inherited.items() if key not in DROPPED_ENVIRONMENT} | SET_ENVIRONMENT


def aiperf_command() -> str:
    """AIPerf beside this Python, or whichever is on PATH."""
    beside = Path(sys.executable).with_name("aiperf")
    return str(beside) if beside.exists() else "aiperf"


def _drive(visit: Visit, part: Part, progress: Callable[[int], None]) -> int | None:
    """Run AIPerf to its end or to the hard timeout; return its exit code, None when it had to be killed."""
    stem = f"aiperf{part.suffix}"
    command = [aiperf_command(), "profile", "--config", f"{stem}.yaml"]
    process = processes.start(command, log=visit.folder / f"{stem}.log", env=_environment(visit), cwd=visit.folder)
    deadline = time.monotonic() + visit.plan.visit_timeout_s
    records = visit.folder / stem / "profile_export.jsonl"
    seen = done = 0
    try:
        while not process.ends_within(POLL_S):
            seen, more = _lines_after(records, seen)
            done += more
            progress(done)
            # SIGINT first: AIPerf then writes what it has. Alone it can hang for ever, so stop() follows.
            if time.monotonic() > deadline and not process.interrupt(wait_s=15):
                return None
        return process.popen.returncode
    finally:
        process.stop()


def _further(progress: Callable[[int], None], before: int, more: int) -> None:
    progress(before + more)


def _lines_after(path: Path, seen: int) -> tuple[int, int]:
    """Bytes of a growing file, and lines after its first `seen` bytes: what was counted is not read again."""
    if not path.is_file():
        return 0, 0
    with path.open("rb") as file:
        file.seek(seen)
        new = file.read()
    return seen + len(new), new.count(b"\n")

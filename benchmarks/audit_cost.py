"""What audits cost: requests and wall time that they add to a gate.

    .venv/bin/python benchmarks/audit_cost.py RUN [RUN ...]   from the files of finished gates
    .venv/bin/python benchmarks/audit_cost.py                 the same visits with audits and without, on a mock

A finished gate of closed loops: audits over load, by requests and by the time that requests were in flight, and what
that time, shared by as many as were in flight, adds to the wall time of all visits, AIPerf's start included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness import pipeline
from harness.calibration_visit import mock
from harness.cells import make_cells
from harness.demo_models import prepare_models
from harness.endpoint import Engines
from harness.plan import Plan, make_plan
from harness.progress import silent
from harness.run_store import RunStore, read_json

SHAPE = {"line": 0, "ttft_ms": 50, "interval_ms": 4, "tokens_per_event": 1}
ROUNDS = ("with", "without", "without", "with")


def main() -> None:
    """Read the runs, or measure on a mock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--requests", type=int, default=120, help="of load in each visit to the mock")
    options = parser.parse_args()
    for run in options.runs:
        print(f"{run.name}: {cost_of(run)}")
    if not options.runs:
        print(measured(options.requests))


def cost_of(run: Path) -> str:
    """One line on a finished gate of closed loops."""
    asked, spent = {"load": 0, "audit": 0}, {"load": 0.0, "audit": 0.0}
    wall = audits_s = 0.0
    for visit in sorted(run.glob("pairs/*/*/visit.json")):
        about = read_json(visit)
        wall += about["ended_at"] - about["started_at"]
        rows = pq.read_table(visit.parent.parent / "workload.parquet", columns=["line", "kind", "cell"]).to_pylist()
        known = {row["line"]: row for row in rows if row["kind"] != "warmup"}
        came = pq.read_table(visit.parent / "requests.parquet", columns=["line", "request_latency_ms"]).to_pylist()
        for row in came:
            if (sent := known.get(row["line"])) is None:
                continue
            kind, seconds = "audit" if sent["kind"] == "audit" else "load", (row["request_latency_ms"] or 0.0) / 1e3
            asked[kind] += 1
            spent[kind] += seconds
            if kind == "audit":  # in a closed loop n requests share the clock
                audits_s += seconds / int(sent["cell"].rpartition("/c")[2])
    return (
        f"audits={asked['audit']} load={asked['load']} more_requests={asked['audit'] / max(asked['load'], 1):.1%} "
        f"more_time_in_flight={spent['audit'] / max(spent['load'], 1e-9):.1%} "
        f"more_wall={audits_s / max(wall - audits_s, 1e-9):.1%} of {wall - audits_s:.0f} s of visits"
    )


def measured(requests: int) -> str:
    """Both kinds of visits in turn, two arms each: the machine line."""
    reference = prepare_models().reference
    walls: dict[str, list[float]] = {"with": [], "without": []}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as temporary, mock(Path(temporary)) as url:
        for number, kind in enumerate(ROUNDS):
            plan = _plan(url, reference, requests, 0.05 if kind == "with" else 0.0)
            counts[kind], wall = _driven(plan, Path(temporary) / f"run-{number}")
            walls[kind].append(wall)
            print(f"{kind} audits: {counts[kind]} requests a visit, two visits in {wall:.1f} s", flush=True)
    more = sum(walls["with"]) / sum(walls["without"]) - 1
    return f"audit_requests_pct={100 * (counts['with'] / counts['without'] - 1):.1f} audit_wall_pct={100 * more:.1f}"


def _plan(url: str, reference: Path, requests: int, share: float) -> Plan:
    data: dict[str, Any] = {
        "model": "calibration",
        "tokenizer": str(reference),
        "endpoints": {arm: {"url": url} for arm in ("baseline", "candidate")},
        "profiles": [{"name": "chat-steady", "concurrency": [4], "request_count": requests}],
        "pairs": [2],
        "audit_share": share,
        "extra_inputs": {"calibration": SHAPE},
    }
    return make_plan(data, source="the benchmark", folder=Path.cwd())


def _driven(plan: Plan, folder: Path) -> tuple[int, float]:
    """Requests of a visit, warm-up left out, and the seconds of one pair's two visits."""
    store, cells = RunStore.create(folder), make_cells(plan)
    pipeline.prepare(plan, store)
    pipeline.make_workload(plan, cells, 1, store, silent)
    kinds = pq.read_table(folder / "pairs" / "01" / "workload.parquet", columns=["kind"])["kind"].to_pylist()
    began = time.monotonic()
    with Engines(plan, folder / "engines") as engines:
        pipeline.drive_pair(plan, cells, 1, store, engines, silent)
    return sum(kind != "warmup" for kind in kinds), time.monotonic() - began


if __name__ == "__main__":
    main()

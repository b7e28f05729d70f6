"""Where a run's wall time went: AIPerf's starts, its requests, the oracles, the rest. Reads a run directory only.

python scripts/gpu/where_time_went.py RUN
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path


def main(run: Path) -> None:
    """Print one line a kind of time; a resumed run's pause counts as `other`."""
    steps = list(_steps(run))
    if not steps:
        print(f"{run}: no finished step")
        return
    visits = [json.loads(path.read_bytes()) | {"folder": path.parent} for path in run.glob("pairs/*/*/visit.json")]
    inside = sum(visit["ended_at"] - visit["started_at"] for visit in visits)
    driving = sum(_driving_s(visit["folder"]) for visit in visits)
    oracles = sum(took for name, took in steps if name.startswith("oracles/"))
    whole = sum(took for _, took in steps)
    rows = {
        "requests in flight": driving,
        "AIPerf around them": inside - driving,
        "oracles": oracles,
        "other steps": whole - inside - oracles,
    }
    for name, seconds in rows.items():
        each, share = seconds / max(len(visits), 1), seconds / max(whole, 1)
        print(f"  {name:<20}{seconds:8.1f} s   {each:6.1f} s a visit   {share:5.0%}")
    print(f"  {'in all':<20}{whole:8.1f} s   {len(visits)} visits; the report comes on top")


def _steps(run: Path) -> Iterator[tuple[str, float]]:
    """Each finished step with the seconds since the one before it (whole seconds; the first has none)."""
    before: datetime | None = None
    for line in (run / "journal.jsonl").read_text().splitlines():
        if not line.strip():
            continue
        entry = json.loads(line)
        at = datetime.fromisoformat(entry["finished_at"].replace("Z", "+00:00"))
        yield entry["step"], (at - before).total_seconds() if before else 0.0
        before = at


def _driving_s(visit: Path) -> float:
    """From the first request's start to the last one's end, warm-up included."""
    export = visit / "aiperf" / "profile_export.jsonl"
    lines = export.read_text().splitlines() if export.is_file() else []
    found = [json.loads(line)["metadata"] for line in lines if line.strip()]
    if not found:
        return 0.0
    return (max(m["request_end_ns"] for m in found) - min(m["request_start_ns"] for m in found)) / 1e9


if __name__ == "__main__":
    main(Path(sys.argv[1]))

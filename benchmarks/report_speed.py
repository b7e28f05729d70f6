"""Time and size of a report of 40 cells with 6 pairs, on this machine, against the design's limits."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reports.html import write_report  # noqa: E402
from tests.made_runs import Made, make_run  # noqa: E402

LIMIT_S, LIMIT_KB = 10.0, 1_500


def main() -> int:
    """Print one line; exit code 1 when a limit is missed."""
    profiles = {f"profile-{place}": ("c1", "c4", "c8", "c32") for place in range(10)}
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run", Made(profiles=profiles, requests=60))
        wall, cpu = time.perf_counter(), time.process_time()
        report = write_report([run], Path(folder) / "report.html")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        kb = report.stat().st_size / 1000
    shares = f"share={wall / LIMIT_S:.2f} kb={kb:.0f} kb_share={kb / LIMIT_KB:.2f}"
    print(f"cells=40 seconds={wall:.2f} cpu_s={cpu:.2f} {shares}")
    return 0 if wall <= LIMIT_S and kb <= LIMIT_KB else 1


if __name__ == "__main__":
    sys.exit(main())

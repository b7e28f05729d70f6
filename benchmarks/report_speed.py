"""Time and size of a report with 6 pairs, on this machine: 200 cells, then 40 against the design's limits."""

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
    """Print a line a size; exit code 1 when the 40 cells miss a limit."""
    measure(profiles=40, loads=5, requests=12)
    seconds, kb = measure(profiles=10, loads=4, requests=60)
    print(f"share={seconds / LIMIT_S:.2f} kb_share={kb / LIMIT_KB:.2f}")
    return 0 if seconds <= LIMIT_S and kb <= LIMIT_KB else 1


def measure(*, profiles: int, loads: int, requests: int) -> tuple[float, float]:
    """Wall seconds and kB of one report of `profiles` times `loads` cells."""
    cells = tuple(f"c{2**place}" for place in range(loads))
    made = Made(profiles={f"profile-{place}": cells for place in range(profiles)}, requests=requests)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run", made)
        wall, cpu = time.perf_counter(), time.process_time()
        report = write_report([run], Path(folder) / "report.html")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        kb = report.stat().st_size / 1000
    print(f"cells={profiles * loads} seconds={wall:.2f} cpu_s={cpu:.2f} kb={kb:.0f}")
    return wall, kb


if __name__ == "__main__":
    sys.exit(main())

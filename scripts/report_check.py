"""Render every golden run and their comparison in Chromium, at two sizes and in two themes, and count what is wrong.

    python scripts/report_check.py [--keep FOLDER] [RUN ...]

The last line is `pages=... faults=... max_kb=... seconds=...`; the exit code is 1 when there is a fault. `--keep`
leaves the reports and a screenshot of every first screen in FOLDER.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reports.html import write_report  # noqa: E402
from tests.browser import CHROMIUM, SIZES, THEMES, axe_faults, chromium, faults, first_screen_faults, opened  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MAX_KB = 1_500
AXE = (("wide", "light"), ("phone", "dark"))  # both themes' contrast, both sizes' structure; it is slow
GOLDEN = ROOT / "tests" / "golden_runs"


def main() -> int:
    """Check all pages, print the faults, then the line that sums them up."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("runs", nargs="*", type=Path, help="run directories (default: the golden runs)")
    arguments.add_argument("--keep", type=Path, help="folder for the reports and their screenshots")
    chosen = arguments.parse_args()
    if CHROMIUM is None:
        print("There is no chromium on this machine; install it (Debian: apt-get install chromium).", file=sys.stderr)
        return 2
    runs = chosen.runs or sorted(path for path in GOLDEN.iterdir() if (path / "pairs").is_dir())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, chromium() as browser:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        reports = list(_reports(runs, folder))
        found = [fault for report in reports for fault in _check(browser, report, chosen.keep)]
        largest = max(report.stat().st_size for report in reports) / 1000
    for fault in found:
        print(fault)
    pages = len(reports) * len(SIZES) * len(THEMES)
    print(f"pages={pages} faults={len(found)} max_kb={largest:.0f} seconds={time.monotonic() - began:.1f}")
    return 1 if found else 0


def _reports(runs: list[Path], folder: Path) -> Iterator[Path]:
    for run in runs:
        yield write_report([run], folder / f"{run.name}.html")
    if len(runs) > 1:
        yield write_report(runs, folder / "comparison.html")


def _check(browser: Browser, report: Path, keep: Path | None) -> Iterator[str]:
    if report.stat().st_size > MAX_KB * 1000:
        yield f"{report.name}: {report.stat().st_size / 1000:.0f} kB, at most {MAX_KB} are allowed"
    for size in SIZES:
        for theme in THEMES:
            with opened(browser, report, size, theme) as seen:
                found = faults(seen) + first_screen_faults(seen, (".verdict, .compared, .swept",))
                if keep:
                    seen.page.screenshot(path=keep / f"{report.stem}-{size}-{theme}.png")
                found += axe_faults(seen) if (size, theme) in AXE else []
            yield from (f"{report.name} {size} {theme}: {fault}" for fault in found)


if __name__ == "__main__":
    sys.exit(main())

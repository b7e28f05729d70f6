"""Write the example report that the README shows, and the pictures of docs/, from the golden runs.

    python scripts/report_example.py

docs/example/report.html compares the demo's three candidates, docs/example/fast-but-wrong.html is one of their pages.
The pictures (first screens) need Chromium.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reports.html import write_report  # noqa: E402
from tests.browser import CHROMIUM, chromium, opened  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GOLDEN, OUT, IMAGES = ROOT / "tests" / "golden_runs", ROOT / "docs" / "example", ROOT / "docs" / "images"
DEMO = ("honest", "fast-but-wrong", "letter-a")
PUBLISHED = {"report": DEMO, "fast-but-wrong": ("fast-but-wrong",)}
PICTURES = {
    "report-comparison": (DEMO, "wide", "light"),
    "report-fail": (("fast-but-wrong",), "wide", "light"),
    "report-phone-dark": (("fast-but-wrong",), "phone", "dark"),
    "report-pass": (("pass",), "wide", "light"),
    "report-inconclusive": (("same-engine",), "wide", "light"),
    "report-invalid": (("invalid",), "wide", "light"),
    "report-sweep": (("sweep",), "wide", "light"),
    "report-four": (("pass", *DEMO), "wide", "dark"),
}


def main() -> int:
    """Write pages, then pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, runs in PUBLISHED.items():
        write_report([GOLDEN / run for run in runs], OUT / f"{name}.html")
    if CHROMIUM is None:
        print("There is no chromium on this machine, so the pictures stay as they are.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, (runs, size, theme) in PICTURES.items():
            page = write_report([GOLDEN / run for run in runs], Path(folder) / f"{name}.html")
            _picture(browser, page, size, theme, IMAGES / f"{name}.png")
    return 0


def _picture(browser: Browser, page: Path, size: str, theme: str, out: Path) -> None:
    with opened(browser, page, size, theme) as seen:
        shot = Image.open(io.BytesIO(seen.page.screenshot()))
    # k-means: without it a state's colour that covers few pixels is taken for its neighbour's.
    shot.convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out.relative_to(ROOT)}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())

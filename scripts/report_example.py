"""Write the example report that the README shows, and its pictures, from the golden runs of `enginegate demo`.

    python scripts/report_example.py

docs/example/report.html compares the demo's three candidates, docs/example/fast-but-wrong.html is one of their pages.
The pictures need Chromium.
"""

from __future__ import annotations

import io
import sys
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
RUNS = ("honest", "fast-but-wrong", "letter-a")
PICTURES = {
    "report-comparison": ("report.html", "wide", "light"),
    "report-fail": ("fast-but-wrong.html", "wide", "light"),
    "report-phone-dark": ("fast-but-wrong.html", "phone", "dark"),
}


def main() -> int:
    """Write pages, then pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    write_report([GOLDEN / name for name in RUNS], OUT / "report.html")
    write_report([GOLDEN / "fast-but-wrong"], OUT / "fast-but-wrong.html")
    if CHROMIUM is None:
        print("There is no chromium on this machine, so the pictures stay as they are.", file=sys.stderr)
        return 2
    with chromium() as browser:
        for name, (page, size, theme) in PICTURES.items():
            _picture(browser, OUT / page, size, theme, IMAGES / f"{name}.png")
    return 0


def _picture(browser: Browser, page: Path, size: str, theme: str, out: Path) -> None:
    with opened(browser, page, size, theme) as seen:
        shot = Image.open(io.BytesIO(seen.page.screenshot()))
    # k-means: without it a state's colour that covers few pixels is taken for its neighbour's.
    shot.convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out.relative_to(ROOT)}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())

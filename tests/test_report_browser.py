"""Reports in a real browser: what a reader sees, and what hostile text cannot do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reports.html import write_report
from tests.browser import CHROMIUM, SIZES, THEMES, axe_faults, chromium, faults, first_screen_faults, opened
from tests.made_runs import Made, make_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
]

GOLDEN = sorted(path.parent for path in (Path(__file__).parent / "golden_runs").glob("*/plan.yaml"))
ARMS, FLIPPED = ("baseline", "candidate"), ("extracted", "answer", "fate")
FIRST_SCREEN = (".verdict", ".halves", ".heat")
HOSTILE = (
    "</pre></main><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=\"document.title='owned'\"><a href='javascript:document.title=1'>x</a>"
    "<style>body{display:none}</style>"
    "<link rel=stylesheet href='http://127.0.0.1:9/x.css'><iframe src='http://127.0.0.1:9/'></iframe>"
    "{{ 7*7 }}{% raw %}\x1b[31mred\x1b]0;title\x07\x00\u202egnp.exe\u2066\u200b\U000e0041" + "z" + "\u0301" * 400
    + "W" * 20_000 + "\n" * 5_000 + " end"
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    run = make_run(folder / "run", Made(speedup={"ttft": 1.4, "tpot": 1.5, "chat-steady:ttft": 1.1}, requests=30))
    return write_report([run], folder / "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose engine, prompts, names and verdict carry hostile text wherever text can stand."""
    folder = tmp_path_factory.mktemp("hostile")
    run = make_run(folder / "run", Made(text=HOSTILE, pairs=2, planned=(2,), mode="quick", requests=30))
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["sentence"] = verdict["next_step"] = HOSTILE
    for check in verdict["checks"]:
        check["reason"] = check["hint"] = HOSTILE
    (run / "verdict.json").write_text(json.dumps(verdict))
    (run / "engines").mkdir(exist_ok=True)
    engine = {"urls": [HOSTILE], "replicas": [{"server": HOSTILE, "models": [{"id": HOSTILE}]}]}
    (run / "engines" / "candidate.json").write_text(json.dumps(engine))
    (run / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE, "cpu": {"model": HOSTILE, "count": 2}}))
    (run / "calibration.json").write_text(json.dumps({"cells": {HOSTILE: {HOSTILE: {"requests": HOSTILE}}}}))
    score = {"score": {"value": 50.0, "unit": HOSTILE, "n": 9}, f"score.{HOSTILE}": {"value": 50.0, "n": 9}}
    (run / "oracles" / "candidate" / "tasks.json").write_text(json.dumps({"status": "scored", "metrics": score}))
    texts = ("item", "task", "question", "target", *(f"{arm}_{name}" for arm in ARMS for name in FLIPPED))
    flips = [dict.fromkeys(texts, HOSTILE) | {"direction": way, "pair": 1, "line": 0} for way in ("lost", HOSTILE)]
    pq.write_table(pa.Table.from_pylist(flips), run / "oracles" / "candidate" / "flips.parquet")
    return write_report([run], folder / "report.html")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_a_report_has_no_fault(browser: Browser, report: Path, size: str, theme: str) -> None:
    with opened(browser, report, size, theme) as seen:
        assert faults(seen) == []
        assert first_screen_faults(seen, FIRST_SCREEN if size == "wide" else (".verdict", ".halves", ".phone")) == []


@pytest.mark.parametrize(("size", "theme"), [("wide", "light"), ("phone", "dark")])
def test_axe_finds_nothing_serious(browser: Browser, report: Path, size: str, theme: str) -> None:
    pytest.importorskip("axe_playwright_python")
    with opened(browser, report, size, theme) as seen:
        assert axe_faults(seen) == []


STATES = {
    "one cell": Made(profiles={"decode-easy": ("c1",)}, requests=20),
    "invalid": Made(profiles={"decode-easy": ("c1", "c8")}, invalid=("same-cache",), requests=20),
    "no oracle": Made(profiles={"decode-easy": ("c1",)}, oracle=False, requests=20),
    "quick": Made(profiles={"decode-easy": ("c1",)}, pairs=2, planned=(2,), mode="quick", requests=20),
    "200 cells": Made(
        profiles={f"profile-{place:02d}": tuple(f"c{2**k}" for k in range(5)) for place in range(40)},
        pairs=2, planned=(2,), mode="quick", requests=2, oracle=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_each_state_fits_a_screen_and_a_phone(browser: Browser, state: str, tmp_path: Path) -> None:
    page = write_report([make_run(tmp_path / "run", STATES[state])], tmp_path / "report.html")
    for size in SIZES:
        with opened(browser, page, size) as seen:
            assert faults(seen) == []
            assert first_screen_faults(seen, FIRST_SCREEN[:2] if size == "phone" else FIRST_SCREEN) == []


@pytest.mark.parametrize("size", SIZES)
def test_the_comparison_of_real_runs_has_no_fault(browser: Browser, tmp_path: Path, size: str) -> None:
    with opened(browser, write_report(GOLDEN, tmp_path / "report.html"), size, "dark") as seen:
        assert faults(seen) == []
        assert first_screen_faults(seen, (".compared", ".heat")) == []


@pytest.mark.parametrize("run", GOLDEN, ids=lambda run: run.name)
def test_a_real_run_has_no_fault(browser: Browser, run: Path, tmp_path: Path) -> None:
    report = write_report([run], tmp_path / "report.html")
    for size, theme in (("wide", "dark"), ("phone", "light")):
        with opened(browser, report, size, theme) as seen:
            assert faults(seen) == []


@pytest.mark.parametrize("size", SIZES)
def test_hostile_text_stays_in_its_box(browser: Browser, hostile: Path, size: str) -> None:
    with opened(browser, hostile, size) as seen:
        assert faults(seen) == []
        if size == "wide":
            assert first_screen_faults(seen, FIRST_SCREEN[:2]) == []
        page = seen.page
        assert page.title().startswith(("INCONCLUSIVE", "PASS", "FAIL", "INVALID"))
        assert page.locator("script").count() == 1
        assert page.locator("img, iframe, main style, main link, [onerror], [onload]").count() == 0
        assert page.evaluate("document.documentElement.outerHTML").count("{{ 7*7 }}") > 0
        boxes = page.locator(".foreign")
        assert boxes.count() > 0
        for box in boxes.all():
            assert box.bounding_box()["height"] < 400  # type: ignore[index]
        shown = boxes.first.inner_text()
        assert "⟨U+001B⟩[31m" in shown and "⟨U+202E⟩" in shown and "⟨U+0000⟩" in shown


def test_the_page_is_whole_without_script(browser: Browser, report: Path) -> None:
    with opened(browser, report, script=False) as seen:
        assert seen.page.locator(".verdict .word").inner_text().strip().endswith("FAIL")
        assert seen.page.locator("figure.chart svg").count() > 8
        assert seen.page.locator(".tools").first.is_hidden()
        seen.page.locator("summary").first.click()
        assert seen.page.locator("#checks-checks").is_visible()


def test_every_number_has_its_definition_one_click_away(browser: Browser, report: Path) -> None:
    with opened(browser, report) as seen:
        seen.page.locator(".heat thead button.ask").first.click()
        shown = seen.page.locator("[popover]:popover-open")
        assert shown.count() == 1
        assert "Time to first token" in shown.inner_text()
        assert "Formula" in shown.inner_text()


def test_filter_sort_and_theme(browser: Browser, report: Path) -> None:
    with opened(browser, report) as seen:
        page = seen.page
        page.locator("details.folded summary").first.click()
        rows = page.locator("#checks-checks tbody tr:visible")
        everything = rows.count()
        page.locator("[data-for='checks-checks'] select").select_option("FAIL")
        assert 0 < rows.count() < everything
        page.locator("[data-for='checks-checks'] select").select_option("")
        head = page.locator("#checks-checks th", has_text="Observed")
        head.locator("button.sort").click()
        values = [float(v) for v in page.locator("#checks-checks tbody tr td:nth-child(3)").evaluate_all(
            "cells => cells.map(c => c.dataset.value).filter(v => v !== '')"
        )]  # fmt: skip
        assert values == sorted(values)
        page.locator("button.theme").click()
        page.locator("button.theme").click()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert seen.said == []


def test_a_heatmap_box_leads_to_its_row(browser: Browser, report: Path) -> None:
    with opened(browser, report) as seen:
        seen.page.locator(".heat a.box").first.click()
        assert seen.page.locator("tr:target").is_visible()


def test_it_prints_with_every_table_open(browser: Browser, report: Path) -> None:
    with opened(browser, report) as seen:
        seen.page.emulate_media(media="print")
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.locator("#checks-checks").is_visible()
        assert seen.page.locator("header.top nav").is_hidden()


def test_the_fault_finder_finds_faults(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<html><body><h1>a</h1><h3>b</h3><p style='color:#bbb'>pale</p><img src='data:,'><button></button><input>"
        "<table><tr><th>x</th></tr></table><svg></svg><a href='#nowhere'>x</a><i id=a></i><i id=a></i>"
        "<div class=heat><span class=box style='display:block;width:30px'><b>overlong</b></span></div>"
        "<div style='width:4000px'>wide</div><script>fetch('http://127.0.0.1:9/x')</script></body></html>"
    )
    with opened(browser, page) as seen:
        seen.page.wait_for_timeout(100)
        found = " ".join(faults(seen))
        if find_spec("axe_playwright_python"):
            assert {"axe image-alt", "axe button-name", "axe label"} <= {one.split(":")[0] for one in axe_faults(seen)}
    for expected in (
        "contrast 1.9", "jumps from h1 to h3", "no alt", "no accessible name", "no label", "no caption", "no scope",
        "no title", "leads nowhere", "used twice", "sideways", "asks for", "out of its box", "names no language",
        "no main",
    ):  # fmt: skip
        assert expected in found

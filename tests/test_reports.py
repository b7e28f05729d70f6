"""What every rendering of a run says, and what it refuses to say."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reports.clean_text import clean
from reports.definitions import as_markdown
from reports.html import write_report
from reports.junit import junit_xml
from reports.markdown import summary
from reports.run_data import read_run
from tests.made_runs import Made, make_run

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(speedup={"ttft": 1.4, "tpot": 1.5, "chat-steady:ttft": 1.1})
    return make_run(tmp_path_factory.mktemp("runs") / "failing", made)


def test_the_page_leads_with_the_verdict_and_its_limiting_cell(failing: Path, tmp_path: Path) -> None:
    html = write_report([failing], tmp_path / "report.html").read_text(encoding="utf-8")
    first_screen = html[: html.index('id="cells"')]
    for expected in (
        "FAIL",
        "ttft.p50@chat-steady/",
        "Faster: FAIL",
        "Honest: PASS",
        "Fit to be judged?",
        "SmolLM2-135M",
    ):
        assert expected in first_screen


def test_summary_and_junit_say_what_verdict_json_says(failing: Path) -> None:
    verdict = json.loads((failing / "verdict.json").read_text())
    text = summary(failing)
    assert text.startswith("## ✕ FAIL")
    cases = ElementTree.fromstring(junit_xml(failing)).findall(".//testcase")
    by_name = {case.get("name"): case for case in cases}
    assert by_name.keys() == {check["check"] for check in verdict["checks"]} | {"verdict"}
    for check in verdict["checks"]:
        assert (len(by_name[check["check"]]) == 0) == (check["status"] == "PASS")


def test_a_pass_that_its_checks_do_not_bear_out_is_invalid(failing: Path, tmp_path: Path) -> None:
    data = json.loads((failing / "verdict.json").read_text()) | {"status": "PASS"}
    (tmp_path / "verdict.json").write_text(json.dumps(data))
    run = read_run(tmp_path)
    assert run.status == "INVALID"
    assert "contradicts itself" in summary(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 2, "status": "PASS"}', '{"status": NaN}'])
def test_a_verdict_that_cannot_be_read_is_invalid(content: str, tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text(content)
    assert read_run(tmp_path).status == "INVALID"
    assert b'type="INVALID"' in junit_xml(tmp_path)


def test_no_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds neither"):
        read_run(tmp_path)


def test_active_characters_are_shown_not_obeyed() -> None:
    assert clean("a\x1b[31mb\x00c\u202ed\ud800\ufffe") == "a␛[31mb␀c⟨U+202E⟩d⟨U+D800⟩⟨U+FFFE⟩"
    assert len(clean("x" * 10_000_000)) < 2_100


def test_the_metrics_page_is_what_the_report_shows() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == as_markdown()

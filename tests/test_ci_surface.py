"""What a CI shows of a verdict: JUnit and GitHub annotations."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.gate import decide
from harness.run_store import write_json
from harness.verdict import Status, Verdict
from reports.annotations import github_annotations
from reports.junit import junit_xml
from tests.gate_runs import gate_run, oracle
from tests.made_runs import Made, make_run

NOTE = "goodput >= 1.20x is not judged anywhere: profile chat does not call goodput gateable in chat/c1."


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(profiles={"chat": ("c1",)}, pairs=2, planned=(2,), requests=4, oracle=False)
    return make_run(tmp_path_factory.mktemp("run"), made)


def judged(root: Path, speedup: float, **changes: object) -> Verdict:
    verdict = decide(gate_run(speedup, notes=(NOTE,), **changes), power_draws=0)
    write_json(root / "verdict.json", verdict)
    return verdict


def cases(root: Path) -> dict[str, list[str]]:
    found = ElementTree.fromstring(junit_xml(root)).findall(".//testcase")
    return {str(case.get("name")): [child.tag for child in case] for case in found}


def test_a_test_case_a_check(root: Path) -> None:
    tags = {Status.PASS: [], Status.FAIL: ["failure"], Status.INVALID: ["error"], Status.INCONCLUSIVE: ["skipped"]}
    seen = set()
    for verdict in (judged(root, 1.5), judged(root, 1.0), judged(root, 1.22), judged(root, 1.5, token_margin=None)):
        write_json(root / "verdict.json", verdict)
        found = cases(root)
        assert {c.check: found[c.check] for c in verdict.checks} == {c.check: tags[c.status] for c in verdict.checks}
        assert found["goodput >= 1.20x"] == ["skipped"], "what no cell could gate is shown, and is no pass"
        assert (found["verdict"] == []) == (verdict.status is Status.PASS), "only a PASS makes the job green"
        seen |= {c.status for c in verdict.checks}
    assert seen == set(Status)


def test_the_counts_add_up(root: Path) -> None:
    verdict = judged(root, 1.22)
    suites = ElementTree.fromstring(junit_xml(root))
    skipped = sum(c.status is Status.INCONCLUSIVE for c in verdict.checks) + 1
    assert int(suites.get("skipped", "0")) == skipped
    assert int(suites.get("tests", "0")) == len(verdict.checks) + 2


def test_the_worst_five_are_annotated(root: Path) -> None:
    verdict = judged(root, 1.0)
    lines = github_annotations(root)
    assert len(lines) == 5
    assert lines[0].startswith(f"::error title=FAIL {verdict.failed_first[0]}::")
    judged(root, 1.5)
    assert github_annotations(root) == []


def test_what_an_engine_said_begins_no_command(root: Path) -> None:
    broken = oracle("candidate", "loops")
    finding = broken.findings[0].model_copy(update={"sentence": "a\n::set-output name=x::%0Ay\r::error::"})
    bad = broken.model_copy(update={"findings": (finding, broken.findings[1])})
    judged(root, 1.5, oracles=(oracle("baseline"), bad))
    (line,) = github_annotations(root)
    assert "\n" not in line
    assert "\r" not in line
    assert "%250A" in line
    assert line.startswith("::error title=FAIL protocol.loops::a%0A")

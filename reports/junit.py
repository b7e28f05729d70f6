"""junit.xml: one test case a check, so that any CI shows which ones stand in the way."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from reports.page import measured_line
from reports.run_data import Run, read_run
from reports.verdict_data import Check

# JUnit knows failed, in error and skipped. An undecided check is skipped: it was not found wanting. The run as a whole
# is a test case too, and an INCONCLUSIVE run fails there: a CI must not read it as passed.
_OUTCOME = {"FAIL": "failure", "INCONCLUSIVE": "skipped", "INVALID": "error"}
_WHOLE = _OUTCOME | {"INCONCLUSIVE": "failure"}
_NOT_JUDGED = " is not judged "  # of a verdict's notes, those on criteria that no cell could gate


def junit_xml(run_dir: Path) -> bytes:
    """The run's checks as JUnit XML (UTF-8). A run without a verdict is one skipped test case."""
    run = read_run(run_dir)
    root = Element("testsuites", name="enginegate")
    families: dict[str, list[Check]] = {}
    for check in run.checks:
        families.setdefault(check.family or "other", []).append(check)
    for family, checks in families.items():
        _suite(root, family, checks)
    _not_gateable(root, run)
    _whole(root, run)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True))


def _suite(root: Element, family: str, checks: list[Check]) -> None:
    suite = SubElement(root, "testsuite", name=family, tests=str(len(checks)), skipped="0")
    for check in checks:
        case = SubElement(suite, "testcase", classname=f"enginegate.{family}.{check.cell or 'run'}", name=check.check)
        if outcome := _OUTCOME.get(check.status):
            fault = SubElement(case, outcome, type=check.status, message=f"{check.status}: {check.reason}")
            fault.text = "\n".join(filter(None, [check.criterion, check.reason, check.hint, *check.evidence]))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))


def _not_gateable(root: Element, run: Run) -> None:
    """A skipped test case for each criterion that some cell could not gate."""
    notes = [note for note in run.verdict.notes if _NOT_JUDGED in note] if run.verdict else []
    if not notes:
        return
    suite = SubElement(root, "testsuite", name="not gateable", tests=str(len(notes)), failures="0", errors="0")
    suite.set("skipped", str(len(notes)))
    for note in notes:
        case = SubElement(suite, "testcase", classname="enginegate.not-gateable", name=note.partition(_NOT_JUDGED)[0])
        SubElement(case, "skipped", message=note)


def _whole(root: Element, run: Run) -> None:
    """The verdict itself: a PASS of every check is not yet a PASS of the run (a quick run, a missing oracle)."""
    suite = SubElement(root, "testsuite", name="verdict", tests="1", failures="0", errors="0", skipped="0")
    case = SubElement(suite, "testcase", classname="enginegate", name="verdict")
    if run.verdict is None:
        unfinished = run.status == "UNFINISHED"
        tag, attribute = ("error", "errors") if unfinished else ("skipped", "skipped")
        SubElement(case, tag, message=measured_line(run))
        suite.set(attribute, "1")
    elif outcome := _WHOLE.get(run.status):
        SubElement(case, outcome, type=run.status, message=f"{run.status}: {run.verdict.sentence}")
        suite.set("errors" if outcome == "error" else "failures", "1")
    elif run.verdict.mode == "quick":
        SubElement(case, "failure", type="PROVISIONAL", message="A quick run is provisional and cannot satisfy a gate.")
        suite.set("failures", "1")

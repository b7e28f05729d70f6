"""A verdict as GitHub workflow commands: the worst checks beside the job, without opening a file."""

from __future__ import annotations

from pathlib import Path

from reports.run_data import read_run
from reports.verdict_data import Check

MOST = 5
LEVEL = {"FAIL": "error", "INVALID": "error", "INCONCLUSIVE": "warning"}


def github_annotations(run_dir: Path) -> list[str]:
    """One workflow command for each of the worst five checks that stand in the way; empty when none does."""
    run = read_run(run_dir)
    checks = {check.check: check for check in run.checks}
    first = [checks[name] for name in run.verdict.failed_first if name in checks] if run.verdict else []
    return [_command(check) for check in first[:MOST] if check.status in LEVEL]


def _command(check: Check) -> str:
    title = f"{check.status} {check.check}"
    return f"::{LEVEL[check.status]} title={_escape(title, property_=True)}::{_escape(check.reason)}"


def _escape(text: str, *, property_: bool = False) -> str:
    """As the runner unescapes it: a line break in a reason must not begin another command."""
    text = text[:2000].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text

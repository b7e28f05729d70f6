"""summary.md: the report's first screen for a CI step summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from reports import compare, wording
from reports.heatmap import Heatmap, heatmap
from reports.page import checklist, halves, headline, identity, limiting, measured_line, next_step
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.verdict_data import Check

MAX_BYTES = 900_000  # a step summary is refused at 1 MiB
MAX_OPEN = 20
_ACTIVE = re.compile(r"([\\`*_\[\]<>#|~@&$])")


def summary(run_dir: Path) -> str:
    """The verdict, the heatmap, what stands in the way and the validity checklist, as GitHub Markdown."""
    run = read_run(run_dir)
    return _bounded([*_verdict(run), *_heatmap(run), *_open_checks(run), *_validity(run), *_identity(run)])


def comparison(run_dirs: Sequence[Path]) -> str:
    """The leaderboard of several runs, and why they may not be comparable, as GitHub Markdown."""
    runs = compare.ranked([read_run(run_dir) for run_dir in run_dirs])
    head, told = compare.lead(runs)
    board = compare.leaderboard(runs)
    lines = [f"## {escape(head)}", "", escape(told), "", *[f"> {escape(one)}\n" for one in compare.warnings(runs)]]
    lines += ["| Run | " + " | ".join(name for _, name in board.columns) + " |"]
    lines.append("| --- |" + " --- |" * len(board.columns))
    for row in board.rows:
        boxes = [f"{box.glyph} {escape(box.text)} {escape(box.below)}".strip() for box in row.boxes]
        lines.append(f"| {escape(row.profile)} | " + " | ".join(boxes) + " |")
    return _bounded([*lines, "", "Each number is the run's worst cell, which is named beside it."])


def _bounded(parts: Sequence[str]) -> str:
    text = "\n".join(parts) + "\n"
    while len(text.encode()) > MAX_BYTES:
        text = text[: len(text) * 3 // 4].rpartition("\n")[0] + "\n\n_Cut: the full report is report.html._\n"
    return text


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no link, no mention, one line."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split())).replace("://", ":\u200b//")


def _verdict(run: Run) -> list[str]:
    if run.verdict is None:
        return [f"## {wording.GLYPHS[run.status]} {wording.UNJUDGED[run.status]}", "", escape(measured_line(run)), ""]
    provisional = " · PROVISIONAL (quick run)" if run.verdict.mode == "quick" else ""
    lines = [f"## {wording.GLYPHS[run.status]} {run.status}{provisional}", "", escape(run.verdict.sentence), ""]
    lines += ["| | | |", "| --- | --- | --- |"]
    for half in halves(run):
        text = headline(half.limiting) if half.limiting else half.sentence
        lines.append(f"| **{half.title}** | {half.glyph} {half.state}, {half.counts} | {escape(text)} |")
    worst = limiting(run)
    lines += ["", f"Limiting check: {escape(headline(worst))}" if worst else ""]
    if then := next_step(run):
        lines += ["", f"Next: {escape(then)}"]
    return [*lines, *[f"\n> {escape(problem)}" for problem in run.problems], ""]


def _heatmap(run: Run) -> list[str]:
    drawn: Heatmap = heatmap(run, PairSeries(run), {}, fold=False, limit=300)
    if not drawn.rows or run.verdict is None:
        return []
    lines = ["### Every cell", "", "| Cell | " + " | ".join(name for _, name in drawn.columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(drawn.columns))
    for row in drawn.rows:
        boxes = [f"{box.glyph or '·'} {box.text}" if box.state != "none" else box.text for box in row.boxes[:-1]]
        lines.append(f"| {escape(row.profile)}/{escape(row.load)} | " + " | ".join(boxes) + " |")
    signs = " · ".join(f"{wording.GLYPHS[state]} {state}" for state in ("PASS", "FAIL", "INCONCLUSIVE", "INVALID"))
    return [*lines, "", f"{signs} · a dot: measured, not gated", ""]


def _open_checks(run: Run) -> list[str]:
    by_id = {check.check: check for check in run.checks}
    order = [name for name in (run.verdict.failed_first if run.verdict else ()) if name in by_id]
    order += [check.check for check in run.checks if check.status != "PASS" and check.check not in order]
    if not order:
        return []
    lines = [f"### In the way ({len(order)})", ""]
    lines += [_one(by_id[name]) for name in order[:MAX_OPEN]]
    return [*lines, f"- and {len(order) - MAX_OPEN} more in report.html" if len(order) > MAX_OPEN else "", ""]


def _one(check: Check) -> str:
    hint = f" {escape(check.hint)}" if check.hint else ""
    return f"- {wording.GLYPHS[check.status]} **{escape(check.check)}**: {escape(check.reason)}{hint}"


def _validity(run: Run) -> list[str]:
    items = checklist(run.of_family("validity"))
    if not items:
        return []
    lines = []
    for item in items:
        scope = f" ({item.scope})" if item.scope else ""
        lines.append(f"- {item.glyph} {escape(item.name)}{scope}: {escape(item.sentence)}")
    return ["### Validity", "", *lines, ""]


def _identity(run: Run) -> list[str]:
    return ["### What was compared", "", *[f"- {name}: {escape(value)}" for name, value in identity(run)]]

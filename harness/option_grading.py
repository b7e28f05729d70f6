"""Tasks that compare given options, grading half: oracles/<arm>/options.*, where the reference has proved the rows.

They are asked apart from the timed stream, so an engine could know them. That is why they are judged apart too: they
can refuse an engine, and can never make up for a timed answer that was wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.accuracy import TaskScores
from harness.measurement import Role
from harness.option_tasks import ITEMS, OPTIONS, encoder, option_specs
from harness.plan import Plan
from harness.progress import Progress
from harness.run_store import read_json, sha256, write_json
from harness.speed import SERVED_SHARE
from harness.task_grading import ROLES, scores_of
from oracles.task_grades import write_grades
from oracles.task_model import TaskError
from oracles.task_options import grade_options
from oracles.task_summary import flips, read_grades, summarise, unscored, write_flips
from oracles.tasks import read_items


def grade_option_tasks(plan: Plan, root: Path, progress: Progress) -> None:
    """Write oracles/<arm>/options.*; `unscored` with a sentence where an arm's rows are not proved."""
    if not plan.option_tasks:
        return
    out = root / "oracles"
    try:
        for role in ROLES:
            _prove(root, role)
        items = read_items(root / ITEMS)
        for role in ROLES:
            progress(f"grading the {role}'s options")
            said = pq.read_table(root / "options" / role / "rows.parquet").to_pylist()
            if role == "baseline":
                _answered(said)
            write_grades(grade_options(option_specs(plan), items, said, encoder(root)), out / role / "options.parquet")
        arms = read_grades([out / role / "options.parquet" for role in ROLES])
    except TaskError as error:
        for role in ROLES:
            write_json(out / role / "options.json", unscored(role, str(error), oracle="options"))
        return
    inputs = {name: sha256(root / name) for name in (ITEMS, OPTIONS)}
    for role, mine, other in zip(ROLES, arms, reversed(arms), strict=True):
        write_json(out / role / "options.json", summarise(role, mine, other, inputs, oracle="options"))
    write_flips(flips(*arms), out / "candidate" / "option_flips.parquet")


def option_scores(root: Path) -> TaskScores | None:
    """Paired scores out of oracles/*/options.parquet; None when no option was graded."""
    return scores_of([root / "oracles" / role / "options.parquet" for role in ROLES])


def _answered(said: list[dict[str, Any]]) -> None:
    """TaskError when the baseline left more unanswered than a candidate may: its failures must help nobody."""
    problems = [row["problem"] for row in said if row["problem"]]
    if len(problems) > (1 - SERVED_SHARE) * len(said):
        raise TaskError(
            f"The baseline gave no log-probabilities for {len(problems)} of {len(said)} options, the first because: "
            f"{problems[0]}"
        )


def _prove(root: Path, role: Role) -> None:
    """TaskError unless the logit oracle set this arm's prompt log-probabilities against the reference's."""
    path = root / "oracles" / role / "logits.json"
    found: dict[str, Any] = read_json(path) if path.is_file() else {"reason": "nothing was asked", "notes": ()}
    if not any(name.endswith("@prefill") for name in found.get("metrics", ())):
        told = " ".join([found.get("reason", ""), *(n for n in found["notes"] if n.startswith("prefill"))]).strip()
        raise TaskError(
            f"The {role}'s prompt log-probabilities were not proved against the reference, so its options are not "
            f"scored. {told}"
        )

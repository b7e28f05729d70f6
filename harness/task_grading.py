"""The timed answers to task items, back through lm-eval: oracles/<arm>/tasks.parquet, tasks.json and flips.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.accuracy import TaskScores
from harness.errors import InvalidRun
from harness.measurement import Role
from harness.plan import Plan
from harness.progress import Progress
from harness.run_store import sha256, write_json
from harness.task_stream import FOLDER, ITEMS, PACK, is_chat, specs_of
from oracles.task_grades import grade, write_grades
from oracles.task_model import TaskError
from oracles.task_summary import flips, paired, read_grades, summarise, unscored, write_flips
from oracles.tasks import read_items

ROLES: tuple[Role, Role] = ("baseline", "candidate")
CAME = (
    "line", "cell", "item", "status", "finish_reason", "output_tokens",
    "usage_completion_tokens", "retokenised_tokens", "text", "reasoning",
)  # fmt: skip


def grade_tasks(plan: Plan, pairs: int, root: Path, progress: Progress) -> None:
    """Grade both arms' answers of the first `pairs` pairs; what cannot be graded is `unscored` with its sentence."""
    if not plan.timed_tasks:
        return
    out = root / "oracles"
    folder = root / FOLDER
    try:
        items = read_items(folder / ITEMS)
        for role in ROLES:
            progress(f"grading the {role}'s task answers")
            rows = _answers(root, pairs, role)
            graded = grade(specs_of(plan), items, rows, chat=is_chat(plan), pack=folder / PACK)
            write_grades(graded, out / role / "tasks.parquet")
        arms = read_grades([out / role / "tasks.parquet" for role in ROLES])
    except TaskError as error:
        for role in ROLES:
            write_json(out / role / "tasks.json", unscored(role, str(error)))
        return
    inputs = {f"{FOLDER}/{ITEMS}": sha256(folder / ITEMS)}
    known = out / "reference" / "tasks.parquet"
    (reference,) = read_grades([known]) if known.is_file() else (None,)
    for role, mine, other in zip(ROLES, arms, reversed(arms), strict=True):
        write_json(out / role / "tasks.json", summarise(role, mine, other, inputs, reference=reference))
    write_flips(flips(*arms), out / "candidate" / "flips.parquet")


def task_scores(root: Path) -> TaskScores | None:
    """Paired scores out of oracles/*/tasks.parquet; None when no task was graded."""
    return scores_of([root / "oracles" / role / "tasks.parquet" for role in ROLES])


def scores_of(paths: Sequence[Path]) -> TaskScores | None:
    """Paired scores out of the baseline's and the candidate's grades; None when one is not there.

    Raises InvalidRun when the two arms were not asked the same items.
    """
    if not all(path.is_file() for path in paths):
        return None
    table = paired(*read_grades(paths))
    if table[["baseline", "candidate"]].isna().any(axis=None):
        raise InvalidRun("The two arms' graded task items are not the same ones; the run's files do not agree.")
    return TaskScores(
        item=table["item"].to_numpy(dtype=np.str_),
        cluster=table["cluster"].to_numpy(dtype=np.str_),
        baseline=table["baseline"].to_numpy(dtype=float),
        candidate=table["candidate"].to_numpy(dtype=float),
    )


def _answers(root: Path, pairs: int, role: Role) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for pair in range(1, pairs + 1):
        path = root / "pairs" / f"{pair:02d}" / role / "requests.parquet"
        table = pq.read_table(path, columns=[*CAME, "kind"])
        tasks = table.filter(pc.equal(table["kind"], "task")).drop_columns(["kind"])
        rows += tasks.append_column("pair", pa.array([pair] * len(tasks), pa.int32())).to_pylist()
    return rows

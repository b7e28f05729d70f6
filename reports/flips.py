"""Task answers on which the arms differ: how many a task, and a few side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from reports import wording
from reports.clean_text import clean
from reports.examples import MAX_CHARS, Example, Gallery, Piece, Side, Tokens
from reports.run_data import Run, read_table
from reports.table import Column, Item, Table, TableRow, bounds, num, text
from reports.values import as_dict, as_number

MOST = 5
_SPLITS = ("public", "sealed")
_COLUMNS = (
    Column("Task"),
    Column("Candidate", "number", "task_score"),
    Column("95 % interval", "interval", "interval_95"),
    Column("Baseline", "number", "task_score"),
    Column("95 % interval, baseline", "interval", "interval_95"),
    Column("Difference", "number", "tasks"),
    Column("95 % interval, difference", "interval", "interval_95"),
    Column("Lost", "number", "flip_lost"),
    Column("Gained", "number", "flip_gained"),
    Column("Items", "number", "n"),
)
_REFERENCE = Column("Reference", "number", "reference_score")


def read_flips(run: Run) -> list[dict[str, Any]]:
    """Rows of flips.parquet, the lost answers first; empty when no task was asked."""
    columns = ["item", "task", "direction", "pair", "line", "question", "target"]
    columns += [f"{arm}_{name}" for arm in ("baseline", "candidate") for name in ("extracted", "answer", "fate")]
    for path in sorted(run.root.glob("oracles/*/flips.parquet")):
        table = read_table(path, columns)
        if table is not None and {"task", "direction", "candidate_answer"} <= set(table.column_names):
            return sorted(table.to_pylist(), key=lambda row: str(row["direction"]) != "lost")
    return []


def options_table(run: Run) -> Table:
    """The same of tasks that compare options, which were asked apart."""
    rows = read_table(run.root / "oracles/candidate/option_flips.parquet", ["task", "direction"])
    title = "Tasks that compare options, asked apart from the timed stream"
    return tasks_table(run, rows.to_pylist() if rows is not None else [], "options", title)


def tasks_table(
    run: Run,
    flips: list[dict[str, Any]],
    oracle: str = "tasks",
    title: str = "Task scores, graded on the timed answers",
) -> Table:
    """Scores by task of both arms, and how many answers flipped each way."""
    arms = ("candidate", "baseline", "reference")
    scores = {arm: as_dict(run.oracles.get(arm, {}).get(oracle, {}).get("metrics")) for arm in arms}
    names = [name for name in scores.get("candidate", {}) if name == "score" or name.startswith("score.")]
    counts = Counter((str(row["task"]), str(row["direction"])) for row in flips)
    whole = Counter(str(row["direction"]) for row in flips)
    rows = []
    for name in sorted(names, key=lambda name: name != "score"):
        task = name.partition(".")[2]
        one, other = (as_dict(scores.get(arm, {}).get(name)) for arm in ("candidate", "baseline"))
        ways: list[int | None] = [counts[task, way] if task else whole[way] for way in ("lost", "gained")]
        lost, gained = (None, None) if task in _SPLITS else ways  # a flip names its task only
        mine, theirs = as_number(one.get("value")), as_number(other.get("value"))
        known = as_number(as_dict(scores["reference"].get(name)).get("value"))
        apart = mine - theirs if mine is not None and theirs is not None else None
        paired = as_dict(scores["candidate"].get(f"difference.{task}" if task else "difference"))
        rows.append(
            TableRow((
                text(clean(task, 120) or "all tasks"), num(mine, "%"), _ends(one), num(theirs, "%"), _ends(other),
                num(apart, "pt"), _ends(paired), _count(lost), _count(gained), _count(as_number(one.get("n"))),
                *((num(known, "%"),) if scores["reference"] else ()),
            ))
        )  # fmt: skip
    columns = (*_COLUMNS, *((_REFERENCE,) if scores["reference"] else ()))
    return Table(oracle, title, columns, tuple(rows))


def _count(value: float | None) -> Item:
    return num(None) if value is None else Item(f"{value:,.0f}", value)


def _ends(metric: dict[str, Any]) -> Item:
    return bounds(as_number(metric.get("ci_low")), as_number(metric.get("ci_high")))


def flipped(run: Run, flips: list[dict[str, Any]]) -> Gallery:
    """Five answers that flipped, the lost ones first, one a task as long as there are tasks."""
    chosen: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for row in sorted(flips, key=lambda row: str(row["direction"]) != "lost"):
        seen[str(row["task"])] += 1
        row["_place"] = seen[str(row["task"])]
        chosen.append(row)
    chosen.sort(key=lambda row: (str(row["direction"]) != "lost", row["_place"]))
    tokens = Tokens(run) if chosen else None
    made = tuple(_example(tokens, row) for row in chosen[:MOST]) if tokens else ()
    lost = sum(str(row["direction"]) == "lost" for row in flips)
    lead = (
        f"{wording.count(lost, 'answer')} right for the baseline and wrong for the candidate, "
        f"{len(flips) - lost:,} the other way round. Flips both ways are normal between equal engines; "
        "the criterion is on their difference."
    )
    return Gallery("Answers that flipped", lead, made)


def _example(tokens: Tokens, row: dict[str, Any]) -> Example:
    way = "lost by the candidate" if str(row["direction"]) == "lost" else "gained by the candidate"
    where = f"{row['task']} · {way} · expected {row.get('target')}"
    question = clean(str(row.get("question") or "")[-400:])
    return Example(clean(where, 240), question, tuple(_side(tokens, arm, row) for arm in ("candidate", "baseline")))


def _side(tokens: Tokens, arm: str, row: dict[str, Any]) -> Side:
    pair, line = as_number(row.get("pair")), as_number(row.get("line"))
    found = tokens.side(arm, int(pair), int(line)) if pair is not None and line is not None else None
    result, fate = f"graded as “{row.get(f'{arm}_extracted')}”", str(row.get(f"{arm}_fate"))
    if fate != "graded":
        result = f"not graded ({fate}): counts as wrong"
    if found is None:
        answer = clean(str(row.get(f"{arm}_answer") or ""), MAX_CHARS)
        found = Side(arm, (Piece(answer),), "as it was answered")
    return replace(found, result=clean(result, 200))

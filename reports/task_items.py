"""Every task item in a row: what was expected, what each arm answered, and how lm-eval read and graded it."""

from __future__ import annotations

from typing import Any

from reports.clean_text import clean
from reports.run_data import Run, read_table
from reports.table import Column, Item, Table, TableRow, text

MOST = 400  # rows on the page; the Parquet files have them all
_TITLES = {"tasks": "Every task item", "options": "Every item of the tasks that compare options"}
_COLUMNS = (
    Column("Item"),
    Column("Expected", "answer"),
    Column("Candidate", "answer"),
    Column("Grade", "number", "grade"),
    Column("Baseline", "answer"),
    Column("Grade, baseline", "number", "grade"),
    Column("Flip", define="flip"),
)
_ORDER = ("lost", "gained", "")
_Rows = dict[tuple[str, int], dict[str, Any]]


def items_table(run: Run, oracle: str = "tasks") -> Table:
    """Answers and grades of both arms item by item, the flips first."""
    mine, theirs = (_read(run, arm, oracle) for arm in ("candidate", "baseline"))
    made = [_row(key, mine[key], theirs.get(key, {})) for key in sorted(mine, key=lambda key: (len(key[0]), key))]
    made.sort(key=lambda row: _ORDER.index(row.state))
    title = _TITLES[oracle]
    if len(made) > MOST:
        title += f", {MOST} of {len(made):,} (all: oracles/*/{oracle}.parquet)"
    return Table(f"{oracle}_items", title, _COLUMNS, tuple(made[:MOST]))


def _read(run: Run, arm: str, oracle: str) -> _Rows:
    columns = ["item", "repeat", "target", "extracted", "fate", "score", "text"]
    table = read_table(run.root / "oracles" / arm / f"{oracle}.parquet", columns)
    if table is None or set(columns) - set(table.column_names):
        return {}
    return {(str(row["item"]), int(row["repeat"])): row for row in table.to_pylist()}


def _row(key: tuple[str, int], mine: dict[str, Any], theirs: dict[str, Any]) -> TableRow:
    name, repeat = key
    shown = name.removeprefix("task/") + (f" #{repeat + 1}" if repeat else "")
    gain = mine["score"] - theirs["score"] if theirs else 0.0
    flip = "lost" if gain < 0 else "gained" if gain > 0 else ""
    items = (
        text(clean(shown, 80)), text(clean(str(mine["target"]), 120)),
        _answer(mine), _grade(mine), _answer(theirs), _grade(theirs), text(flip),
    )  # fmt: skip
    return TableRow(items, flip)


def _answer(row: dict[str, Any]) -> Item:
    """What was graded, and under it in small what was written, where that is more."""
    if not row:
        return text("")
    graded, written = str(row["extracted"]), str(row["text"]).strip()
    return Item(clean(graded, 120), below="" if written == graded else clean(written, 160))


def _grade(row: dict[str, Any]) -> Item:
    """1 or 0, or a part; why it was not graded, where it was not."""
    if not row:
        return text("")
    return Item(f"{row['score']:g}", row["score"], below="" if row["fate"] == "graded" else clean(str(row["fate"]), 40))

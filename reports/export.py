"""The report's tables as CSV and its charts as PNG: the same data, elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from reports.divergence import read_scored
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.sections import Section, sections
from reports.svg import as_png
from reports.table import Column, Item, Table
from reports.tables import cells_table

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(run_dir: Path, out: Path) -> list[Path]:
    """Write every table of the run's report as `out/<table>.csv` (UTF-8, numbers unrounded); return the files."""
    run = read_run(run_dir)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in run_tables(run):
        path = out / f"{table.name}.csv"
        path.write_text(as_csv(table), encoding="utf-8", newline="")
        written.append(path)
    return written


def write_png(run_dir: Path, out: Path) -> list[Path]:
    """Write every chart of the run's report as `out/<chart>.png`; return the files."""
    run = read_run(run_dir)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in (chart for section in _sections(run) for chart in section.charts if chart.only != "phone"):
        path = out / f"{chart.name}.png"
        path.write_bytes(as_png(chart))
        written.append(path)
    return written


def run_tables(run: Run) -> Iterator[Table]:
    """Every table of a run's page that has rows, each once."""
    seen = {}
    for table in (cells_table(run, PairSeries(run)), *(t for section in _sections(run) for t in section.tables)):
        if table.rows:
            seen[table.name] = table
    yield from seen.values()


def _sections(run: Run) -> list[Section]:
    return sections(run, PairSeries(run), read_scored(run))


def as_csv(table: Table) -> str:
    """One table; numbers as they are, missing ones empty, text that a spreadsheet would run as a formula quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([name for column in table.columns for name in _heads(column)])
    for row in table.rows:
        pairs = zip(table.columns, row.items, strict=True)
        writer.writerow([value for column, item in pairs for value in _values(column, item)])
    return buffer.getvalue()


def _heads(column: Column) -> list[str]:
    return [f"{column.label} low", f"{column.label} high"] if column.kind == "interval" else [column.label]


def _values(column: Column, item: Item) -> list[str]:
    if column.kind == "interval":
        return ["" if end is None else repr(end) for end in item.ends]
    return [item.sort if column.numeric else _safe(item)]


def _safe(item: Item) -> str:
    return f"'{item.shown}" if item.shown.startswith(_FORMULA) else item.shown

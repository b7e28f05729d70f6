"""The report's tables as CSV and its charts as PNG: the same data, elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports import compare
from reports.divergence import read_scored
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.sections import Section, sections
from reports.svg import Chart, as_png, as_svg_file
from reports.table import Column, Item, Table
from reports.tables import cells_table

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(run_dirs: Sequence[Path], out: Path) -> list[Path]:
    """Write every table of the report as `out/<table>.csv` (UTF-8, numbers unrounded); return the files.

    One run gives its own page's tables, several give those of their comparison.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in _tables([read_run(run_dir) for run_dir in run_dirs]):
        path = out / f"{table.name}.csv"
        path.write_text(as_csv(table), encoding="utf-8", newline="")
        written.append(path)
    return written


def write_png(run_dirs: Sequence[Path], out: Path, section: str = "") -> list[Path]:
    """Write every chart of the report (or of one section of it) as `out/<chart>.png`; return the files."""
    return [_write(out / f"{chart.name}.png", as_png(chart)) for chart in _charts(run_dirs, section)]


def write_svg(run_dirs: Sequence[Path], out: Path, section: str = "") -> list[Path]:
    """Write every chart of the report (or of one section of it) as `out/<chart>.svg`; return the files."""
    return [_write(out / f"{chart.name}.svg", as_svg_file(chart).encode()) for chart in _charts(run_dirs, section)]


def _charts(run_dirs: Sequence[Path], section: str) -> Iterator[Chart]:
    for one in _sections([read_run(run_dir) for run_dir in run_dirs]):
        yield from (chart for chart in one.charts if chart.only != "phone" and section in ("", one.name))


def _write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def run_tables(run: Run) -> Iterator[Table]:
    """Every table of a run's page that has rows, each once."""
    yield from _tables([run])


def _tables(runs: Sequence[Run]) -> Iterator[Table]:
    first = [cells_table(runs[0], PairSeries(runs[0]))] if len(runs) == 1 else []
    found = {table.name: table for table in first}
    found |= {table.name: table for section in _sections(runs) for table in section.tables}
    yield from (table for table in found.values() if table.rows)


def _sections(runs: Sequence[Run]) -> list[Section]:
    if len(runs) > 1:
        return compare.sections(compare.ranked(runs))
    return sections(runs[0], PairSeries(runs[0]), read_scored(runs[0]))


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
    ends = [f"{column.label} low", f"{column.label} high"]
    return ends if column.kind == "interval" else [column.label, *ends] if column.kind == "spread" else [column.label]


def _values(column: Column, item: Item) -> list[str]:
    ends = ["" if end is None else repr(end) for end in item.ends]
    if column.kind == "interval":
        return ends
    if column.kind == "spread":
        return [item.sort, *ends]
    return [item.sort if column.numeric else _safe(item)]


def _safe(item: Item) -> str:
    return f"'{item.shown}" if item.shown.startswith(_FORMULA) else item.shown

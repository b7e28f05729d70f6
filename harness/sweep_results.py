"""What a sweep found: a row an endpoint and cell, as sweep.json, sweep.csv, a table in the terminal and charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field
from rich.table import Table
from rich.text import Text

from harness.cells import Cell
from harness.measurement import CellMeasurement, read_visits
from harness.run_store import read_json, write_bytes, write_json
from harness.search import Search
from harness.sweep_plan import SweepPlan
from harness.verdict import Finite, Record


class Row(Record):
    """One endpoint in one cell: medians over the rounds. None where it was not measured, never zero."""

    endpoint: str
    profile: str
    cell: str
    concurrency: int | None
    request_rate: Finite | None
    rounds: int
    asked: int
    served: int
    output_tokens: int
    output_tokens_source: str
    ttft_p50_ms: Finite | None
    ttft_p95_ms: Finite | None
    tpot_p50_ms: Finite | None
    tpot_p95_ms: Finite | None
    request_latency_p50_ms: Finite | None
    output_throughput: Finite | None = Field(description="tokens per second, whole cell")
    output_throughput_per_user: Finite | None = Field(description="tokens per second that one user sees")
    request_throughput: Finite | None
    goodput: Finite | None
    achieved_concurrency: Finite | None
    notes: tuple[str, ...] = Field((), description="why a number of this row must not be published")


def collect(
    plan: SweepPlan, cells: Sequence[Cell], root: Path, notes: dict[tuple[str, str], list[str]] | None = None
) -> tuple[Row, ...]:
    """Every endpoint's row of every cell, cells in the plan's order; `notes` by (endpoint, cell)."""
    visits = read_visits(root)
    rows = []
    for cell in cells:
        for arm in plan.arms:
            met = [visit.cells[cell.name] for visit in visits if visit.role == arm and cell.name in visit.cells]
            if met:
                rows.append(_row(arm, cell, met, (notes or {}).get((arm, cell.name), ())))
    return tuple(rows)


def write_results(rows: Sequence[Row], searches: Sequence[Search], root: Path) -> list[Path]:
    """Write sweep.json, sweep.csv, charts/*.svg and *.png, and report.html; return the files."""
    data = [row.model_dump(mode="json") for row in rows]
    json_file, csv_file = root / "sweep.json", root / "sweep.csv"
    write_json(json_file, {"schema_version": 1, "rows": data, "searches": [_told(search) for search in searches]})
    write_bytes(csv_file, _csv(data).encode())
    return [json_file, csv_file, *draw(root)]


def _told(search: Search) -> dict[str, Any]:
    shares = [{"request_rate": rate, "good_share": share} for rate, share in sorted(search.shares.items())]
    return {
        "endpoint": search.endpoint,
        "profile": search.profile,
        "max_request_rate": search.rate,
        "open_end": search.open_end,
        "tried": shares,
    }


def search_lines(root: Path) -> list[str]:
    """What was searched in a finished sweep, a sentence each."""
    lines = []
    for one in read_json(root / "sweep.json")["searches"]:
        rate, name = one["max_request_rate"], f"{one['profile']}, {one['endpoint']}"
        lowest = one["tried"][0]
        if rate is None:
            lines.append(
                f"{name}: not even {lowest['request_rate']:g}/s is good ({lowest['good_share']:.0%} of requests)."
            )
        else:
            more = ", the highest that was tried" if one["open_end"] else ""
            lines.append(f"{name}: {rate:g} requests/s is the highest rate inside the limits{more}.")
    return lines


def draw(root: Path) -> list[Path]:
    """Write the charts and the report of what lies in the run directory; return the files."""
    from reports.export import write_png, write_svg
    from reports.html import write_report

    charts = [*write_svg([root], root / "charts", "load"), *write_png([root], root / "charts", "load")]
    return [*charts, write_report([root], root / "report.html")]


def results_table(rows: Sequence[Row]) -> Table:
    """For the terminal: what an engineer compares first, a row an endpoint and cell."""
    table = Table(title="Medians over rounds; TTFT and TPOT in ms, throughput in tokens/s")
    heads = (
        "cell",
        "endpoint",
        "served",
        "TTFT p50",
        "p95",
        "TPOT p50",
        "p95",
        "tokens/s",
        "per user",
        "in flight",
        "",
    )
    for head in heads:
        table.add_column(head, justify="left" if head in ("cell", "endpoint", "") else "right", no_wrap=head != "")
    last = ""
    for row in rows:
        numbers = (
            row.ttft_p50_ms, row.ttft_p95_ms, row.tpot_p50_ms, row.tpot_p95_ms, row.output_throughput,
            row.output_throughput_per_user, row.achieved_concurrency,
        )  # fmt: skip
        if last and last != row.cell:
            table.add_section()
        served = Text(f"{row.served}/{row.asked}", style="" if row.served == row.asked else "red")
        note = Text(row.notes[0] if row.notes else "", style="yellow")
        table.add_row(Text(row.cell), Text(row.endpoint), served, *map(_shown, numbers), note)
        last = row.cell
    return table


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Names hold only letters, digits, dots and dashes (and notes begin with a letter): nothing is a formula."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(Row.model_fields))
    writer.writeheader()
    writer.writerows(row | {"notes": " ".join(row["notes"])} for row in rows)
    return buffer.getvalue()


def _row(arm: str, cell: Cell, met: Sequence[CellMeasurement], notes: Iterable[str]) -> Row:
    numbers = [_numbers(one) for one in met]
    sources = {one.output_tokens_source for one in met}
    middles = {name: _middle([found[name] for found in numbers]) for name in numbers[0]}
    return Row(
        endpoint=arm,
        profile=cell.profile.name,
        cell=cell.name,
        concurrency=cell.concurrency,
        request_rate=cell.request_rate,
        rounds=len(met),
        asked=sum(one.asked for one in met),
        served=sum(one.served for one in met),
        output_tokens=sum(one.output_tokens for one in met),
        output_tokens_source=sources.pop() if len(sources) == 1 else "mixed",
        **middles,
        notes=tuple(notes),
    )


def _numbers(one: CellMeasurement) -> dict[str, float | None]:
    return {
        "ttft_p50_ms": one.ttft_ms.p50,
        "ttft_p95_ms": one.ttft_ms.p95,
        "tpot_p50_ms": one.tpot_ms.p50,
        "tpot_p95_ms": one.tpot_ms.p95,
        "request_latency_p50_ms": one.request_latency_ms.p50,
        "output_throughput": one.output_throughput,
        "output_throughput_per_user": one.output_throughput_per_user,
        "request_throughput": one.request_throughput,
        "goodput": one.goodput,
        "achieved_concurrency": one.signals.get("achieved_concurrency"),
    }


def _middle(values: Sequence[float | None]) -> float | None:
    """The median when every round has the number; a round without it is not left out in silence."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def _shown(value: float | None) -> Any:
    if value is None:
        return Text("-", style="dim")
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

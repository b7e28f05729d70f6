"""What the client itself adds: calibration.json, where AIPerf drove a mock that knows its own send times."""

from __future__ import annotations

from typing import Any

from reports import wording
from reports.run_data import Run
from reports.table import Column, Item, Table, TableRow, num, share, text
from reports.values import as_dict, as_number

_COLUMNS = (
    Column("Cell"),
    Column("Shape of"),
    Column("Requests", "number", "n"),
    Column("TTFT, true, ms", "number", "truth"),
    Column("TTFT bias, ms", "number", "bias"),
    Column("p99, ms", "number", "bias"),
    Column("TPOT, true, ms", "number", "truth"),
    Column("TPOT bias", "number", "bias"),
    Column("p99", "number", "bias"),
    Column("Throughput bias", "number", "bias"),
    Column("Fed", "number", "fed"),
    Column("Load average", "number", "load_average"),
)


def calibration_table(run: Run) -> Table:
    """The client's bias at each arm's shape in each cell; no rows when it was not calibrated."""
    cells = as_dict(run.calibration.get("cells"))
    order = {cell.name: place for place, cell in enumerate(run.cells)}
    rows = [
        _row(cell, arm, as_dict(bias))
        for cell in sorted(cells, key=lambda name: order.get(name, len(order)))
        for arm, bias in sorted(as_dict(cells[cell]).items())
    ]
    return Table("calibration", "What this client adds to what it measures", _COLUMNS, tuple(rows))


def calibration_lead(run: Run) -> str:
    """How to read the table; empty without one."""
    margin = as_number(run.calibration.get("margin"))
    if not as_dict(run.calibration.get("cells")):
        return ""
    allowed = f" Up to {wording.percent(margin)} is tolerated; beyond, the cell is INVALID." if margin else ""
    return (
        "The client was calibrated against a mock that knows its own send times and streams as each engine does."
        + allowed
    )


def _row(cell: str, arm: str, bias: dict[str, Any]) -> TableRow:
    value = {key: as_number(found) for key, found in bias.items()}
    requests, failed = value.get("requests"), value.get("failed") or 0
    told = wording.MISSING if requests is None else f"{requests:,.0f}{f', {failed:.0f} failed' if failed else ''}"
    return TableRow((
        text(cell), text(arm), Item(told, requests), num(value.get("ttft_ms")), _signed(value.get("ttft_bias_ms")),
        _signed(value.get("ttft_bias_p99_ms")), num(value.get("tpot_ms")), _signed(value.get("tpot_bias"), "%"),
        _signed(value.get("tpot_bias_p99"), "%"), _signed(value.get("output_throughput_bias"), "%"),
        share(value.get("fed")), num(value.get("load_average_1m")),
    ))  # fmt: skip


def _signed(value: float | None, unit: str = "") -> Item:
    if value is None:
        return num(None)
    shown = 100 * value if unit == "%" else value
    return Item(f"{shown:+.2f}{chr(160) + unit if unit else ''}", value)

"""Tables of correctness: how far the timed responses are from the reference."""

from __future__ import annotations

from reports import wording
from reports.definitions import define, label
from reports.divergence import Scored
from reports.run_data import Run
from reports.table import Column, Item, Table, TableRow, bounds, num, share, text
from reports.values import as_dict, as_number


def divergence_table(scored: dict[str, Scored]) -> Table:
    """The reference's view of each arm in one line."""
    columns = (
        Column("Arm"),
        Column("Token margin, nats/token", "number", "token_margin"),
        Column("95 % interval", "interval", "interval_95"),
        Column("Top-1", "number", "top1"),
        Column("Inexcusable flips", "number", "flips_inexcusable"),
        Column("Loop share", "number", "loop_share"),
        Column("Tokens", "number", "n"),
        Column("Documents", "number", "n"),
    )
    rows = []
    for arm, one in scored.items():
        mean = one.total()
        half = mean.half_width or 0.0
        ends = (max(0.0, mean.nats - half), mean.nats + half) if mean.half_width is not None else (None, None)
        loops = float(one.column("loop_share").mean())
        items = (
            text(arm), Item(wording.number(mean.nats), mean.nats), bounds(*ends), share(one.share("top1"), 2),
            share(one.share("flips_inexcusable"), 2), share(loops), Item(f"{mean.tokens:,}", mean.tokens),
            Item(f"{mean.documents:,}", mean.documents),
        )  # fmt: skip
        rows.append(TableRow(items))
    return Table("divergence", "Divergence from the reference", columns, tuple(rows))


_ORACLE_COLUMNS = (
    Column("Number"),
    Column("Arm"),
    Column("Value", "number"),
    Column("95 % interval", "interval", "interval_95"),
    Column("n", "number", "n"),
    Column("Remark", "reason"),
)


def oracle_table(run: Run) -> Table:
    """Every number that an oracle gave, with interval and sample count; what was not scored says why."""
    rows = []
    for arm, results in run.oracles.items():
        for oracle, result in results.items():
            rows += [_metric_row(oracle, arm, name, as_dict(m)) for name, m in as_dict(result.get("metrics")).items()]
            if result.get("status") != "scored":
                items = (f"{oracle}: not scored", arm, wording.MISSING, "", wording.MISSING, result.get("reason"))
                rows.append(TableRow(tuple(map(text, items))))
    return Table("oracles", "What the oracles measured", _ORACLE_COLUMNS, tuple(rows))


def _metric_row(oracle: str, arm: str, name: str, metric: dict[str, object]) -> TableRow:
    value, n, low, high = (as_number(metric.get(key)) for key in ("value", "n", "ci_low", "ci_high"))
    shown, known = num(value, str(metric.get("unit") or "")), define(name)
    return TableRow(
        (
            Item(f"{oracle}: {label(name)}", define=known.key if known else ""),
            text(arm),
            shown,
            bounds(low, high),
            Item(f"{n or 0:,.0f}", n),
            text(""),
        )
    )

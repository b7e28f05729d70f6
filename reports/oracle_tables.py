"""Tables of correctness and conduct: what the oracles found in the timed responses."""

from __future__ import annotations

from typing import Any

from reports import wording
from reports.definitions import label
from reports.divergence import Scored
from reports.run_data import Run
from reports.table import Column, Item, Table, TableRow, bounds, num, share, text
from reports.values import as_dict, as_list, as_number
from reports.verdict_data import Check

_CONTRACT_COLUMNS = (
    Column("Contract"),
    Column("Candidate", "state"),
    Column("Baseline", "state"),
    Column("Broke it", "number"),
    Column("Looked at", "number", "n"),
    Column("Finds from", "number", "detectable_rate"),
    Column("What was seen", "reason"),
)
_FOUND = {"broken": "FAIL", "unscored": "NOT SCORED", "kept": "PASS"}
_ABSENT = "NOT LOOKED AT"


def contracts_table(run: Run) -> Table:
    """Every contract that was tested on the timed responses, both arms side by side, with the check's power.

    Counts and sentence are the candidate's. Honesty checks that no oracle wrote (load served) follow.
    """
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for arm, results in run.oracles.items():
        for oracle, result in results.items():
            for finding in map(as_dict, as_list(result.get("findings"))):
                found.setdefault((oracle, str(finding.get("name"))), {})[arm] = finding
    rows = [_contract_row(oracle, name, arms) for (oracle, name), arms in found.items()]
    named = {f"{oracle}.{name}" for oracle, name in found}
    rows += [_honesty_row(check) for check in run.of_family("honesty") if check.check not in named]
    rank = {state: place for place, state in enumerate((*_FOUND.values(), _ABSENT))}
    rows.sort(key=lambda row: rank.get(row.state, 1))
    broken = any(row.state == "FAIL" for row in rows)
    return Table("contracts", "Contracts tested on the timed responses", _CONTRACT_COLUMNS, tuple(rows), is_open=broken)


def _contract_row(oracle: str, name: str, arms: dict[str, dict[str, Any]]) -> TableRow:
    told = arms.get("candidate") or arms.get("both") or {}
    states = [_FOUND.get(str(finding.get("status")), _ABSENT) for finding in (told, arms.get("baseline", {}))]
    broke, n, rate = (as_number(told.get(key)) for key in ("count", "n", "detectable_rate"))
    numbers = (num(broke), num(n), share(rate, 2))
    items = (text(f"{oracle}: {name.replace('-', ' ')}"), *map(text, states), *numbers, text(told.get("sentence")))
    return TableRow(items, states[0])


def _honesty_row(check: Check) -> TableRow:
    items = (
        text(check.check),
        text(check.status),
        text(""),
        num(None),
        Item(f"{check.n:,}", check.n),
        share(None),
        text(check.reason),
    )
    return TableRow(items, check.status)


def divergence_table(scored: dict[str, Scored]) -> Table:
    """The reference's view of each arm in one line."""
    columns = (
        Column("Arm"),
        Column("Token margin, nats/token", "number", "token_margin"),
        Column("95 % interval", "interval"),
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
    Column("95 % interval", "interval"),
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
    shown = num(value, str(metric.get("unit") or ""))
    return TableRow(
        (text(f"{oracle}: {label(name)}"), text(arm), shown, bounds(low, high), Item(f"{n or 0:,.0f}", n), text(""))
    )

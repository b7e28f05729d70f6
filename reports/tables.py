"""Every table of a report as plain data: HTML, CSV and Markdown are written from these, so they cannot disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from reports import wording
from reports.definitions import label
from reports.divergence import Scored
from reports.heatmap import anchor, severity
from reports.pair_series import SHOWN, PairSeries, Spread, unit_of
from reports.run_data import Check, Run, as_dict, as_list, as_number

FOLDED_ROWS = 14


@dataclass(frozen=True)
class Column:
    """`define`: key of the definition behind the "?"; `kind`: `number`, `state`, `text`, `interval` or `reason`."""

    label: str
    kind: str = "text"
    define: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the column is right-aligned and sorted as numbers."""
        return self.kind == "number"


@dataclass(frozen=True)
class Item:
    """A value as shown and, for numbers, as it is; an interval has two."""

    shown: str
    value: float | None = None
    ends: tuple[float | None, float | None] = (None, None)

    @property
    def sort(self) -> str:
        """The number for sorting; empty when missing."""
        return "" if self.value is None else repr(self.value)


@dataclass(frozen=True)
class TableRow:
    """One row; `anchor` is its id on the page."""

    items: tuple[Item, ...]
    state: str = ""
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """A titled table; `name` is its CSV's file name; `is_open` keeps a long one unfolded."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...] = field(default=())
    is_open: bool = False

    @property
    def is_long(self) -> bool:
        """Whether the page makes it foldable."""
        return len(self.rows) > FOLDED_ROWS

    @property
    def summary(self) -> str:
        """What a folded table says of itself."""
        states = Counter(row.state for row in self.rows if row.state not in ("", "PASS"))
        told = "".join(f", {count} {state}" for state, count in states.items())
        return f"{self.title}: {wording.count(len(self.rows), 'row')}{told}"

    @cached_property
    def states(self) -> tuple[str, ...]:
        """States that occur, for the filter."""
        return tuple(sorted({row.state for row in self.rows if row.state}))


def text(value: object) -> Item:
    """A text item."""
    return Item("" if value is None else str(value))


def num(value: float | None, unit: str = "") -> Item:
    """A number with its unit."""
    return Item(wording.with_unit(value, unit), value)


def bounds(low: float | None, high: float | None, shown: str | None = None) -> Item:
    """An interval, shown as `low to high` unless told otherwise."""
    plain = f"{wording.number(low)} to {wording.number(high)}" if low is not None and high is not None else ""
    return Item(plain if shown is None else shown, ends=(low, high))


def share(value: float | None, digits: int = 1) -> Item:
    """A share, shown in percent."""
    return Item(wording.percent(value, digits), value)


_CHECK_COLUMNS = (
    Column("Check"),
    Column("Status", "state"),
    Column("Observed", "number", "ratio"),
    Column("Interval", "interval", "interval"),
    Column("Level", "number", "interval"),
    Column("Bar", "number", "bar"),
    Column("Distance", "number", "distance"),
    Column("Baseline", "number"),
    Column("Candidate", "number"),
    Column("n", "number", "n"),
    Column("Noise", "number", "noise"),
    Column("Why", "reason"),
)


def checks_table(name: str, title: str, checks: Iterable[Check]) -> Table:
    """Checks with everything that decided them, worst first."""
    return Table(name, title, _CHECK_COLUMNS, tuple(_check_row(check) for check in sorted(checks, key=severity)))


def _check_row(check: Check) -> TableRow:
    where = f" · {check.cell}" if check.cell else ""
    level = check.confidence if wording.interval(check) else None
    items = (
        text(f"{label(check.metric)}{where}"), text(check.status), num(check.observed, check.unit),
        bounds(check.ci_low, check.ci_high, wording.interval(check)), share(level),
        Item(wording.bar(check), check.required), share(check.distance),
        num(check.baseline, check.value_unit), num(check.candidate, check.value_unit),
        Item(f"{check.n:,}", check.n), share(check.noise), text(" ".join(filter(None, [check.reason, check.hint]))),
    )  # fmt: skip
    return TableRow(items, check.status, anchor(check.check))


def cells_table(run: Run, series: PairSeries) -> Table:
    """What each arm measured in each cell: median over pairs, and the range."""
    columns = [Column("Cell"), Column("Arm"), Column("Asked", "number"), Column("Served", "number")]
    shown = [m for m in SHOWN if any(series.values(arm, c.name, m) for arm in run.arms for c in run.cells)]
    columns += [Column(f"{label(m)}, {unit_of(m)}", "number", m.partition(".")[0]) for m in shown]
    rows = []
    for cell in run.cells:
        for arm in run.arms:
            met = [visit.cells[cell.name] for visit in run.visits if visit.arm == arm and cell.name in visit.cells]
            if not met:
                continue
            asked, served = (sum(as_number(one.get(key)) or 0 for one in met) for key in ("asked", "served"))
            items = [text(cell.name), text(arm), Item(f"{asked:,.0f}", asked), Item(f"{served:,.0f}", served)]
            for metric in shown:
                spread = series.spread(arm, cell.name, metric)
                middle = spread.median if spread else None
                items.append(Item(wording.number(middle) + _range(spread), middle))
            rows.append(TableRow(tuple(items)))
    return Table("cells", "Measured, by cell and arm", tuple(columns), tuple(rows))


def _range(spread: Spread | None) -> str:
    return f" ({wording.number(spread.low)}–{wording.number(spread.high)})" if spread and spread.n > 1 else ""


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


def signals_table(run: Run) -> Table:
    """What the client saw of itself and of the engines: median over pairs of each signal, and failures by kind."""
    names = list(dict.fromkeys(n for v in run.visits for c in v.cells.values() for n in as_dict(c.get("signals"))))
    columns = (
        Column("Cell"),
        Column("Arm"),
        *[Column(wording.sentence_case(n), "number") for n in names],
        Column("Failures"),
    )
    rows = []
    for cell in run.cells:
        for arm in run.arms:
            met = [v.cells[cell.name] for v in run.visits if v.arm == arm and cell.name in v.cells]
            values = [[as_number(as_dict(one.get("signals")).get(name)) for one in met] for name in names]
            middles = [median(known) if (known := [v for v in found if v is not None]) else None for found in values]
            failures: Counter[str] = Counter()
            for one in met:
                failures.update({kind: int(as_number(n) or 0) for kind, n in as_dict(one.get("failures")).items()})
            told = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in failures.most_common()) or "none"
            rows.append(TableRow((text(cell.name), text(arm), *map(num, middles), text(told))))
    return Table("signals", "Signals of the client and the engines", columns, tuple(rows))


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


def flat_table(name: str, title: str, **trees: Mapping[str, object]) -> Table:
    """Nested keys and values laid out flat, one column a tree."""
    flat = {head: dict(_flatten(tree)) for head, tree in trees.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    rows = tuple(TableRow((text(key), *[text(values.get(key, "")) for values in flat.values()])) for key in keys)
    return Table(name, title, (Column("Key"), *[Column(head) for head in flat]), rows)


def _flatten(value: object, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for place, item in enumerate(value):
            yield from _flatten(item, f"{prefix}.{place}")
    else:
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        yield prefix, shown

"""Tables of what was judged, measured and stood on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from reports import wording
from reports.definitions import DEFINITIONS, label
from reports.heatmap import anchor, severity
from reports.pair_series import SHOWN, PairSeries, Spread, unit_of
from reports.run_data import Run
from reports.table import Column, Item, Table, TableRow, bounds, num, share, text
from reports.values import as_dict, as_number
from reports.verdict_data import Check

_CHECK_COLUMNS = (
    Column("Check"),
    Column("Status", "state"),
    Column("Observed", "number", "ratio"),
    Column("Interval", "interval", "interval"),
    Column("Level", "number", "interval"),
    Column("Bar", "number", "bar"),
    Column("Distance", "number", "distance"),
    Column("Baseline", "number", "arm_value"),
    Column("Candidate", "number", "arm_value"),
    Column("n", "number", "n"),
    Column("Noise", "number", "noise"),
    Column("Why", "reason"),
)


def checks_table(name: str, title: str, checks: Iterable[Check]) -> Table:
    """Checks with everything that decided them, worst first."""
    return Table(name, title, _CHECK_COLUMNS, tuple(_check_row(check) for check in sorted(checks, key=severity)))


def _check_row(check: Check) -> TableRow:
    where = f" · {check.cell}" if check.cell else ""
    name = label(check.metric) if check.family in ("speed", "accuracy") else check.check.partition("@")[0]
    level = check.confidence if wording.interval(check) else None
    items = (
        text(f"{name}{where}"), text(check.status), num(check.observed, check.unit),
        bounds(check.ci_low, check.ci_high, wording.interval(check)), share(level),
        Item(wording.bar(check), check.required), share(check.distance),
        num(check.baseline, check.value_unit), num(check.candidate, check.value_unit),
        Item(f"{check.n:,}", check.n), share(check.noise), text(" ".join(filter(None, [check.reason, check.hint]))),
    )  # fmt: skip
    return TableRow(items, check.status, anchor(check.check))


def cells_table(run: Run, series: PairSeries) -> Table:
    """What each arm measured in each cell: median over pairs, and the range."""
    columns = [Column("Cell"), Column("Arm"), Column("Asked", "number", "asked"), Column("Served", "number", "served")]
    columns.append(Column("Tokens by", define="tokens_by"))
    shown = [m for m in SHOWN if any(series.values(arm, c.name, m) for arm in run.arms for c in run.cells)]
    columns += [Column(f"{label(m)}, {unit_of(m)}", "spread", m.partition(".")[0]) for m in shown]
    rows = []
    for cell in run.cells:
        for arm in run.arms:
            met = [visit.cells[cell.name] for visit in run.visits if visit.arm == arm and cell.name in visit.cells]
            if not met:
                continue
            asked, served = (sum(as_number(one.get(key)) or 0 for one in met) for key in ("asked", "served"))
            items = [text(cell.name), text(arm), Item(f"{asked:,.0f}", asked), Item(f"{served:,.0f}", served)]
            items.append(text(_counted({str(one.get("output_tokens_source")) for one in met})))
            for metric in shown:
                spread = series.spread(arm, cell.name, metric)
                middle, ends = (spread.median, (spread.low, spread.high)) if spread else (None, (None, None))
                items.append(Item(wording.number(middle), middle, ends, below=_range(spread)))
            rows.append(TableRow(tuple(items)))
    return Table("cells", "Measured, by cell and arm", tuple(columns), tuple(rows))


def _range(spread: Spread | None) -> str:
    return f"{wording.number(spread.low)}–{wording.number(spread.high)}" if spread and spread.n > 1 else ""


def _counted(sources: set[str]) -> str:
    """Where the token counts come from; an estimate says so."""
    shown = {
        "ids": "token ids",
        "usage": "usage",
        "retokenised": "re-tokenising (estimated)",
        "mixed": "mixed (estimated)",
    }
    return ", ".join(sorted(shown.get(source, wording.MISSING) for source in sources))


def signals_table(run: Run) -> Table:
    """What the client saw of itself and of the engines: median over pairs of each signal, and failures by kind."""
    names = list(dict.fromkeys(n for v in run.visits for c in v.cells.values() for n in as_dict(c.get("signals"))))
    columns = (
        Column("Cell"),
        Column("Arm"),
        *map(_signal_column, names),
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
            shown = (share(v) if _unit(n) == "share" else num(v) for n, v in zip(names, middles, strict=True))
            rows.append(TableRow((text(cell.name), text(arm), *shown, text(told))))
    return Table("signals", "Signals of the client and the engines", columns, tuple(rows))


def _signal_column(name: str) -> Column:
    unit = _unit(name)
    known = DEFINITIONS[name].label if name in DEFINITIONS else wording.sentence_case(name)
    label = known if unit in ("", "share", "ratio") else f"{known}, {unit}"
    return Column(label, "number", name if name in DEFINITIONS else "")


def _unit(signal: str) -> str:
    return DEFINITIONS[signal].unit if signal in DEFINITIONS else ""


_VISIT_COLUMNS = (
    Column("Visit", define="visit"),
    Column("Pair", "number", "pair"),
    Column("Arm"),
    Column("Began"),
    Column("Took", "number", "visit_took"),
    Column("Load average before", "number", "load_average"),
    Column("After", "number", "load_average"),
    Column("AIPerf ended with", "number", "exit_code"),
)


def visits_table(run: Run) -> Table:
    """The visits in the order they were made."""
    rows = []
    for visit in sorted(run.visits, key=lambda visit: visit.slot):
        numbers = (as_number(visit.record.get(key)) for key in ("started_at", "ended_at", "load_average_1m"))
        began, ended, before = numbers
        after, code = (as_number(visit.record.get(key)) for key in ("load_average_1m_end", "exit_code"))
        took = ended - began if began is not None and ended is not None else None
        when = time.strftime("%H:%M:%S", time.gmtime(began)) if began is not None else ""
        order, pair = Item(str(visit.slot + 1), visit.slot + 1), Item(str(visit.pair), visit.pair)
        spent = Item(wording.duration(took), took)
        rows.append(TableRow((order, pair, text(visit.arm), text(when), spent, num(before), num(after), num(code))))
    return Table("visits", "Visits in run order", _VISIT_COLUMNS, tuple(rows))


def flat_table(name: str, title: str, **trees: Mapping[str, object]) -> Table:
    """Nested keys and values laid out flat, one column a tree."""
    flat = {head: dict(_flatten(tree)) if tree else {} for head, tree in trees.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    rows = tuple(TableRow((text(key), *[text(values.get(key, "")) for values in flat.values()])) for key in keys)
    return Table(name, title, (Column("Key"), *[Column(head) for head in flat]), rows)


def engine_differences(run: Run) -> Table:
    """Keys in which the engines of a run are not alike: their plan entries and what they say of themselves."""
    ends = as_dict(run.plan.get("endpoints"))
    trees = {arm: {**as_dict(ends.get(arm)), **run.engines.get(arm, {})} for arm in run.arms}
    whole = flat_table("engine-differences", "Where the engines differ", **trees)
    if len(trees) < 2:
        return whole
    kept = [row for row in whole.rows if len({item.shown for item in row.items[1:]}) > 1]
    dull = ("role", "url", "urls")  # they always differ, and stand on the first screen
    return replace(whole, rows=tuple(row for row in kept if row.items[0].shown.rpartition(".")[2] not in dull))


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

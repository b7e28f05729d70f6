"""Several runs on one page: who leads, by what, and whether they may be compared at all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from reports import compare_charts, page, wording
from reports.heatmap import SEVERITY, Box, Heatmap, Row, speed_columns, worst_boxes
from reports.pair_series import PairSeries, place_of
from reports.run_data import Run
from reports.sections import Section
from reports.svg import Chart
from reports.table import Column, Item, Table, TableRow, num, text
from reports.tables import flat_table
from reports.values import as_dict, as_number

MAX_PROFILES = 9
# What must agree before numbers of two runs may stand side by side: (where, key, what a person calls it).
_SAME = (("plan", "model", "model"), ("plan", "seed", "seed"), ("environment", "code_sha256", "judge's code"))


@dataclass(frozen=True)
class Ranked:
    """A run with its place in the comparison."""

    run: Run
    name: str

    @cached_property
    def series(self) -> PairSeries:
        """Its numbers by pair."""
        return PairSeries(self.run)

    @cached_property
    def started(self) -> float | None:
        """Unix time of the first visit."""
        return page.started_at(self.run)


def ranked(runs: Sequence[Run]) -> list[Ranked]:
    """Best first: by verdict, then by the check with least room over its bar. Equal names get a number."""
    order = sorted(runs, key=_rank, reverse=True)
    names = [run.name for run in order]
    return [
        Ranked(run, run.name if names.count(run.name) == 1 else f"{run.name} ({names[: place + 1].count(run.name)})")
        for place, run in enumerate(order)
    ]


def _rank(run: Run) -> tuple[int, bool, float]:
    full = run.verdict is not None and run.verdict.mode == "full"
    distances = [c.distance for c in run.checks if c.family in ("speed", "accuracy") and c.distance is not None]
    return SEVERITY.get(run.status, -1), full, min(distances, default=float("-inf"))


def lead(runs: Sequence[Ranked]) -> tuple[str, str]:
    """(headline, what the order means)."""
    first = runs[0]
    counts = {state: sum(one.run.status == state for one in runs) for state in wording.GLYPHS}
    told = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    passes, judged = first.run.status == "PASS", first.run.verdict is not None
    word = f"{first.name} leads" if passes else "No run passes" if judged else "Nothing was judged"
    order = "Best first: by verdict, then by the check with the least room over its bar."
    return word, f"{told}. {order} One number never decides."


def leaderboard(runs: Sequence[Ranked]) -> Heatmap:
    """A row a run: verdict, the other two halves, then the worst cell of every speed criterion."""
    columns = tuple(dict.fromkeys(column for one in runs for column in speed_columns(one.run)))
    rows = []
    for place, one in enumerate(runs, 1):
        halves = {half.family: half for half in page.halves(one.run)}
        verdict = one.run.verdict
        below = f"{verdict.passed}/{verdict.judged}{' quick' if verdict.mode == 'quick' else ''}" if verdict else ""
        boxes = [Box(one.run.status, one.run.status, below, verdict.sentence if verdict else "")]
        boxes += [_half_box(halves[family]) for family in ("accuracy", "honesty")]
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.started)) if one.started else ""
        rows.append(Row(f"{place}. {one.name}", when, (*boxes, *worst_boxes(one.run, one.series, columns))))
    head = (("verdict", "Verdict"), ("accuracy", "As right"), ("honesty", "Honest"))
    return Heatmap((*head, *columns), tuple(rows), "Run")


def _half_box(half: page.Half) -> Box:
    limiting = half.limiting
    if half.family == "honesty":
        return Box(half.state, half.state, half.counts.removesuffix(" passed"), half.sentence)
    shown = (
        wording.with_unit(limiting.observed, limiting.unit)
        if limiting and limiting.observed is not None
        else half.state
    )
    bar = wording.bar(limiting) if limiting and limiting.observed is not None else ""
    return Box(half.state, shown, bar, half.sentence)


def warnings(runs: Sequence[Ranked]) -> list[str]:
    """Sentences on why numbers of these runs may not be comparable."""
    found = []
    for where, key, name in _SAME:
        values = {str(getattr(one.run, where).get(key)) for one in runs}
        if len(values) > 1:
            told = "" if key == "code_sha256" else f": {_some(values)}"
            found.append(f"These runs differ in {name}{told}.")
    machines = {_machine(one.run) for one in runs}
    if len(machines) > 1:
        found.append(f"These runs were made on {len(machines)} different machines: compare ratios, not milliseconds.")
    found += [f"{one.name}: {problem}" for one in runs for problem in one.run.problems[:3]]
    return found


def _some(values: set[str]) -> str:
    shown = sorted(values, key=lambda value: (len(value), value))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _machine(run: Run) -> str:
    cpu = as_dict(run.environment.get("cpu"))
    return (
        f"{cpu.get('model')} {cpu.get('count')} {[as_dict(g).get('name') for g in run.environment.get('gpus') or []]}"
    )


def sections(runs: Sequence[Ranked]) -> list[Section]:
    """Charts and tables below the leaderboard."""
    made = [_pareto(runs), _history(runs), _worst(runs), _differences(runs)]
    return [section for section in made if not section.is_empty]


def _present(found: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in found if chart)


def _pareto(runs: Sequence[Ranked]) -> Section:
    profiles = list(dict.fromkeys(cell.profile for one in runs for cell in one.run.cells))[:MAX_PROFILES]
    named = [(one.name, one.run, one.series) for one in runs]
    alone = len(profiles) == 1
    drawn = tuple(chart for one in profiles for chart in compare_charts.pareto_of_all(named, one, alone=alone))
    lead = "Every run's candidate, and its baseline thin and dashed. A point a load; up and right is better."
    names = tuple(one.name for one in runs[: compare_charts.MAX_LINES])
    return Section("pareto", "Throughput against interactivity, all runs", "Pareto", lead, drawn, legend=names)


def _history(runs: Sequence[Ranked]) -> Section:
    dated = sorted((one for one in runs if one.started), key=lambda one: one.started or 0.0)
    judged = {c.metric for one in dated for c in one.run.of_family("speed") if c.unit == "x"}
    metrics = sorted(judged, key=lambda metric: (place_of(metric), metric))
    named = [(one.name, one.started or 0.0, one.run) for one in dated]
    drawn = _present(compare_charts.history(named, metric) for metric in metrics)
    lead = (
        "The cell of each metric that is closest to its bar in the newest run, followed back in time. "
        "A vertical line marks a shift in level (an alarm to look at, never a gate)."
    )
    return Section("history", "History", "History", lead, drawn)


_LIMIT_COLUMNS = (
    Column("Run"),
    Column("Status", "state"),
    Column("Limiting check", "reason"),
    Column("Token margin", "number", "token_margin"),
    Column("Wall time"),
    Column("Requests", "number", "asked"),
)


def _worst(runs: Sequence[Ranked]) -> Section:
    table = Table("limits", "What limits each run", _LIMIT_COLUMNS, tuple(_limit_row(one) for one in runs))
    return Section("limits", table.title, "Limits", tables=(table,))


def _limit_row(one: Ranked) -> TableRow:
    worst, cost = page.limiting(one.run), one.run.verdict.cost if one.run.verdict else {}
    margins = [check for check in one.run.of_family("accuracy") if check.metric == "token_margin"]
    margin = num(margins[0].observed, margins[0].unit) if margins else num(None)
    told = (one.name, one.run.status, page.headline(worst) if worst else "")
    wall, requests = as_number(cost.get("wall_s")), as_number(cost.get("requests"))
    asked = Item(f"{requests:,.0f}", requests) if requests is not None else num(None)
    return TableRow((*map(text, told), margin, text(wording.duration(wall)), asked), one.run.status)


def _differences(runs: Sequence[Ranked]) -> Section:
    trees = {one.name: {"plan": one.run.plan, "environment": one.run.environment} for one in runs}
    whole = flat_table("differences", "Keys of plan and environment that differ", **trees)
    kept = tuple(row for row in whole.rows if len({item.shown for item in row.items[1:]}) > 1)
    table = Table(whole.name, whole.title, whole.columns, kept)
    return Section(
        "differences",
        "Differences",
        "Differences",
        "Plan and environment, where the runs are not equal.",
        tables=(table,),
    )

"""The page below the first screen: sections of charts and tables, each left out when its data is not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from reports import accuracy_charts, charts, latencies
from reports.calibration import calibration_lead, calibration_table
from reports.contracts import Contract, contracts, contracts_table
from reports.divergence import Scored
from reports.examples import Gallery, furthest
from reports.flips import flipped, options_table, read_flips, tasks_table
from reports.forest import by_margin, forest
from reports.heatmap import severity
from reports.kl_tails import kl_tail
from reports.oracle_tables import divergence_table, oracle_table
from reports.pair_series import PairSeries, place_of
from reports.run_data import Run
from reports.svg import Chart
from reports.table import Table
from reports.tables import (
    cells_table,
    checks_table,
    engine_differences,
    flat_table,
    signals_table,
    visits_table,
)
from reports.task_items import items_table

MAX_PROFILES = 10  # with charts of their own; the tables have all
MAX_DISTRIBUTIONS = 3  # cells, the ones closest to their bars


@dataclass(frozen=True)
class Section:
    """`legend` names the arms whose line styles the charts use."""

    name: str
    title: str
    short: str
    lead: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    galleries: tuple[Gallery, ...] = ()
    legend: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = ()
    matrix: tuple[Contract, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.charts or any(table.rows for table in self.tables) or self.galleries)


def sections(run: Run, series: PairSeries, scored: dict[str, Scored]) -> list[Section]:
    """All sections that have something to say, in reading order; `scored` as `divergence.read_scored` gives it."""
    made = [
        _checks(run),
        _load(run, series),
        _distributions(run),
        _pairs(run, series),
        *([_measured(run, series)] if run.verdict else []),  # a sweep's stands on the first screen
        _accuracy(run, scored),
        _honesty(run),
        _machine(run),
        _plan(run),
    ]
    return [section for section in made if not section.is_empty]


def _present(found: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in found if chart)


def profiles_closest_to_the_bar(run: Run) -> list[str]:
    """Profiles to draw, the ones in trouble first when not all fit, else in the plan's order."""
    names = list(dict.fromkeys(cell.profile for cell in run.cells))
    if len(names) <= MAX_PROFILES:
        return names
    worst: dict[str, tuple[int, float]] = {}
    for check in run.of_family("speed"):
        profile = (check.cell or "").rpartition("/")[0]
        worst[profile] = min(worst.get(profile, (9, 0.0)), severity(check))
    return sorted(names, key=lambda name: worst.get(name, (9, 0.0)))[:MAX_PROFILES]


def _checks(run: Run) -> Section:
    table = checks_table("checks", "Every check", run.checks)
    power = str(run.verdict.power.get("sentence") or "") if run.verdict else ""
    notes = run.verdict.notes if run.verdict else ()
    drawn = tuple(forest(run.checks))
    return Section("checks", "Every check", "Checks", power, drawn, (table,), notes=notes)


def _left_out(run: Run) -> str:
    count = len({cell.profile for cell in run.cells}) - MAX_PROFILES
    return f" Drawn: the {MAX_PROFILES} profiles closest to their bars; the tables have all." if count > 0 else ""


def _load(run: Run, series: PairSeries) -> Section:
    """One row of three charts a profile."""
    drawn = []
    for name in profiles_closest_to_the_bar(run):
        drawn += [
            charts.pareto(run, series, name, run.arms),
            charts.latency_by_load(run, series, name, "ttft", run.arms),
            charts.latency_by_load(run, series, name, "tpot", run.arms),
        ]
    lead = (
        "What the engine delivers in all against how fast each user sees text, and what a request waits as load grows."
        + (" Bands and crosses: range over pairs." if run.pairs > 1 else "")
        + _left_out(run)
    )
    return Section("load", "Under load", "Load", lead, _present(drawn), legend=_legend(run))


def _legend(run: Run) -> tuple[str, ...]:
    return tuple(sorted(run.arms, key=lambda arm: arm != "candidate"))


def _distributions(run: Run) -> Section:
    cells = [check.cell for check in by_margin(run.of_family("speed")) if check.cell]
    chosen = list(dict.fromkeys([*cells, *(cell.name for cell in run.cells)]))[:MAX_DISTRIBUTIONS]
    asked = latencies.read_latencies(run, chosen)
    places = [(cell, metric) for metric in ("ttft", "tpot") for cell in chosen]
    if len(chosen) < MAX_DISTRIBUTIONS:  # two columns: a row a cell; three columns: a row a metric
        places.sort(key=lambda place: chosen.index(place[0]))
    drawn = _present(latencies.distribution(cell, metric, asked, run.arms) for cell, metric in places)
    lead = "Every request of a cell, for the shape."
    if run.verdict:
        lead = "Requests of all pairs together, for their shape; the verdict rests on pairs, not on these."
    if len(run.cells) > len(chosen):
        which = f"{len(chosen)} cells closest to their bars" if cells else f"first {len(chosen)} cells"
        lead += f" Drawn: the {which}."
    return Section("distributions", "Distributions", "Distributions", lead, drawn, legend=_legend(run))


def _pairs(run: Run, series: PairSeries) -> Section:
    bars = {c.metric: c.required for c in run.of_family("speed") if c.unit == "x"}
    closest = by_margin(run.of_family("speed"))
    bold = {check.metric: check.cell for check in reversed(closest)}
    metrics = sorted(bars, key=place_of) or ["ttft.p50", "tpot.p50", "output_throughput"]
    drawn = _present(charts.pairs_in_order(run, series, m, bars.get(m), bold.get(m)) for m in metrics)
    lead = "A pair is one visit to each engine on the same requests. A trend here is drift, a jump is a thermal step."
    return Section("pairs", "Pair by pair, in run order", "Pairs", lead, drawn)


def _measured(run: Run, series: PairSeries) -> Section:
    return Section(
        "measured", "Measured", "Measured", "Median over pairs; in small, the range over pairs.",
        tables=(cells_table(run, series),),
    )  # fmt: skip


def _accuracy(run: Run, scored: dict[str, Scored]) -> Section:
    flips = read_flips(run)
    drawn = _present([*accuracy_charts.divergence_charts(scored), kl_tail(run)])
    lead = (
        "The timed answers themselves, token by token under the BF16 reference."
        if scored
        else "No answer of this run was scored under a reference, so nothing is known about accuracy."
    )
    every = () if run.held_out else (items_table(run), items_table(run, "options"))
    tables = (tasks_table(run, flips), options_table(run), *every, divergence_table(scored), oracle_table(run))
    arms = tuple(arm for arm in ("candidate", "baseline", "floor") if arm in scored)
    told = () if run.held_out else (flipped(run, flips), furthest(run))
    shown = tuple(gallery for gallery in told if gallery.examples)
    return Section("accuracy", "As right", "Accuracy", lead, drawn, tables, shown, arms)


def _honesty(run: Run) -> Section:
    found = contracts(run)
    lead = (
        "Contracts tested on the timed responses of both engines. “Finds from” is a check's power: the smallest share "
        "of misbehaving requests that it finds 95 times in 100."
    )
    return Section("honesty", "Honest", "Honesty", lead, tables=(contracts_table(found),), matrix=found)


def _machine(run: Run) -> Section:
    environment = flat_table("environment", "What the run stood on", value=run.environment)
    engines = flat_table("engines", "What the engines say of themselves", **run.engines)
    signals, visits = signals_table(run), visits_table(run)
    tables = (calibration_table(run), signals, visits, engine_differences(run), engines, environment)
    return Section("machine", "Client, engines and machine", "Machine", calibration_lead(run), tables=tables)


def _plan(run: Run) -> Section:
    hashes = run.verdict.hashes if run.verdict else {}
    tables = (
        flat_table("plan", "Plan, every default filled in", value=run.plan),
        flat_table("hashes", "SHA-256", value=hashes),
    )
    return Section("plan", "The plan as run", "Plan", "", tables=tables)

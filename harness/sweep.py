"""A sweep: several endpoints under several loads, through the gate's own stages, without a verdict.

A group is one profile in one round: every endpoint is visited once for it, adjacent in time, on the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import pipeline, processes
from harness.capacity import know_capacity, unknown_capacity
from harness.cells import Cell, make_cells, use_profile
from harness.client_bias import bias_notes, calibrate_run, read_bias
from harness.doctor import candidate_shapes
from harness.endpoint import Engines
from harness.errors import InvalidRun
from harness.progress import Progress
from harness.run_store import RunStore
from harness.search import Search, search_rate
from harness.sweep_plan import SweepPlan, make_sweep
from harness.sweep_results import Row, collect, write_results
from harness.time_left import AIPERF_START_S, GUESS, TimeLeft, expected_s, in_words, timings, visit_s
from harness.traffic import check_aiperf
from harness.traffic_plan import stored_data
from traffic_profiles.lengths import Lengths

MOST_STREAMS = 32  # of the questions before a dry run


@dataclass(frozen=True)
class Group:
    """What one visit to each endpoint drives."""

    number: int
    cells: tuple[Cell, ...]


def check(plan: SweepPlan) -> tuple[Cell, ...]:
    """The cells, once everything that can be refused before anything runs has been asked."""
    check_aiperf()
    pipeline.read_tokenizer((plan.tokenizer_path or Path()) / "tokenizer.json")
    return make_cells(plan)


def groups(plan: SweepPlan, cells: Sequence[Cell]) -> tuple[Group, ...]:
    """The groups in the order they are driven: round by round, profile by profile."""
    profiles = list(dict.fromkeys(cell.profile.name for cell in cells))
    wanted = [name for _ in range(plan.rounds) for name in profiles]
    return tuple(
        Group(number, tuple(cell for cell in cells if cell.profile.name == name))
        for number, name in enumerate(wanted, start=1)
    )


def sweep(plan: SweepPlan, store: RunStore, progress: Progress) -> tuple[Row, ...]:
    """Run a whole sweep, or what is left of one, and return its rows; everything else is in the run directory."""
    processes.end_orphans()
    check(plan)
    with Engines(plan, store.root / "engines") as engines:
        plan = know_capacity(plan, store, engines, progress)
        cells = make_cells(plan)
        pipeline.prepare(plan, store)
        planned = groups(plan, cells)
        _drive(plan, planned, store, engines, progress)
        searches = _search(plan, len(planned) + 1, store, engines, progress)
    cells = (*cells, *{cell.name: cell for search in searches for cell in search.cells}.values())
    if plan.calibrate and not store.finished("calibration"):
        store.record("calibration", calibrate_run(plan, cells, plan.arms, store, progress))
    progress("writing the table, the charts and the report", 1.0)
    rows = collect(plan, cells, store.root, bias_notes(cells, read_bias(store.root)))
    write_results(rows, searches, store.root)
    store.write_manifest()
    return rows


def _search(plan: SweepPlan, first: int, store: RunStore, engines: Engines, progress: Progress) -> tuple[Search, ...]:
    """Every search of the plan, endpoint by endpoint; groups are numbered on from `first`."""
    found: list[Search] = []
    for use in plan.profiles:
        profile = use_profile(plan, use)
        if not profile.search or use.request_rate:
            continue
        for arm in plan.arms:
            number = first + sum(len(search.cells) for search in found)
            found.append(search_rate(plan, profile, arm, number, store, engines, progress))
    return tuple(found)


def _drive(plan: SweepPlan, planned: Sequence[Group], store: RunStore, engines: Engines, progress: Progress) -> None:
    ahead = [group for group in planned for arm in plan.arms if not store.finished(f"visit/{group.number:02d}/{arm}")]
    left = TimeLeft(progress, [visit_s(group.cells) for group in ahead])
    for group in planned:
        pipeline.make_workload(plan, group.cells, group.number, store, left)
        pipeline.drive_pair(plan, group.cells, group.number, store, engines, left)
        pipeline.measure_pair(plan, group.cells, group.number, store, left)


def dry_run(plan: SweepPlan, progress: Progress) -> str:
    """Every cell with its requests, tokens and expected time. Starts nothing; asks the endpoints that answer."""
    cells = make_cells(plan)
    planned = groups(plan, cells)
    seen = {arm: _asked(plan, arm, cells, progress) for arm in plan.arms}
    lines = [f"{'cell':<32}{'requests':>10}{'tokens in':>12}{'out <=':>12}   expected"]
    for cell in cells:
        times = "  ".join(f"{arm} {in_words(expected_s(cell, seen[arm] or GUESS))}" for arm in plan.arms)
        tokens_in, tokens_out = (round(cell.request_count * lengths.mean) for lengths in _lengths(cell))
        lines.append(f"{cell.name:<32}{cell.request_count:>10,}{tokens_in:>12,}{tokens_out:>12,}   {times}")
    whole = sum(visit_s(group.cells, seen[arm] or GUESS) for group in planned for arm in plan.arms)
    visits = len(planned) * len(plan.arms)
    lines.append(f"{visits} visits, about {in_words(whole)} in all with {AIPERF_START_S} s of AIPerf's start each.")
    silent = [arm for arm in plan.arms if not seen[arm]]
    if silent:
        lines.append(f"{', '.join(silent)}: does not answer yet, so 15 ms a token is guessed.")
    if unmeasured := unknown_capacity(plan):
        names = ", ".join(use.name for use in unmeasured)
        lines.append(f"{names}: rates as if {plan.arms[0]} sustained 1 request/s; it is measured first.")
    return "\n".join(lines)


def _lengths(cell: Cell) -> tuple[Lengths, Lengths]:
    return cell.profile.isl, cell.profile.osl


def _asked(plan: SweepPlan, arm: str, cells: Sequence[Cell], progress: Progress) -> dict[int, tuple[float, float]]:
    """How the endpoint streams at the smallest and the largest concurrency; nothing when it does not answer."""
    endpoint = plan.endpoint(arm)
    loads = [cell.concurrency for cell in cells if cell.concurrency]
    asked = sorted({min(loads, default=1), min(max(loads, default=1), MOST_STREAMS)})
    progress(f"{arm}: asking a few short questions")
    try:
        return timings(
            candidate_shapes(endpoint.all_urls[0], plan.served_model(arm), asked, api_key_env=endpoint.api_key_env)
        )
    except InvalidRun:
        return {}


def stored_sweep(root: Path) -> SweepPlan:
    """The plan that a sweep's run directory was made with."""
    return make_sweep(stored_data(root, "sweep"), source=f"{root}/plan.yaml", folder=root)

"""The highest rate at which an endpoint keeps its promises: an open loop at rising rates, then bisection.

Every rate that is tried is a group of a sweep: one AIPerf visit of its own, measured and kept like any other. Which
rate is next follows from what lies on disk, so a search that was killed goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness import pipeline
from harness.cells import Cell
from harness.endpoint import Engines
from harness.measurement import VisitMeasurement
from harness.progress import Progress
from harness.run_store import RunStore, read_json
from harness.sweep_plan import SweepPlan
from traffic_profiles.profile import TrafficProfile

FASTER = 4.0  # from one rate to the next while all is well
CLOSE = 1.15  # the highest good rate and the lowest bad one are then near enough


@dataclass(frozen=True)
class Search:
    """What was found. `rate` None: not even the lowest rate was good; `open_end`: the highest one still was."""

    endpoint: str
    profile: str
    rate: float | None
    open_end: bool
    shares: dict[float, float]
    cells: tuple[Cell, ...]


def climb(lowest: float, highest: float, is_good: Callable[[float], bool]) -> tuple[float | None, bool]:
    """(the highest good rate, whether that is `highest`): times FASTER up to the first bad one, then bisection.

    `is_good` must not be bad below a rate where it is good; each rate is asked once.
    """
    good, bad = None, None
    rate = lowest
    while bad is None:
        if not is_good(rate):
            bad = rate
        elif rate >= highest:
            return rate, True
        else:
            good, rate = rate, min(highest, _rounded(rate * FASTER))
    while good is not None and bad / good > CLOSE:
        middle = _rounded((good * bad) ** 0.5)
        if not good < middle < bad:
            break
        good, bad = (middle, bad) if is_good(middle) else (good, middle)
    return good, False


def search_rate(
    plan: SweepPlan,
    profile: TrafficProfile,
    arm: str,
    first: int,
    store: RunStore,
    engines: Engines,
    progress: Progress,
) -> Search:
    """Search one endpoint's highest rate; its groups are numbered from `first` on."""
    alone = plan.model_copy(update={"endpoints": {arm: plan.endpoint(arm)}})
    shares: dict[float, float] = {}
    cells: list[Cell] = []

    def is_good(rate: float) -> bool:
        number = first + len(cells)
        cell = Cell(profile, None, rate, profile.requests_for(rate))
        cells.append(cell)

        def say(doing: str, share: float | None = None) -> None:
            progress(f"{profile.name} at {rate:g}/s, {doing.partition(', ')[2] or doing}", share)

        pipeline.make_workload(alone, [cell], number, store, say)
        pipeline.drive_pair(alone, [cell], number, store, engines, say)
        pipeline.measure_pair(alone, [cell], number, store, say)
        path = store.root / "pairs" / f"{number:02d}" / arm / "measurements.json"
        measured = VisitMeasurement.model_validate(read_json(path)).cells[cell.name]
        shares[rate] = (measured.goodput or 0.0) * measured.duration_s / measured.asked
        return shares[rate] >= (profile.slo.share if profile.slo else 1.0) - 1e-9

    lowest, highest = profile.request_rate
    rate, open_end = climb(lowest, highest, is_good)
    return Search(arm, profile.name, rate, open_end, shares, tuple(cells))


def _rounded(rate: float) -> float:
    """Three digits: a rate is part of a cell's name."""
    return float(f"{rate:.3g}")

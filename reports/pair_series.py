"""Numbers of a run lined up over its pairs: what tables and charts draw from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from reports.run_data import LATENCIES, Run, measured
from reports.values import as_dict, as_number

SHOWN = (
    "ttft.p50", "ttft.p95", "tpot.p50", "tpot.p95", "request_latency.p50", "request_latency.p95",
    "output_throughput", "throughput_per_gpu", "output_throughput_per_user", "request_throughput", "goodput",
)  # fmt: skip
UNITS = {
    "output_throughput": "tokens/s", "throughput_per_gpu": "tokens/s/GPU",
    "output_throughput_per_user": "tokens/s/user", "request_throughput": "requests/s", "goodput": "requests/s",
    "ttft": "ms", "tpot": "ms", "request_latency": "ms",
}  # fmt: skip


def place_of(metric: str) -> int:
    """Where a metric stands in the order that every table and chart keeps."""
    return SHOWN.index(metric) if metric in SHOWN else len(SHOWN)


def unit_of(metric: str) -> str:
    """The metric's own unit."""
    return UNITS.get(metric.partition(".")[0], "")


@dataclass(frozen=True)
class Spread:
    """A number measured once a visit: its median over pairs and its range (definitions.py, `band`)."""

    median: float
    low: float
    high: float
    n: int


class PairSeries:
    """Index of a run's visits by arm and pair."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._visits = {(visit.arm, visit.pair): visit for visit in run.visits}

    @cached_property
    def pairs(self) -> tuple[int, ...]:
        """Numbers of all pairs, in order."""
        return tuple(sorted({pair for _, pair in self._visits}))

    def gpus(self, arm: str) -> int:
        """GPUs the plan gives an arm; 0 when it does not say."""
        endpoint = as_dict(as_dict(self._run.plan.get("endpoints")).get(arm))
        return int(as_number(endpoint.get("gpus")) or 0)

    def value(self, arm: str, pair: int, cell: str, metric: str) -> float | None:
        """One visit's number."""
        visit = self._visits.get((arm, pair))
        found = visit.cells.get(cell) if visit else None
        return measured(found, metric, self.gpus(arm)) if found else None

    def values(self, arm: str, cell: str, metric: str) -> list[float]:
        """The number in every pair that has it."""
        found = (self.value(arm, pair, cell, metric) for pair in self.pairs)
        return [value for value in found if value is not None]

    def spread(self, arm: str, cell: str, metric: str) -> Spread | None:
        """Median and range over pairs; None when no pair has the number."""
        values = self.values(arm, cell, metric)
        return Spread(median(values), min(values), max(values), len(values)) if values else None

    def ratios(self, cell: str, metric: str) -> list[tuple[int, float]]:
        """(pair, speed-up of the candidate) for every pair that has both numbers; larger is better."""
        return list(self._ratios(cell, metric))

    def _ratios(self, cell: str, metric: str) -> Iterator[tuple[int, float]]:
        slower_is_larger = metric.partition(".")[0] in LATENCIES
        for pair in self.pairs:
            baseline, candidate = (self.value(arm, pair, cell, metric) for arm in ("baseline", "candidate"))
            if baseline and candidate and min(baseline, candidate) > 0:
                yield pair, baseline / candidate if slower_is_larger else candidate / baseline

    def candidate_first(self, pair: int) -> bool | None:
        """Whether the candidate's visit of this pair came first."""
        slots = [self._visits[arm, pair].slot for arm in ("candidate", "baseline") if (arm, pair) in self._visits]
        return slots[0] < slots[1] if len(slots) == 2 else None

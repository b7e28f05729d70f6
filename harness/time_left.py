"""How long a sweep still takes: a progress that knows every visit to come, not only the one in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from harness.calibration_visit import Shape
from harness.cells import Cell
from harness.progress import Progress
from traffic_profiles.arrivals import read_arrivals, requests_per_s

AIPERF_START_S = 18  # docs/metrics.md: 12 to 20 s before the first request
GUESS = {1: (100.0, 15.0)}  # TTFT and TPOT in ms of an engine that nobody asked yet


def timings(shapes: Sequence[Shape]) -> dict[int, tuple[float, float]]:
    """Concurrency -> (TTFT ms, TPOT ms), as an endpoint answered a few short questions."""
    return {shape.concurrency: (shape.ttft_ms, shape.tpot_ms) for shape in shapes}


def expected_s(cell: Cell, seen: Mapping[int, tuple[float, float]] = GUESS) -> float:
    """Seconds that a cell takes at the timing seen at the nearest concurrency; an open loop takes what it takes.

    Long prompts are not in `seen`, so this is a lower estimate for them.
    """
    profile = cell.profile
    if profile.trace:
        return cell.request_count / requests_per_s(read_arrivals(profile.trace, profile.path, cell.request_count))
    if cell.request_rate is not None:
        return cell.request_count / cell.request_rate
    in_flight = cell.concurrency or 1
    ttft_ms, tpot_ms = seen[min(seen, key=lambda known: abs(known - in_flight))]
    turns = -(-cell.request_count // in_flight)
    return turns * (ttft_ms + tpot_ms * profile.osl.mean) / 1e3


def visit_s(cells: Sequence[Cell], seen: Mapping[int, tuple[float, float]] = GUESS) -> float:
    """Seconds of one visit: AIPerf's start and every cell."""
    return AIPERF_START_S + sum(expected_s(cell, seen) for cell in cells)


def in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class TimeLeft:
    """Passes a stage's words on, with the share of the whole run and the time left.

    `weights` are the visits still to come, in their order, in any unit that grows with their time. A visit is over
    when, after it told its share, something else begins.
    """

    def __init__(self, progress: Progress, weights: Sequence[float]) -> None:
        self._progress, self._weights = progress, list(weights)
        self._done, self._at, self._driving = 0.0, 0, False
        self._whole = sum(weights) or 1.0
        self._began = time.monotonic()

    def __call__(self, doing: str, share: float | None = None) -> None:
        """Take a stage's own progress."""
        if share is None:
            if self._driving:
                self._done += self._weights[self._at] if self._at < len(self._weights) else 0.0
                self._at += 1
            self._driving = False
            self._progress(doing, min(1.0, self._done / self._whole))
            return
        self._driving = True
        now = self._weights[self._at] if self._at < len(self._weights) else 0.0
        done = min(1.0, (self._done + share * now) / self._whole)
        spent = time.monotonic() - self._began
        # The first seconds are AIPerf's start, and no pace can be read from them.
        left = f"; about {in_words(spent * (1 - done) / done)} left" if done > 0.02 and spent > 20 else ""
        self._progress(doing + left, done)

"""Cells: what is judged, one profile under one load; and which ones a plan asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UsageError
from harness.traffic_plan import ProfileUse, TrafficPlan
from traffic_profiles.profile import ProfileError, TrafficProfile, load_profile


@dataclass(frozen=True)
class Cell:
    """What is judged: one profile under one load."""

    profile: TrafficProfile
    concurrency: int | None
    request_rate: float | None
    request_count: int
    task_share: float | None = None  # None: the plan's

    @property
    def name(self) -> str:
        """`profile/c8`, `profile/r2.5`, or `profile/t0.5` for a trace at half its pace."""
        trace = self.profile.trace
        load = f"r{self.request_rate:g}" if self.request_rate is not None else f"c{self.concurrency}"
        return f"{self.profile.name}/{f't{trace.speedup_ratio:g}' if trace else load}"

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by the clock, not when an answer is back."""
        return self.request_rate is not None or self.profile.trace is not None

    @property
    def conversations(self) -> int:
        """How many conversations the load has; single requests are one each."""
        return max(1, self.request_count // turns_of(self.profile))


def turns_of(profile: TrafficProfile) -> int:
    """Requests that one conversation sends: the turns of a live one, otherwise one."""
    live = profile.turns is not None and profile.turns.history == "live"
    return round(profile.turns.count.mean) if live and profile.turns else 1


def phase_name(cell: str) -> str:
    """AIPerf's name for a cell: a letter first, then letters, digits, dashes and underscores."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cell.replace("/", "--"))
    return name if name[0].isalpha() else f"p{name}"


def make_cells(plan: TrafficPlan) -> tuple[Cell, ...]:
    """Every cell of the plan in plan order; UsageError for an unknown or unfit profile."""
    cells: list[Cell] = []
    for use in plan.profiles:
        profile = use_profile(plan, use)
        if profile.search and not use.request_rate:
            if plan.searches:
                continue  # harness.search makes its cells, a rate at a time
            raise UsageError(
                f"profiles: {profile.name} searches its rate, and both arms of a gate must be asked the same: find it "
                f"by enginegate sweep --profile {use.name}, then give request_rate."
            )
        if profile.needs_capacity and not use.request_rate:
            # Until it is measured (harness.capacity, before anything is driven) one request a second stands for it.
            profile = profile.at_capacity(use.capacity_per_s or 1.0)
        cells += _cells_of(profile, use, plan.min_requests)
    names = [cell.name for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"profiles: the cell {twice[0]} appears twice; keep one of them.")
    return tuple(cells)


def use_profile(plan: TrafficPlan, use: ProfileUse) -> TrafficProfile:
    """The profile that a use names, in its tier; UsageError when there is none."""
    try:
        return load_profile(use.name, tier=use.tier or plan.tier)
    except ProfileError as error:
        raise UsageError(f"profiles: {error}") from None


def _cells_of(profile: TrafficProfile, use: ProfileUse, fewest: int) -> list[Cell]:
    _check_use(profile, use)
    turns = turns_of(profile)

    def count(load: float) -> int:
        if use.request_count:
            return turns * max(1, round(use.request_count / turns))
        return turns * max(profile.requests_for(load), -(-fewest // turns))

    share = use.task_share
    if profile.trace:
        return [Cell(profile, None, None, count(0.0), share)]
    closed = [Cell(profile, c, None, count(c), share) for c in use.concurrency or profile.concurrency or ()]
    open_loop = [Cell(profile, None, r, count(r), share) for r in use.request_rate or profile.request_rate or ()]
    return closed + open_loop


def _check_use(profile: TrafficProfile, use: ProfileUse) -> None:
    """UsageError for a use that does not fit the profile."""
    if profile.trace and (use.concurrency or use.request_rate):
        raise UsageError(
            f"profiles: {profile.name} is driven by its trace; change trace.speedup_ratio in a copy of the file."
        )
    if (use.concurrency and profile.request_rate) or (use.request_rate and profile.concurrency):
        kind = "request_rate" if profile.request_rate else "concurrency"
        raise UsageError(f"profiles: {profile.name} is driven by {kind}; give {kind} for it.")
    turns = profile.turns
    if turns and turns.history == "live" and turns.count.longest != turns.count.shortest:
        raise UsageError(
            f"profiles: {profile.name} has live conversations of {turns.count} turns; both arms must be asked equally "
            "often, so give turns.count as one number."
        )

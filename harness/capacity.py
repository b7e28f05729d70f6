"""How many requests per second the baseline sustains: what rates given as shares of its capacity are shares of.

Measured once, before the first pair: the profile's own requests, as many in flight as an engine can use, closed loop.
The answer becomes part of the resolved plan, so everything after it (a resume, a recheck) needs no engine to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness.cells import Cell, use_profile
from harness.endpoint import Engines
from harness.errors import InvalidRun
from harness.measurement import measure_visit
from harness.parts import Part
from harness.preflight import preflight
from harness.progress import Progress
from harness.raw_export import write_requests
from harness.run_store import RunStore, read_json, write_bytes, write_json
from harness.traffic import Visit, run_visit
from harness.traffic_plan import ProfileUse, TrafficPlan, dump_plan
from harness.workload import seed_for, write_load
from traffic_profiles.profile import TrafficProfile
from traffic_profiles.requests import RequestSpec, make_requests

IN_FLIGHT = 32
REQUESTS = 3 * IN_FLIGHT
P = TypeVar("P", bound=TrafficPlan)


def know_capacity(plan: P, store: RunStore, engines: Engines, progress: Progress) -> P:
    """The plan with every capacity that it needs, measured where it does not say; plan.yaml holds the same.

    Raises InvalidRun when the first arm (the baseline) serves nothing.
    """
    if not unknown_capacity(plan):
        return plan
    if not (store.root / "plan.yaml").exists():
        write_bytes(store.root / "plan.yaml", dump_plan(plan).encode())  # what makes the folder a run to go on with
    unknown = unknown_capacity(plan)

    def measured(use: ProfileUse) -> ProfileUse:
        return use.model_copy(update={"capacity_per_s": _measured(plan, use, store, engines, progress)})

    uses = tuple(measured(use) if use in unknown else use for use in plan.profiles)
    known = plan.model_copy(update={"profiles": uses})
    write_bytes(store.root / "plan.yaml", dump_plan(known).encode())
    return known


def unknown_capacity(plan: TrafficPlan) -> tuple[ProfileUse, ...]:
    """Uses of profiles whose rates are shares of a capacity that the plan does not say."""
    return tuple(
        use
        for use in plan.profiles
        if use.capacity_per_s is None and not use.request_rate and use_profile(plan, use).needs_capacity
    )


def _measured(plan: TrafficPlan, use: ProfileUse, store: RunStore, engines: Engines, progress: Progress) -> float:
    profile, arm = use_profile(plan, use), plan.arms[0]
    folder, step = store.root / "capacity" / profile.name, f"capacity/{profile.name}"
    told = folder / "capacity.json"
    if not store.finished(step):
        tokenizer = Tokenizer.from_file(str((plan.tokenizer_path or Path()) / "tokenizer.json"))
        cell = _write(plan, profile, folder, lambda text: len(tokenizer.encode(text).ids))
        visit = Visit(plan, arm, 0, 0, [Part(1, "raw_payload", 0, 0, (cell,))], folder / arm)
        with engines.serving(arm):
            preflight(plan, arm, store, progress)
            run_visit(visit, lambda done: progress(f"capacity of {arm} in {profile.name}", min(1.0, done / REQUESTS)))
        write_requests(folder / arm / "aiperf", folder / "workload.parquet", tokenizer, folder / "requests.parquet")
        measured = measure_visit(pq.read_table(folder / "requests.parquet"), pair=0, role=arm, slot=0, slos={})
        found = measured.cells[cell.name]
        if not found.request_throughput:
            raise InvalidRun(f"{arm} served none of {REQUESTS} requests of {profile.name}: it has no capacity.")
        facts = {"arm": arm, "requests_per_s": found.request_throughput, "served": found.served, "asked": found.asked}
        write_json(told, facts | {"concurrency": IN_FLIGHT})
        store.record(step, [told])
    return round(float(read_json(told)["requests_per_s"]), 3)


def _write(plan: TrafficPlan, profile: TrafficProfile, folder: Path, count_tokens: Callable[[str], int]) -> Cell:
    """The profile's requests as a closed loop: their texts and lengths stay, times and rates go."""
    specs: Sequence[RequestSpec] = make_requests(
        profile, count=REQUESTS, seed=seed_for(plan, 0, f"capacity/{profile.name}"), count_tokens=count_tokens
    )
    loop = profile.model_copy(update={"trace": None, "request_rate": (), "concurrency": (IN_FLIGHT,), "search": None})
    cell = Cell(loop, IN_FLIGHT, None, len(specs))
    write_load(plan, cell, specs, folder)
    return cell

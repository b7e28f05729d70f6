"""Before an arm's first visit: what it must be able to do for this plan, asked in a few small requests.

A context that is too short, or a server that ends fixed-length answers where it likes, would cost hours to find in the
results. What the candidate alone cannot do is not found here but in its answers: that is its FAIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import Field

from harness.cells import Cell, make_cells
from harness.endpoint import authorization
from harness.errors import InvalidRun, UsageError
from harness.measurement import Arm
from harness.plan import Plan
from harness.probes import Capability, Support, Target
from harness.probes.client import HttpClient
from harness.probes.control import RESETS, declared_context, fixed_length
from harness.progress import Progress
from harness.run_store import RunStore, read_json, write_json
from harness.traffic_plan import TrafficPlan
from harness.verdict import Record
from traffic_profiles.profile import ProfileError

REFUSES = frozenset({Support.IGNORED, Support.REFUSED, Support.WRONG})


class Preflight(Record):
    """preflight/<arm>.json: what was asked of every replica; the least able one counts."""

    context_tokens: int | None = Field(None, description="smallest declared context; null when none is declared")
    fixed_length: Capability | None = Field(None, description="null when no cell asks for answers of a fixed length")
    cache_reset: dict[str, str] = Field(default_factory=dict, description="URL -> path that empties its prefix cache")


def preflight(plan: TrafficPlan, arm: Arm, store: RunStore, progress: Progress) -> None:
    """Ask the arm once, refuse what it cannot do, and empty its prefix cache where it offers that.

    Raises UsageError for a context that is too short, InvalidRun for fixed-length cells that would not be.
    """
    path, step = store.root / "preflight" / f"{arm}.json", f"preflight/{arm}"
    cells = make_cells(plan)
    if not store.finished(step):
        progress(f"{arm}: asking what it can do")
        write_json(path, asyncio.run(_ask(plan, arm, cells)))
        store.record(step, [path])
    found = Preflight.model_validate(read_json(path))
    _refuse(plan, arm, cells, found)
    asyncio.run(_empty(plan, arm, found.cache_reset))


def _refuse(plan: TrafficPlan, arm: Arm, cells: tuple[Cell, ...], found: Preflight) -> None:
    for profile in {cell.profile.name: cell.profile for cell in cells}.values():
        try:
            if found.context_tokens is not None:
                profile.check_context(found.context_tokens)
        except ProfileError as error:
            raise UsageError(f"{arm}: {error}") from None
    fixed = [cell.name for cell in cells if cell.profile.stop == "fixed"]
    told = found.fixed_length
    judged_by_answers = isinstance(plan, Plan) and arm == "candidate"
    if fixed and told is not None and told.support in REFUSES and not judged_by_answers:
        raise InvalidRun(
            f"{arm}: {fixed[0]} asks for answers of a fixed length, and this endpoint does not obey ignore_eos and "
            f"min_tokens ({told.detail}). Take {fixed[0].partition('-fixed')[0]}, whose answers end by themselves."
        )


async def _ask(plan: TrafficPlan, arm: Arm, cells: tuple[Cell, ...]) -> Preflight:
    contexts: list[int] = []
    resets: dict[str, str] = {}
    obeys: list[Capability] = []
    for url in plan.endpoint(arm).all_urls:
        target = Target(_client(plan, arm, url), plan.served_model(arm))
        context = await declared_context(target)
        contexts += [context] if context is not None else []
        for path in RESETS:
            if (await target.client.ask(path, {})).status == 200:
                resets[url] = path
                break
        if any(cell.profile.stop == "fixed" for cell in cells):
            obeys.append(await fixed_length(target, plan.endpoint(arm).api))
    worst = next((found for found in obeys if found.support in REFUSES), obeys[0] if obeys else None)
    return Preflight(context_tokens=min(contexts, default=None), fixed_length=worst, cache_reset=resets)


async def _empty(plan: TrafficPlan, arm: Arm, resets: Mapping[str, str]) -> None:
    for url, path in resets.items():
        await _client(plan, arm, url).ask(path, {})


def _client(plan: TrafficPlan, arm: Arm, url: str) -> HttpClient:
    return HttpClient(url, authorization(plan.endpoint(arm)), plan.request_timeout_s)

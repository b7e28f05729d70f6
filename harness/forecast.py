"""`gate --dry-run`: what a plan resolves to, what it will send, what it can decide. Starts nothing."""

from __future__ import annotations

from pathlib import Path

from harness.capacity import unknown_capacity
from harness.cells import make_cells
from harness.judge import all_criteria, speedup_bars
from harness.noise_store import fitting_noise
from harness.option_tasks import planned_options
from harness.plan import Plan
from harness.power import power_ahead
from harness.task_power import option_forecast, task_forecast
from harness.task_stream import per_pair, planned_items
from harness.traffic_plan import dump_plan


def forecast(plan: Plan, runs: Path) -> str:
    """The resolved plan, then every cell with its requests and an upper bound of its output tokens.

    With the noise of an A/A run in the folder `runs`, also the chance that a better engine passes.
    """
    cells = make_cells(plan)
    visits = 2 * plan.pairs[-1]
    lines = [
        dump_plan(plan),
        f"{'cell':<32}{'requests':>10}{'output tokens <=':>18}   (each visit; {visits} visits at most)",
    ]
    for cell in cells:
        requests, tokens = cell.request_count, cell.request_count * cell.profile.osl.longest
        lines.append(f"{cell.name:<32}{requests:>10,}{tokens:>18,}")
    requests = sum(cell.request_count for cell in cells)
    lines.append(f"{'in all':<32}{requests * visits:>10,}   mode: {plan.mode}")
    if plan.timed_tasks:
        items = planned_items(plan, cells)
        bars = [one.value for one in all_criteria(plan) if one.metric == "tasks"]
        rate = per_pair(plan, cells, sum(items.values()))
        lines += ["", *task_forecast(items, rate, plan.pairs, max(bars, default=None))]
    if plan.option_tasks:
        lines += ["", *option_forecast(planned_options(plan))]
    if known := fitting_noise(plan, cells, runs):
        lines += ["", power_ahead(known, speedup_bars(plan, cells), plan.pairs)]
    if unmeasured := unknown_capacity(plan):
        names = ", ".join(use.name for use in unmeasured)
        lines.append(f"{names}: rates as if the baseline sustained 1 request/s; it is measured before the first pair.")
    return "\n".join(lines)

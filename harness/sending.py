"""Did the client send what it was asked to send, when it was asked to? Looks at the judge's own side alone. Pure.

A closed loop is looked at in the baseline only: how fast the candidate answers (or fails) must not decide whether its
run counts. What the client would have done at the candidate's speed is what `client-bias` is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.cells import Cell
from harness.measurement import CellMeasurement
from harness.verdict import Check, Family, Status

FED = 0.90  # least share of the asked requests in flight while some were still to be sent
RATE = 0.02  # how far the sent rate may be off, beside what a random schedule is off by itself
LAG_TOLERANCE = 0.10  # how late AIPerf sent (p99), over the median TTFT
MORE_CPU = "Give the client more cores, or lower the load (enginegate doctor shows what it can measure)."


def sending_checks(
    cell: Cell, baseline: Sequence[CellMeasurement], candidate: Sequence[CellMeasurement]
) -> tuple[Check, ...]:
    """Every check of one cell."""
    if not cell.open_loop:
        return (_kept_busy(cell, baseline),) if (cell.concurrency or 1) > 1 else ()
    both = [*baseline, *candidate]
    in_time = _in_time(cell, both)
    return (_rate(cell, cell.request_rate, both), in_time) if cell.request_rate is not None else (in_time,)


def _kept_busy(cell: Cell, baseline: Sequence[CellMeasurement]) -> Check:
    asked = float(cell.concurrency or 1)
    known = [value for one in baseline if (value := one.signals.get("fed_concurrency")) is not None]
    if not known:
        reason = "Every request was sent at once: none had to follow another."
        return check("kept-busy", cell.name, broken=False, n=len(baseline), reason=reason)
    least = min(known)
    return check(
        "kept-busy",
        cell.name,
        broken=least < FED * asked,
        observed=least / asked,
        required=FED,
        n=len(known),
        reason=f"AIPerf kept {least:.1f} of {asked:.0f} requests in flight while it had more to send (baseline).",
        hint=MORE_CPU,
    )


def _rate(cell: Cell, asked_per_s: float, both: Sequence[CellMeasurement]) -> Check:
    """Sent over asked; n random gaps have a mean that is itself off by one part in the root of n."""
    known = [value / asked_per_s for one in both if (value := one.signals.get("sent_per_s")) is not None]
    spread = 1.0
    if cell.profile.arrival_pattern == "constant":
        spread = 0.0
    elif cell.profile.arrival_smoothness:
        spread = cell.profile.arrival_smoothness**-0.5
    allowed = RATE + 3 * spread / max(cell.request_count - 1, 1) ** 0.5
    worst = min(known, key=lambda share: 1 - abs(1 - share), default=None)
    return check(
        "achieved-rate",
        cell.name,
        broken=worst is None or abs(1 - worst) > allowed,
        observed=worst,
        required=1 - allowed,
        n=len(known),
        reason="The sent rate is not known."
        if worst is None
        else f"Sent {worst:.1%} of the asked {asked_per_s:g} requests/s; {allowed:.0%} off is allowed.",
        hint=MORE_CPU,
    )


def _in_time(cell: Cell, both: Sequence[CellMeasurement]) -> Check:
    pairs = [(one.signals.get("credit_lag_p99_ms"), one.ttft_ms.p50) for one in both]
    worst = max((lag / p50 for lag, p50 in pairs if lag is not None and p50), default=None)
    return check(
        "sent-in-time",
        cell.name,
        broken=worst is None or worst > LAG_TOLERANCE,
        observed=worst,
        required=LAG_TOLERANCE,
        n=len(both),
        reason="AIPerf's own lateness (p99) is "
        + ("not recorded." if worst is None else f"{worst:.0%} of the median TTFT at most."),
        hint=MORE_CPU,
    )


def check(name: str, cell: str | None, *, broken: bool, reason: str, n: int, hint: str = "", **numbers: Any) -> Check:
    """One validity check; the hint is what to do, and only a broken one has it."""
    return Check(
        check=f"{name}@{cell}" if cell else name,
        family=Family.VALIDITY,
        status=Status.INVALID if broken else Status.PASS,
        criterion=name,
        metric=name,
        cell=cell,
        reason=reason,
        hint=hint if broken else "",
        n=n,
        **numbers,
    )

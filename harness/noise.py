"""What an A/A run found, where it may be used again, and what it says about a later gate. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from harness.verdict import Check, Family, Finite, Record, Status


class CheckNoise(Record):
    """One check's noise. A ratio of 1 is what an A/A run should show."""

    check: str
    ratio: Finite
    ci_low: Finite | None
    ci_high: Finite | None
    noise: Finite = Field(description="standard deviation of the log ratio between pairs")


class AaResult(Record):
    """The outcome of an A/A run: `aa.json`."""

    schema_version: Literal[1] = 1
    status: Literal[Status.PASS, Status.INVALID]
    sentence: str
    pairs: int
    correlation: Finite = Field(description="mean correlation between checks, over pairs")
    pairs_needed: int | None = Field(
        description="pairs with which an engine 0.05x over every bar passes 9 times in 10; null over 200"
    )
    checks: tuple[CheckNoise, ...] = Field(description="noisiest first")

    @property
    def line(self) -> str:
        """The one line on stdout, without the run's path."""
        noisiest = f" noise<={self.checks[0].noise:.1%} ({self.checks[0].check})" if self.checks else ""
        needed = f" pairs_needed={self.pairs_needed}" if self.pairs_needed else ""
        return f"AA {self.status.value} {len(self.checks)} checks{noisiest}{needed}"


class KnownNoise(Record):
    """`noise.json`: an A/A run's result, and what a gate must share with it to use it."""

    schema_version: Literal[1] = 1
    run: str
    measured_at: str = Field(description="UTC")
    fits: dict[str, Any] = Field(description="model, baseline, machine and cells: all must be equal")
    result: AaResult


def known_sd(known: KnownNoise | None, checks: list[str]) -> list[float]:
    """Each check's A/A noise in this order, NaN where it was not measured (a limit of the candidate's own, say)."""
    found: Mapping[str, float] = {one.check: one.noise for one in known.result.checks} if known else {}
    return [found.get(check, math.nan) for check in checks]


def machine_check(known: KnownNoise | None) -> tuple[Check, ...]:
    """`machine`: what the A/A run of this baseline on this machine says of it; nothing without one."""
    if known is None:
        return ()
    trusted = known.result.status is Status.PASS
    return (
        Check(
            check="machine",
            family=Family.VALIDITY,
            status=known.result.status,
            criterion="the baseline against itself reads 1",
            metric="machine",
            n=known.result.pairs,
            reason=f"A/A run {known.run} of {known.measured_at}: {known.result.sentence}",
            hint="" if trusted else "Quieten the machine and repeat: enginegate gate PLAN --aa.",
        ),
    )


def noise_notes(known: KnownNoise | None, pairs: int) -> tuple[str, ...]:
    """What the A/A run says about the plan's number of pairs."""
    if known is None or known.result.status is not Status.PASS:
        return ()
    needed = known.result.pairs_needed
    if needed is not None and needed <= pairs:
        return ()
    many = "over 200" if needed is None else str(needed)
    return (
        f"The A/A run {known.run} says that an engine 0.05x over every bar needs {many} pairs to pass nine times in "
        f"ten; the plan has {pairs}.",
    )

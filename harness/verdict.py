"""Check and Verdict: the types behind `verdict.json`, published as `docs/verdict.schema.json`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Status(StrEnum):
    """PASS, FAIL, or why it could not be judged. Only PASS counts as a pass."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class Family(StrEnum):
    """Which half of the question a check answers."""

    SPEED = "speed"
    ACCURACY = "accuracy"
    HONESTY = "honesty"
    VALIDITY = "validity"


class Record(BaseModel):
    """Base of every file format here: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(Record):
    """One criterion judged in one scope. `None` means "no such number", never zero."""

    check: str = Field(description="stable id, e.g. ttft.p50@chat-steady/c8")
    family: Family
    status: Status
    criterion: str = Field(description="the criterion as the user wrote it, e.g. ttft.p50 >= 1.20x")
    metric: str
    cell: str | None = Field(default=None, description="profile/cN or profile/rX; null when the check spans the run")
    unit: str = Field(default="", description="unit of observed and required: x, ms, tokens/s, pt, ...")
    observed: Finite | None = None
    required: Finite | None = None
    ci_low: Finite | None = Field(default=None, description="one-sided lower bound at `confidence`")
    ci_high: Finite | None = Field(default=None, description="one-sided upper bound at `confidence`")
    confidence: Finite = 0.95
    n: int = Field(default=0, description="pairs for speed, documents for accuracy, requests for honesty")
    distance: Finite | None = Field(
        default=None, description="observed over the bar, as a share of the bar; negative = missing"
    )
    noise: Finite | None = Field(
        default=None, description="standard deviation of the log ratio between pairs, or its like"
    )
    distance_noise: Finite | None = Field(default=None, description="distance in standard errors of the estimate")
    baseline: Finite | None = Field(default=None, description="median over pairs in the metric's own unit")
    candidate: Finite | None = Field(default=None, description="median over pairs in the metric's own unit")
    value_unit: str = Field(default="", description="unit of baseline and candidate")
    detectable_rate: Finite | None = Field(
        default=None, description="honesty: share of misbehaving requests that this run finds with 95 % confidence"
    )
    evidence: tuple[str, ...] = Field(default=(), description="paths inside the run directory")
    reason: str = Field(description="one sentence with the numbers that decided")
    hint: str = Field(default="", description="where to look next; cites numbers, never prescribes code")


class Power(Record):
    """What this run could have decided."""

    pairs: int
    max_pairs: int
    chance_to_pass: Finite | None = Field(
        default=None, description="chance that an engine at `assumed_speedup` passes every cell"
    )
    assumed_speedup: Finite | None = None
    pairs_needed: int | None = Field(
        default=None, description="pairs that would decide every open check; null when unknown or none open"
    )
    sentence: str


class Cost(Record):
    """What the run spent."""

    wall_s: Finite
    requests: int
    output_tokens: int
    gpu_minutes: Finite | None = None
    gpu_minutes_left: Finite | None = None


class Verdict(Record):
    """The decision, everything needed to believe it, and what to do next."""

    schema_version: Literal[1] = 1
    status: Status
    mode: Literal["full", "quick"]
    line: str = Field(description="the one line of truth printed on stdout")
    sentence: str = Field(description="why, for a person, with the limiting check")
    passed: int
    judged: int
    checks: tuple[Check, ...]
    failed_first: tuple[str, ...] = Field(default=(), description="ids of checks that stand in the way, worst first")
    power: Power
    cost: Cost
    next_step: str
    notes: tuple[str, ...] = Field(default=(), description="what was not judged, and why")
    hashes: dict[str, str] = Field(
        description="SHA-256 of plan, profiles, criteria, noise floor and the judge's own code"
    )


if __name__ == "__main__":  # docs/verdict.schema.json
    import json
    import sys

    sys.stdout.write(json.dumps(Verdict.model_json_schema(), indent=2) + "\n")

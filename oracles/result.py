"""OracleResult: what every oracle writes to `oracles/<arm>/<oracle>.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Record(BaseModel):
    """Immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Metric(Record):
    """One number with its sample count; an interval where one makes sense (two-sided 95 %)."""

    value: Finite | None
    unit: str
    n: int
    ci_low: Finite | None = None
    ci_high: Finite | None = None


class Finding(Record):
    """One named contract tested on this arm's timed responses.

    `broken` is the engine's fault and never the judge's: the gate turns it into FAIL for the candidate
    and into INVALID for the baseline.
    """

    name: str = Field(description="stable name of the check, e.g. finish-reason, usage-tokens, loops")
    status: Literal["kept", "broken", "unscored"]
    sentence: str
    observed: Finite | None = None
    limit: Finite | None = None
    count: int = Field(0, description="requests that broke it")
    n: int = Field(0, description="requests looked at")
    detectable_rate: Finite | None = Field(None, description="share of misbehaving requests found with 95 % confidence")
    examples: tuple[str, ...] = Field((), description="bounded, hostile text: escape before showing")


class OracleResult(Record):
    """One oracle on one arm. `unscored` carries its reason and no number counts as zero."""

    schema_version: Literal[1] = 1
    oracle: str
    arm: Literal["baseline", "candidate", "floor", "reference", "both"]
    version: int
    status: Literal["scored", "unscored"]
    reason: str = ""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    inputs: dict[str, str] = Field(default_factory=dict, description="what was read -> SHA-256 or revision")
    notes: tuple[str, ...] = ()

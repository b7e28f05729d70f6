"""From request rows to distributions: what one visit measured, cell by cell (`measurements.json`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.verdict import Finite, Record

SCHEMA_VERSION = 1

Role = Literal["baseline", "candidate"]


class Distribution(Record):
    """Per-request values of one latency in one cell.

    Percentiles are over *asked* requests: one that failed counts as infinitely late, so a percentile that
    falls among failures is null. mean, stddev, min, max are over the `count` requests that were served.
    """

    count: int
    mean: Finite | None
    stddev: Finite | None
    min: Finite | None
    p50: Finite | None
    p90: Finite | None
    p95: Finite | None
    p99: Finite | None
    max: Finite | None


class CellMeasurement(Record):
    """One cell of one visit. Rates are null when nothing was served."""

    asked: int
    served: int
    failures: dict[str, int] = Field(description="kind of failure -> requests; see docs/files.md")
    duration_s: Finite
    ttft_ms: Distribution
    tpot_ms: Distribution
    request_latency_ms: Distribution
    output_tokens: int
    output_tokens_source: Literal["ids", "usage", "retokenised", "mixed", "none"]
    output_throughput: Finite | None = Field(description="output tokens per second, whole cell")
    output_throughput_per_user: Finite | None = Field(description="mean over requests of 1000 / tpot_ms")
    request_throughput: Finite | None = Field(description="served requests per second")
    goodput: Finite | None = Field(None, description="served requests per second inside the profile's SLOs")
    signals: dict[str, Finite | None] = Field(
        default_factory=dict, description="validity signals by name, e.g. achieved_concurrency, credit_lag_p99_ms"
    )


class VisitMeasurement(Record):
    """One visit: one AIPerf run against one endpoint."""

    schema_version: Literal[1] = SCHEMA_VERSION
    pair: int
    role: Role
    slot: int = Field(description="position of the visit in the run's order, from 0")
    cells: dict[str, CellMeasurement]

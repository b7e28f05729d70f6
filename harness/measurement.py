"""From request rows to distributions: what one visit measured, cell by cell (`measurements.json`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from harness.run_store import read_json
from harness.verdict import Finite, Record

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Role = Literal["baseline", "candidate"]
Arm = str  # a role, or in a sweep the name of an endpoint; also its folder in a pair


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
    inserted: int = Field(0, description="of the asked: task and audit requests, timed like the load around them")
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

    schema_version: Literal[1] = 1
    pair: int
    role: Arm = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    slot: int = Field(description="position of the visit in the run's order, from 0")
    cells: dict[str, CellMeasurement]


def read_visits(root: Path) -> tuple[VisitMeasurement, ...]:
    """Every visit that a run directory holds measured, in the order of its folders."""
    files = sorted(root.glob("pairs/*/*/measurements.json"))
    return tuple(VisitMeasurement.model_validate(read_json(path)) for path in files)


class Load(Record):
    """What a cell's name says of its load: `profile/c8`, `profile/r2.5` (requests/s), `profile/t1` (a trace's pace)."""

    kind: str
    amount: Finite

    @classmethod
    def of(cls, cell: str) -> Load:
        """The load of a cell by its name; a name without one is a closed loop of one."""
        found = re.fullmatch(r".*/([crt])([0-9.e+-]+)", cell)
        return cls(kind=found[1], amount=float(found[2])) if found else cls(kind="c", amount=1)

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by the clock, not when an answer is back."""
        return self.kind != "c"


class Slo(Record):
    """Limits that make a request good, AIPerf's goodput rule: all that are given must hold."""

    ttft_ms: Finite | None = None
    tpot_ms: Finite | None = None
    request_latency_ms: Finite | None = None


def measure_visit(requests: pa.Table, *, pair: int, role: Arm, slot: int, slos: Mapping[str, Slo]) -> VisitMeasurement:
    """Measure every cell of one visit from its request rows; `slos` by cell name, for goodput.

    In an open loop (`profile/r2.5`, `profile/t1`) latencies count from the instant AIPerf meant to send, so that a
    late client hides no queueing (coordinated omission); in a closed loop from the send itself.
    """
    table = requests.filter(pc.not_equal(requests["kind"], "warmup"))
    cells = {
        str(cell): _measure_cell(table.filter(pc.equal(table["cell"], cell)), str(cell), slos.get(str(cell)))
        for cell in sorted(set(table["cell"].to_pylist()))
    }
    return VisitMeasurement(pair=pair, role=role, slot=slot, cells=cells)


def _measure_cell(rows: pa.Table, cell: str, slo: Slo | None) -> CellMeasurement:
    status = np.array(rows["status"].to_pylist())
    served = status == "ok"
    load = Load.of(cell)
    ttft, tpot, latency = (_numbers(rows, name) for name in ("ttft_ms", "tpot_ms", "request_latency_ms"))
    start = _numbers(rows, "start_s")
    if load.open_loop:
        late = np.nan_to_num(_numbers(rows, "credit_lag_ms"))
        ttft, latency, start = ttft + late, latency + late, start - late / 1e3
    tokens = _numbers(rows, "output_tokens")
    duration = float((start + latency / 1e3)[served].max() - np.nanmin(start)) if served.any() else 0.0
    total = int(tokens[served].sum())
    rate = (lambda amount: float(amount) / duration) if duration > 0 else (lambda _amount: None)
    sources = set(rows.filter(pa.array(served))["output_tokens_source"].to_pylist())
    speeds = 1000 / tpot[served & (tpot > 0)]
    return CellMeasurement(
        asked=len(status),
        inserted=len(status) - rows["kind"].to_pylist().count("load"),
        served=int(served.sum()),
        failures={str(kind): int((status == kind).sum()) for kind in sorted(set(status[~served]))},
        duration_s=duration,
        ttft_ms=_distribution(ttft, served),
        # One-token answers have no TPOT: they are left out, but a failed request stays infinitely late.
        tpot_ms=_distribution(tpot, served & np.isfinite(tpot), asked=~served | np.isfinite(tpot)),
        request_latency_ms=_distribution(latency, served),
        output_tokens=total,
        output_tokens_source=sources.pop() if len(sources) == 1 else ("mixed" if sources else "none"),
        output_throughput=rate(total),
        output_throughput_per_user=float(speeds.mean()) if len(speeds) else None,
        request_throughput=rate(served.sum()),
        goodput=rate((served & _good(slo, ttft, tpot, latency)).sum()) if slo else None,
        signals=_signals(rows, served, duration)
        | _sending(rows, load)
        | {"tpot_drift": _drift(start, np.where(served, tpot, np.nan), load)},
    )


def _distribution(values: Values, served: Flags, asked: Flags | None = None) -> Distribution:
    """Percentiles over asked requests with failures at infinity; linear interpolation, as numpy and AIPerf do."""
    finite = values[served]
    late = int((~served if asked is None else asked & ~served).sum())
    everyone = np.sort(np.concatenate([finite, np.full(late, np.inf)]))

    def percentile(q: float) -> float | None:
        if not len(everyone):
            return None
        position = q / 100 * (len(everyone) - 1)
        below, above = everyone[int(np.floor(position))], everyone[int(np.ceil(position))]
        value = below if below == above else below + (above - below) * (position % 1)
        return float(value) if np.isfinite(value) else None

    def of_finite(statistic: Callable[[Values], Any]) -> float | None:
        return float(statistic(finite)) if len(finite) else None

    return Distribution(
        count=len(finite),
        mean=of_finite(np.mean),
        stddev=float(np.std(finite, ddof=1)) if len(finite) > 1 else None,
        min=of_finite(np.min),
        p50=percentile(50),
        p90=percentile(90),
        p95=percentile(95),
        p99=percentile(99),
        max=of_finite(np.max),
    )


def _good(slo: Slo, ttft: Values, tpot: Values, latency: Values) -> Flags:
    good = np.ones(len(ttft), dtype=bool)
    for values, limit in ((ttft, slo.ttft_ms), (tpot, slo.tpot_ms), (latency, slo.request_latency_ms)):
        if limit is not None:
            good &= ~(values > limit)
    return good


def _sending(rows: pa.Table, load: Load) -> dict[str, float | None]:
    """How well the client did what it was asked to, from send times alone."""
    start, latency = np.sort(_numbers(rows, "start_s")), np.nan_to_num(_numbers(rows, "request_latency_ms")) / 1e3
    start = start[np.isfinite(start)]
    span = start[-1] - start[0] if len(start) > 1 else 0.0
    return {
        "fed_concurrency": _fed(_numbers(rows, "start_s"), latency, load),
        "sent_per_s": _finite((len(start) - 1) / span if span > 0 and load.open_loop else np.nan),
    }


def _fed(start: Values, latency: Values, load: Load) -> float | None:
    """Requests in flight, mean over the time in which the client still had some to send.

    None in open loop, at concurrency 1 (in flight or not, nothing else waits) and where all were sent at once.
    """
    sent = np.isfinite(start)
    start, end = start[sent], (start + latency)[sent]
    if load.open_loop or load.amount < 2 or len(start) <= load.amount:
        return None
    ordered = np.sort(start)
    first, last = ordered[int(load.amount) - 1], ordered[-1]
    busy = np.clip(np.minimum(end, last) - np.maximum(start, first), 0, None).sum()
    return _finite(busy / (last - first) if last > first else np.nan)


def _drift(start: Values, tpot: Values, load: Load) -> float | None:
    """Median TPOT of the later half of the requests over that of the earlier, in send order.

    A closed loop's last `concurrency` requests are left out: while they end, fewer and fewer are in flight, and they
    run faster. None with under four requests in a half.
    """
    ordered = tpot[np.argsort(start, kind="stable")][: len(tpot) - (0 if load.open_loop else int(load.amount) - 1)]
    kept = ordered[np.isfinite(ordered)]
    half = len(kept) // 2
    # An answer that comes all at once has a TPOT of 0, and an engine may give no other.
    earlier = _median(kept[:half]) if half >= 4 else 0.0
    return _finite(_median(kept[half:]) / earlier if earlier > 0 else np.nan)


def _signals(rows: pa.Table, served: Flags, duration: float) -> dict[str, float | None]:
    latency, lag = _numbers(rows, "request_latency_ms"), _numbers(rows, "credit_lag_ms")
    claimed, counted = _numbers(rows, "usage_completion_tokens")[served], _numbers(rows, "retokenised_tokens")[served]
    prompt, cached = _numbers(rows, "usage_prompt_tokens")[served], _numbers(rows, "cached_tokens")[served]
    events = np.array([len(events or ()) for events in rows["event_ms"].to_pylist()], dtype=float)[served]
    both = np.isfinite(claimed) & np.isfinite(counted)
    off = np.abs(claimed - counted)[both] > np.maximum(2, 0.05 * counted[both])
    return {
        "achieved_concurrency": _finite(latency[served].sum() / 1e3 / duration if duration else np.nan),
        "credit_lag_p99_ms": _finite(np.nanpercentile(lag, 99) if np.isfinite(lag).any() else np.nan),
        "usage_missing": _finite(np.isnan(claimed).mean() if len(claimed) else np.nan),
        "usage_over_retokenised": _finite(claimed[both].sum() / counted[both].sum() if counted[both].sum() else np.nan),
        "usage_off_share": _finite(off.mean() if len(off) else np.nan),
        "cached_prompt_share": _finite(
            np.nansum(cached) / np.nansum(prompt) if np.isfinite(cached).any() and np.nansum(prompt) else np.nan
        ),
        "tokens_per_event": _finite(counted.sum() / events.sum() if events.sum() else np.nan),
    }


def _numbers(rows: pa.Table, column: str) -> Values:
    return np.asarray(rows[column].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _median(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None

"""What this client can measure: AIPerf drives a mock that knows its own send times, shaped like the candidate.

The difference between what enginegate reads from AIPerf's export and what the mock wrote down is the client's bias. It
is a property of this machine and the shape, so it is cached by the client's fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import platformdirs
from pydantic import Field, ValidationError
from rich.table import Table

import harness
from harness.calibration_visit import Rows, Shape, drive_mock
from harness.environment import cpu_model
from harness.errors import InvalidRun
from harness.progress import Progress, silent
from harness.run_store import write_json
from harness.traffic import AIPERF_VERSION, check_aiperf
from harness.verdict import Finite, Record

STARVED = 0.10
# A quarter of the way to the usual bar of 1.20x: what the client may add before a cell is not published.
MARGIN = 0.05
# TTFT of a fast engine is a few milliseconds, of which connecting and parsing take one: it is added to both arms alike,
# so it can only hide a speed-up, never make one.
TTFT_ALLOWANCE_MS = 1.5
BLOCK = 4  # tokens an event
METRICS = ("ttft.p50", "tpot.p50", "output_throughput")
Values = npt.NDArray[np.float64]


class Bias(Record):
    """AIPerf's reading minus the mock's own log, for one shape on this client."""

    shape: Shape
    requests: int
    failed: int
    ttft_ms: Finite = Field(description="true p50")
    ttft_bias_ms: Finite = Field(description="p50 over requests")
    ttft_bias_p99_ms: Finite
    tpot_ms: Finite = Field(description="true p50")
    tpot_bias: Finite = Field(description="p50 over requests, as a share of the truth; 0.01 reads 1 % too slow")
    tpot_bias_p99: Finite
    output_throughput: Finite = Field(description="tokens/s that the mock really sent")
    output_throughput_bias: Finite = Field(description="as a share of the truth")
    fed: Finite = Field(description="sent over offered tokens/s: how well the client kept the engine busy")
    achieved_concurrency: Finite = Field(description="requests in flight at the mock, mean over time")
    schedule_slip: Finite = Field(description="how much slower than asked the mock itself could send, as a share")
    load_average_1m: Finite
    measured_at: Finite = Field(description="seconds since 1970")

    def error(self, metric: str) -> float | None:
        """Relative error that this client adds to a gate metric such as ttft.p50; None when it was not calibrated."""
        family, _, statistic = metric.partition(".")
        if family == "ttft":
            return (self.ttft_bias_ms if statistic in ("p50", "mean") else self.ttft_bias_p99_ms) / self.ttft_ms
        if family == "tpot":
            return self.tpot_bias if statistic in ("p50", "mean") else self.tpot_bias_p99
        if family == "output_throughput":
            # Under-feeding is worse than misreading: the number is right, and describes a throttled engine. One
            # request in flight is never back to back, in either arm alike.
            rest = 1 - self.fed if self.shape.concurrency > 1 else 0.0
            return max(abs(self.output_throughput_bias), rest)
        return None

    def over(self, margin: float, metrics: Sequence[str] = METRICS) -> dict[str, float]:
        """Metric -> relative error, for those whose error is larger than `margin` (and, for TTFT, the allowance)."""
        errors = {metric: error for metric in metrics if (error := self.error(metric)) is not None}
        return {
            metric: error
            for metric, error in errors.items()
            if abs(error) > margin
            and not (metric.startswith("ttft") and abs(error) * self.ttft_ms <= TTFT_ALLOWANCE_MS)
        }

    @property
    def starved(self) -> bool:
        """True when the mock missed its own schedule, so that this is the bias of another shape."""
        return self.schedule_slip > STARVED

    def sentence(self, margin: float) -> str:
        """What may be published from this client at this shape when errors up to `margin` are tolerated."""
        where = self.shape.words
        if self.failed:
            return f"{where}: {self.failed} of {self.requests} requests to the mock failed; this client cannot be used."
        if self.starved:
            return (
                f"{where}: this machine was too busy to imitate it (the mock sent {self.schedule_slip:.0%} too slowly, "
                f"load average {self.load_average_1m:.1f}); calibrate again when it is quiet."
            )
        over = self.over(margin)
        if not over:
            return f"{where}: measurable here; every error is within {margin:.1%} (TTFT: or {TTFT_ALLOWANCE_MS} ms)."
        told = ", ".join(f"{metric} {abs(error):.1%}" for metric, error in over.items())
        return f"{where}: not measurable here ({told} off, {margin:.1%} allowed); use a client with more cores."


def in_blocks(bias: Bias, margin: float) -> Shape | None:
    """The shape to calibrate as well where single-token events are too many for this client; None where they are not.

    The same tokens in a quarter of the events: what the engine can often be told (vLLM: --stream-interval).
    """
    fit = not (bias.over(margin) or bias.starved)
    if fit or bias.failed or bias.shape.concurrency == 1 or bias.shape.tokens_per_event > 1:
        return None
    return bias.shape.model_copy(update={"tokens_per_event": BLOCK})


def block_sentences(biases: Sequence[Bias], margin: float) -> tuple[str, ...]:
    """What larger events change, for every shape that was calibrated both ways."""
    single = {bias.shape: bias for bias in biases if bias.shape.tokens_per_event == 1}
    told = []
    for bias in biases:
        one = single.get(bias.shape.model_copy(update={"tokens_per_event": 1}))
        if one is None or one is bias or one.failed or bias.failed:
            continue
        changes = [f"{name} {one.error(name) or 0:+.1%} -> {bias.error(name) or 0:+.1%}" for name in METRICS[:2]]
        changes.append(f"kept busy {one.fed:.0%} -> {bias.fed:.0%}")
        end = "still not measurable here" if bias.over(margin) or bias.starved else "measurable here"
        told.append(f"{bias.shape.words} instead of 1: {', '.join(changes)}; {end}.")
    return tuple(told)


def calibrate(
    shapes: Sequence[Shape],
    tokenizer: Path,
    *,
    connection_reuse: str = "never",
    fresh: bool = False,
    progress: Progress = silent,
) -> tuple[Bias, ...]:
    """The client's bias at every shape; one AIPerf run for all that are not in the cache yet, about half a minute.

    Args:
        shapes: what to imitate.
        tokenizer: folder with tokenizer.json that AIPerf counts with.
        connection_reuse: as in the plan, because it is part of the client.
        fresh: measure again what is cached.
        progress: told what is being done.

    Raises InvalidRun when AIPerf or the mock could not work.
    """
    check_aiperf()
    known: dict[Shape, Bias] = {}
    for shape in shapes:
        bias = None if fresh else _cached(shape, connection_reuse)
        if bias is not None:
            known[shape] = bias
    missing = [shape for shape in dict.fromkeys(shapes) if shape not in known]
    if missing:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="enginegate-calibration-") as folder:
            found = drive_mock(missing, tokenizer, connection_reuse, Path(folder), progress)
        for shape, (rows, truth) in zip(missing, found, strict=True):
            known[shape] = compare(shape, rows, truth, load)
            if not known[shape].starved:
                write_json(_cache_file(shape, connection_reuse), known[shape])
    return tuple(known[shape] for shape in shapes)


def compare(shape: Shape, rows: Rows, truth: Rows, load: float) -> Bias:
    """Join request rows with the mock's log by line. Raises InvalidRun when not one request can be compared.

    `truth` entries: {line, received_ns, sent_ns: [...], event_tokens: [...]}, nanoseconds of one monotonic clock.
    """
    sends = {entry["line"]: entry for entry in truth}
    both = [(row, sends[row["line"]]) for row in rows if row["status"] == "ok" and row["line"] in sends]
    timed = [(row["tpot_ms"], sent) for row, sent in both if row["tpot_ms"] is not None and len(sent["sent_ns"]) > 1]
    if not timed:
        raise InvalidRun("no calibration request came through; is something else blocking this machine's loopback?")
    ttft = np.array([row["ttft_ms"] for row, _ in both])
    true_ttft = np.array([(sent["sent_ns"][0] - sent["received_ns"]) / 1e6 for _, sent in both])
    true_tpot = np.array([(s["sent_ns"][-1] - s["sent_ns"][0]) / 1e6 / sum(s["event_tokens"][1:]) for _, s in timed])
    tpot_bias = np.array([value for value, _ in timed]) / true_tpot - 1
    seen_s = _span([(row["start_s"], row["start_s"] + row["request_latency_ms"] / 1e3) for row, _ in both])
    real_s = _span([(sent["received_ns"] / 1e9, sent["sent_ns"][-1] / 1e9) for _, sent in both])
    sent_rate = sum(sum(sent["event_tokens"]) for _, sent in both) / real_s
    read_rate = sum(row["output_tokens"] for row, _ in both) / seen_s
    busy_s = sum((sent["sent_ns"][-1] - sent["received_ns"]) / 1e9 for _, sent in both)
    return Bias(
        shape=shape,
        requests=len(rows),
        failed=len(rows) - len(both),
        ttft_ms=_at(true_ttft, 50),
        ttft_bias_ms=_at(ttft - true_ttft, 50),
        ttft_bias_p99_ms=_at(ttft - true_ttft, 99),
        tpot_ms=_at(true_tpot, 50),
        tpot_bias=_at(tpot_bias, 50),
        tpot_bias_p99=_at(tpot_bias, 99),
        output_throughput=sent_rate,
        output_throughput_bias=read_rate / sent_rate - 1,
        fed=sent_rate / shape.offered_tokens_per_s,
        achieved_concurrency=busy_s / real_s,
        schedule_slip=_at(true_tpot, 50) / shape.tpot_ms - 1,
        load_average_1m=load,
        measured_at=time.time(),
    )


def calibration_table(biases: Sequence[Bias]) -> Table:
    """A row a shape."""
    table = Table(title="What this client measures, against a mock that knows the truth")
    for column in ("shape", "TTFT p50", "bias p50 / p99", "TPOT p50", "bias p50 / p99", "tokens/s sent", "bias", "fed"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for bias in biases:
        shape = bias.shape
        block = f", {shape.tokens_per_event} tokens an event" if shape.tokens_per_event > 1 else ""
        table.add_row(
            f"c{shape.concurrency}, {shape.offered_tokens_per_s:,.0f} tokens/s{block}",
            f"{bias.ttft_ms:.1f} ms",
            f"{bias.ttft_bias_ms:+.2f} / {bias.ttft_bias_p99_ms:+.1f} ms",
            f"{bias.tpot_ms:.3f} ms",
            f"{bias.tpot_bias:+.2%} / {bias.tpot_bias_p99:+.1%}",
            f"{bias.output_throughput:,.0f}",
            f"{bias.output_throughput_bias:+.1%}",
            f"{bias.fed:.0%}",
        )
    return table


def client_fingerprint(connection_reuse: str) -> dict[str, Any]:
    """What a bias depends on besides the shape."""
    return {
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "aiperf": AIPERF_VERSION,
        "enginegate": harness.__version__,
        "connection_reuse": connection_reuse,
    }


def _span(spans: Sequence[tuple[float, float]]) -> float:
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _at(values: Values, q: float) -> float:
    return float(np.percentile(values, q))


def _cache_file(shape: Shape, connection_reuse: str) -> Path:
    key = orjson.dumps([client_fingerprint(connection_reuse), shape.model_dump()], option=orjson.OPT_SORT_KEYS)
    name = hashlib.sha256(key).hexdigest()[:24]
    return platformdirs.user_cache_path("enginegate") / "calibration" / f"{name}.json"


def _cached(shape: Shape, connection_reuse: str) -> Bias | None:
    try:
        return Bias.model_validate_json(_cache_file(shape, connection_reuse).read_bytes())
    except (OSError, ValidationError):
        return None

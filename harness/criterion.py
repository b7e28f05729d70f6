"""A criterion: what a run must reach, as a string a person can read. `metric[.stat] op value unit [@ scope]`.

ttft.p50 >= 1.20x                    speed-up over the baseline, in every cell whose profile can gate it
ttft.p95 <= 200ms @ chat-steady      the candidate's own number, in the cells of one profile
tpot.p50 >= 1.30x @ chat-*/c8        profiles by pattern, one concurrency
token_margin <= 1.05x                accuracy, over the whole run
tasks >= -1.0pt                      task score against the baseline's, in points
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageError

Op = Literal[">=", "<="]
STATS = ("p50", "p90", "p95", "p99", "mean")
LATENCIES = ("ttft", "tpot", "request_latency")


@dataclass(frozen=True)
class Metric:
    """What may be asked of a metric: its units, each with the only direction that makes sense."""

    units: dict[str, Op]
    has_stat: bool = False
    per_cell: bool = True


_LATENCY = Metric({"x": ">=", "ms": "<="}, has_stat=True)
_TOKEN_RATE = Metric({"x": ">=", "tokens/s": ">="})
_REQUEST_RATE = Metric({"x": ">=", "req/s": ">="})
METRICS: dict[str, Metric] = {
    "ttft": _LATENCY,
    "tpot": _LATENCY,
    "request_latency": _LATENCY,
    "output_throughput": _TOKEN_RATE,
    "output_throughput_per_user": _TOKEN_RATE,
    "throughput_per_gpu": _TOKEN_RATE,
    "request_throughput": _REQUEST_RATE,
    "goodput": _REQUEST_RATE,
    "peak_memory": Metric({"x": "<=", "MiB": "<="}, per_cell=False),
    "token_margin": Metric({"x": "<=", "nats": "<="}, per_cell=False),
    "kld": Metric({"x": "<=", "nats": "<="}, per_cell=False),
    "tasks": Metric({"pt": ">="}, per_cell=False),
}
ALIASES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "itl": "tpot",
    "e2e": "request_latency",
    "e2el": "request_latency",
    "latency": "request_latency",
    "throughput": "output_throughput",
    "rps": "request_throughput",
    "tps": "output_throughput",
    "memory": "peak_memory",
    "margin": "token_margin",
    "accuracy": "tasks",
}
# written form -> (unit, factor)
UNITS = {
    "x": ("x", 1.0), "ms": ("ms", 1.0), "s": ("ms", 1000.0), "us": ("ms", 0.001),
    "tokens/s": ("tokens/s", 1.0), "tok/s": ("tokens/s", 1.0), "req/s": ("req/s", 1.0), "requests/s": ("req/s", 1.0),
    "MiB": ("MiB", 1.0), "GiB": ("MiB", 1024.0), "nats": ("nats", 1.0), "pt": ("pt", 1.0),
}  # fmt: skip

_SHAPE = re.compile(
    r"(?P<metric>[A-Za-z_]\w*)(?:\.(?P<stat>\w+))?\s*(?P<op>[<>=!~]+)\s*(?P<value>[-+]?[\w.]*?)\s*(?P<unit>[A-Za-z%]+(?:/[A-Za-z]+)?)?"
    r"\s*(?:@\s*(?P<scope>.*))?"
)
_LOAD = re.compile(r"c[1-9]\d*|r\d+(?:\.\d+)?")
_PROFILE = re.compile(r"[A-Za-z0-9_.*?\-]+")


@dataclass(frozen=True)
class Criterion:
    """One parsed criterion. `value` is in `unit` (ms for all times, MiB for all memory)."""

    text: str
    metric: str
    stat: str | None
    op: Op
    value: float
    unit: str
    profile: str = "*"
    load: str | None = None
    policy: str | None = None

    @property
    def name(self) -> str:
        """`ttft.p50`, `output_throughput`: what a profile lists as gateable."""
        return f"{self.metric}.{self.stat}" if self.stat else self.metric

    @property
    def relative(self) -> bool:
        """Judged against the baseline (x, pt) rather than on the candidate's own number."""
        return self.unit in {"x", "pt"}

    def check_id(self, cell: str | None) -> str:
        """Stable id of this criterion's check in `cell`."""
        bar = "" if self.relative else f"{self.op}{self.value:g}{self.unit}"
        return f"{self.name}{bar}" + (f"@{cell}" if cell else "")


def parse_criterion(text: str, *, policy: str | None = None) -> Criterion:
    """Parse one criterion. Raises UsageError with what is allowed and near matches."""
    shown = text if len(text) <= 120 else text[:117] + "..."
    match = _SHAPE.fullmatch(text.strip()) if len(text) <= 300 else None
    if match is None:
        raise UsageError(
            f"Criterion {shown!r} is not of the form `metric[.stat] >= value unit [@ scope]`, "
            "e.g. `ttft.p50 >= 1.20x @ chat-*`."
        )
    metric, stat, op = match["metric"], match["stat"], match["op"]
    spec = _metric(shown, metric, stat)
    unit, factor = _unit(shown, metric, spec, match["unit"])
    value = _value(shown, match["value"], unit) * factor
    _direction(shown, f"{metric}.{stat}" if stat else metric, op, spec.units[unit], value, unit)
    profile, load = _scope(shown, match["scope"], spec, metric)
    return Criterion(text.strip(), metric, stat, spec.units[unit], value, unit, profile, load, policy)


def near(word: str, known: Iterable[str]) -> str:
    """` Did you mean a or b?`, or nothing."""
    matches = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def _metric(shown: str, metric: str, stat: str | None) -> Metric:
    spec = METRICS.get(metric)
    if spec is None:
        meant = f" Did you mean {ALIASES[metric]}?" if metric in ALIASES else near(metric, METRICS)
        raise UsageError(f"Criterion {shown!r}: unknown metric {metric!r}.{meant} Known: {', '.join(METRICS)}.")
    if spec.has_stat and stat is None:
        raise UsageError(
            f"Criterion {shown!r}: {metric} needs a statistic, e.g. {metric}.p50 (one of {', '.join(STATS)})."
        )
    if stat is not None and not spec.has_stat:
        raise UsageError(
            f"Criterion {shown!r}: {metric} is one number a run and takes no statistic; write {metric} alone."
        )
    if stat is not None and stat not in STATS:
        raise UsageError(
            f"Criterion {shown!r}: unknown statistic {stat!r}.{near(stat, STATS)} Known: {', '.join(STATS)}."
        )
    return spec


def _unit(shown: str, metric: str, spec: Metric, written: str | None) -> tuple[str, float]:
    allowed = [name for name, (unit, _) in UNITS.items() if unit in spec.units]
    if written is None:
        raise UsageError(f"Criterion {shown!r} has no unit; {metric} takes {' or '.join(allowed)}.")
    if written not in UNITS or UNITS[written][0] not in spec.units:
        meant = near(written, allowed) if written not in UNITS else ""
        raise UsageError(
            f"Criterion {shown!r}: {metric} is not given in {written!r}.{meant} Allowed: {', '.join(allowed)}."
        )
    return UNITS[written]


def _value(shown: str, written: str, unit: str) -> float:
    try:
        value = float(written)
    except ValueError:
        raise UsageError(f"Criterion {shown!r}: {written!r} is not a number.") from None
    low, high = (-100.0, 100.0) if unit == "pt" else (0.0, 1000.0 if unit == "x" else 1e12)
    if not math.isfinite(value) or not low <= value <= high or (unit != "pt" and value == 0):
        raise UsageError(
            f"Criterion {shown!r}: the value must be {'over' if low == 0 else 'at least'} {low:g} and at most {high:g}."
        )
    return value


def _direction(shown: str, name: str, op: str, wanted: Op, value: float, unit: str) -> None:
    if op == wanted:
        return
    if op not in {">=", "<="}:
        raise UsageError(f"Criterion {shown!r}: unknown operator {op!r}; write {wanted}.")
    if unit == "x" and name.partition(".")[0] in LATENCIES:
        raise UsageError(
            f"Criterion {shown!r}: a speed-up is baseline over candidate and wants >=; "
            f"the same bar is `{name} >= {1 / value:.2f}x`."
        )
    raise UsageError(f"Criterion {shown!r}: {name} in {unit} is judged with {wanted}, not {op}.")


def _scope(shown: str, scope: str | None, spec: Metric, metric: str) -> tuple[str, str | None]:
    if scope is None:
        return "*", None
    if not spec.per_cell:
        raise UsageError(
            f"Criterion {shown!r}: {metric} spans the whole run and takes no scope; drop the part after @."
        )
    profile, slash, load = scope.strip().rpartition("/")
    if not slash:
        profile, load = ("*", scope.strip()) if _LOAD.fullmatch(scope.strip()) else (scope.strip(), "")
    if (slash or load) and not _LOAD.fullmatch(load):
        raise UsageError(
            f"Criterion {shown!r}: {load!r} is no load; write c8 (concurrency) or r2.5 (requests per second)."
        )
    if not _PROFILE.fullmatch(profile):
        raise UsageError(
            f"Criterion {shown!r}: {profile!r} is no profile pattern; write a name, with * or ? for any letters."
        )
    return profile, load or None

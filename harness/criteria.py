"""Criteria: what a run must reach, as strings a person can read. `metric[.stat] op value unit [@ scope]`.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UsageError
from harness.statistics import minimum_requests

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
# What a run measures only when its plan and its machine allow it.
OPTIONAL = frozenset({"throughput_per_gpu", "peak_memory", "token_margin", "kld", "tasks"})
# A profile need not list what follows from what it lists.
FOLLOWS_FROM = {
    "throughput_per_gpu": {"output_throughput"},
    "output_throughput_per_user": {"tpot.p50"},
    "request_throughput": {"output_throughput", "request_latency.p50"},
    **{f"{latency}.p90": {f"{latency}.p95"} for latency in LATENCIES},
    **{f"{latency}.mean": {f"{latency}.p50"} for latency in LATENCIES},
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

    def covers(self, cell: CellScope) -> bool:
        """Whether the scope matches the cell."""
        return fnmatchcase(cell.profile, self.profile) and self.load in (None, cell.cell.rpartition("/")[2])


@dataclass(frozen=True)
class CellScope:
    """A cell of the plan: what its profile lets the gate judge, and how many requests a visit sends in it.

    `gateable` holds names such as `ttft.p50`, `tpot.p95`, `output_throughput`.
    """

    cell: str
    profile: str
    gateable: frozenset[str]
    requests: int


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


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _metric(shown: str, metric: str, stat: str | None) -> Metric:
    spec = METRICS.get(metric)
    if spec is None:
        near = f" Did you mean {ALIASES[metric]}?" if metric in ALIASES else _near(metric, METRICS)
        raise UsageError(f"Criterion {shown!r}: unknown metric {metric!r}.{near} Known: {', '.join(METRICS)}.")
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
            f"Criterion {shown!r}: unknown statistic {stat!r}.{_near(stat, STATS)} Known: {', '.join(STATS)}."
        )
    return spec


def _unit(shown: str, metric: str, spec: Metric, written: str | None) -> tuple[str, float]:
    allowed = [name for name, (unit, _) in UNITS.items() if unit in spec.units]
    if written is None:
        raise UsageError(f"Criterion {shown!r} has no unit; {metric} takes {' or '.join(allowed)}.")
    if written not in UNITS or UNITS[written][0] not in spec.units:
        near = _near(written, allowed) if written not in UNITS else ""
        raise UsageError(
            f"Criterion {shown!r}: {metric} is not given in {written!r}.{near} Allowed: {', '.join(allowed)}."
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


# --- policies ------------------------------------------------------------------------------------------------------


class Policy(BaseModel):
    """The file format of a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(max_length=64)
    purpose: str = Field("", max_length=1000)
    criteria: tuple[str, ...] = Field(min_length=1, max_length=200)


def builtin_policies() -> dict[str, str]:
    """Names and texts of the policies that come with enginegate."""
    folder = resources.files("harness") / "policies"
    return {f.name.removesuffix(".yaml"): f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".yaml")}


def load_policy(name_or_path: str | Path) -> tuple[Criterion, ...]:
    """Criteria of a built-in policy, or of a policy file. Raises UsageError."""
    builtin = builtin_policies()
    source = str(name_or_path)
    if source in builtin:
        text = builtin[source]
    else:
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(
                f"There is no policy {source!r}.{_near(source, builtin)} "
                f"Built in: {', '.join(sorted(builtin))}; or give the path of a YAML file."
            )
        if path.stat().st_size > 65536:
            raise UsageError(f"{path}: a policy is at most 64 KiB.")
        text = path.read_text("utf-8", errors="replace")
    return _read_policy(source, text)


def _read_policy(source: str, text: str) -> tuple[Criterion, ...]:
    try:
        policy = Policy.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not readable YAML: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise UsageError(
            f"{source}: {key}: {first['msg']}. A policy has the keys name, purpose and criteria (a list of strings)."
        ) from None
    return tuple(parse_criterion(text, policy=policy.name) for text in policy.criteria)


# --- from criteria to checks ---------------------------------------------------------------------------------------


def resolve(
    criteria: Sequence[Criterion], cells: Sequence[CellScope], measured: frozenset[str] = OPTIONAL
) -> tuple[tuple[Criterion, str | None], ...]:
    """Which criterion is judged in which cell; None for what spans the run.

    A policy's criterion applies wherever its metric is gateable (and its percentile has enough requests); a user's
    must be gateable wherever its scope reaches. Of two bars for the same number the stricter stands.

    Args:
        criteria: of the policy and of the user.
        cells: of the plan.
        measured: which optional metrics this run will measure (no task in the plan: no `tasks`; no GPU count: no
            `throughput_per_gpu`).

    Raises:
        UsageError: a scope that matches nothing, a user's criterion on a number that cannot be gated, two user's bars
            for one number, or nothing left to judge.
    """
    bars: dict[str, tuple[Criterion, str | None]] = {}
    for criterion in criteria:
        for cell, obstacle in _places(criterion, cells, measured):
            if obstacle and criterion.policy:
                continue
            if obstacle:
                raise UsageError(f"Criterion {criterion.text!r} cannot be judged: {obstacle}.")
            _add(bars, criterion, cell)
    if cells and not any(cell for _, cell in bars.values()):
        raise UsageError(
            "No cell of this plan has anything to gate: its profiles call none of the criteria's metrics gateable "
            "at these request counts. Choose another profile or tier, or more requests a cell."
        )
    if not bars:
        raise UsageError("The plan has no cell and no criterion to judge; name at least one profile.")
    return tuple(bars.values())


def not_gateable(
    criteria: Sequence[Criterion], cells: Sequence[CellScope], measured: frozenset[str] = OPTIONAL
) -> tuple[str, ...]:
    """One sentence for each policy criterion that some cell of the plan cannot gate: for the verdict's notes."""
    notes = []
    for criterion in criteria:
        places = list(_places(criterion, cells, measured)) if criterion.policy else []
        obstacles = [obstacle for _, obstacle in places if obstacle]
        if obstacles:
            more = f" (and {len(obstacles) - 1} more)" if len(obstacles) > 1 else ""
            everywhere = "anywhere" if len(obstacles) == len(places) else f"in {len(obstacles)} of {len(places)} cells"
            notes.append(f"{criterion.text} is not judged {everywhere}: {obstacles[0]}{more}.")
    return tuple(notes)


def _places(
    criterion: Criterion, cells: Sequence[CellScope], measured: frozenset[str]
) -> Iterator[tuple[str | None, str | None]]:
    """Where a criterion reaches, each with what keeps it from being judged there (None: nothing)."""
    if not METRICS[criterion.metric].per_cell:
        yield None, _absent(criterion, measured)
        return
    covered = [cell for cell in cells if criterion.covers(cell)]
    if not covered:
        loads = {cell.cell.rpartition("/")[2] for cell in cells}
        known = {cell.profile for cell in cells}
        near = _near(criterion.profile, known) if criterion.profile not in known else ""
        raise UsageError(
            f"Criterion {criterion.text!r}: its scope matches no cell of the plan.{near} "
            f"Profiles: {', '.join(sorted(known)) or 'none'}; loads: {', '.join(sorted(loads)) or 'none'}."
        )
    for cell in covered:
        yield cell.cell, _absent(criterion, measured) or _obstacle(criterion, cell)


def _absent(criterion: Criterion, measured: frozenset[str]) -> str | None:
    unmeasured = criterion.metric in OPTIONAL - measured
    return f"this plan measures no {criterion.metric}" if unmeasured else None


def _obstacle(criterion: Criterion, cell: CellScope) -> str | None:
    follows = FOLLOWS_FROM.get(criterion.name)
    if criterion.name not in cell.gateable and not (follows and follows <= cell.gateable):
        allowed = ", ".join(sorted(cell.gateable)) or "nothing"
        return (
            f"profile {cell.profile} does not call {criterion.name} gateable in {cell.cell} (gateable there: {allowed})"
        )
    minimum = minimum_requests(criterion.stat) if criterion.stat else 1
    if cell.requests < minimum:
        return f"{criterion.name} needs at least {minimum} requests a visit and {cell.cell} sends {cell.requests}"
    return None


def _add(bars: dict[str, tuple[Criterion, str | None]], criterion: Criterion, cell: str | None) -> None:
    number = f"{criterion.name} {criterion.unit} {cell}"
    present = bars.get(number)
    if present is None:
        bars[number] = (criterion, cell)
        return
    held = present[0]
    if held.value != criterion.value and held.policy is None and criterion.policy is None:
        raise UsageError(
            f"Criteria {held.text!r} and {criterion.text!r} contradict each other: "
            f"two bars for {criterion.name} in {cell or 'the run'}; keep one, or make their scopes disjoint."
        )
    stricter = max if criterion.op == ">=" else min
    if stricter(criterion.value, held.value) == criterion.value:
        bars[number] = (criterion, cell)

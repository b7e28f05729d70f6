"""Policies, and which criterion is judged in which cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.criterion import LATENCIES, METRICS, Criterion, near, parse_criterion
from harness.errors import UsageError
from harness.statistics import minimum_requests

__all__ = [
    "CellScope",
    "Criterion",
    "builtin_policies",
    "load_policy",
    "not_gateable",
    "parse_criterion",
    "resolve",
]

# What a run measures only when its plan and its machine allow it.
OPTIONAL = frozenset({"throughput_per_gpu", "peak_memory", "token_margin", "kld", "tasks"})
MEASURED_WITH = {
    "throughput_per_gpu": "give both endpoints `gpus`",
    "peak_memory": "give both endpoints `gpu_ids` of their own, or `launch` with engines: one-at-a-time",
    "kld": "set `logit_documents`",
    "tasks": "name lm-eval tasks under `tasks`",
}
# A profile need not list what follows from what it lists.
FOLLOWS_FROM = {
    "throughput_per_gpu": {"output_throughput"},
    "output_throughput_per_user": {"tpot.p50"},
    "request_throughput": {"output_throughput", "request_latency.p50"},
    **{f"{latency}.p90": {f"{latency}.p95"} for latency in LATENCIES},
    **{f"{latency}.mean": {f"{latency}.p50"} for latency in LATENCIES},
}


@dataclass(frozen=True)
class CellScope:
    """A cell of the plan: what its profile lets the gate judge, and how many requests a visit sends in it.

    `gateable` holds names such as `ttft.p50`, `tpot.p95`, `output_throughput`.
    """

    cell: str
    profile: str
    gateable: frozenset[str]
    requests: int


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
                f"There is no policy {source!r}.{near(source, builtin)} "
                f"Built in: {', '.join(sorted(builtin))}; or give the path of a YAML file."
            )
        if path.stat().st_size > 65536:
            raise UsageError(f"{path}: a policy is at most 64 KiB.")
        text = path.read_text("utf-8", errors="replace")
    return _read_policy(source, text)


def read_criteria(policy: str | Path, own: Sequence[str]) -> tuple[Criterion, ...]:
    """A policy's criteria, then a plan's own. Raises UsageError."""
    return (*load_policy(policy), *(parse_criterion(text) for text in own))


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
    covered = [cell for cell in cells if _covers(criterion, cell)]
    if not covered:
        loads = {cell.cell.rpartition("/")[2] for cell in cells}
        known = {cell.profile for cell in cells}
        meant = near(criterion.profile, known) if criterion.profile not in known else ""
        raise UsageError(
            f"Criterion {criterion.text!r}: its scope matches no cell of the plan.{meant} "
            f"Profiles: {', '.join(sorted(known)) or 'none'}; loads: {', '.join(sorted(loads)) or 'none'}."
        )
    for cell in covered:
        yield cell.cell, _absent(criterion, measured) or _obstacle(criterion, cell)


def _covers(criterion: Criterion, cell: CellScope) -> bool:
    return fnmatchcase(cell.profile, criterion.profile) and criterion.load in (None, cell.cell.rpartition("/")[2])


def _absent(criterion: Criterion, measured: frozenset[str]) -> str | None:
    if criterion.metric not in OPTIONAL - measured:
        return None
    advice = MEASURED_WITH.get(criterion.metric)
    return f"this plan measures no {criterion.metric}" + (f" ({advice})" if advice else "")


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

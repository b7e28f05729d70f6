"""The oracles stage: every oracle on the timed responses of both arms, and the reference's own noise floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import InvalidRun
from harness.logits import reference_ask, score_collected
from harness.measurement import Role
from harness.option_grading import grade_option_tasks
from harness.plan import Plan
from harness.plan import Reference as AskedReference
from harness.progress import Progress, counting
from harness.reference_tasks import grade_reference_tasks
from harness.roofline import steps_per_s
from harness.run_store import read_json, write_json
from harness.task_grading import grade_tasks
from harness.traffic_plan import TrafficPlan
from oracles.answers import Visit, keys_with_ids
from oracles.audit import judge_audit
from oracles.drift import check_drift
from oracles.endpoint_reference import open_endpoint
from oracles.floor import Floor, measure_floor
from oracles.floor_file import take_floor
from oracles.parallel_reference import open_parallel
from oracles.protocol import check_arm
from oracles.ray_reference import open_ray
from oracles.reference import OracleError, Reference, open_reference
from oracles.result import OracleResult
from oracles.store import ScoreStore
from oracles.tokens import score_arm

ROLES: tuple[Role, Role] = ("baseline", "candidate")
# What was scored by a killed run or an earlier look is not scored again; no evidence, removed with the report.
SCORES = "scores.partial"


def score_arms(plan: Plan, pairs: int, root: Path, progress: Progress) -> list[Path]:
    """Write oracles/<arm>/* for the first `pairs` pairs and return the files.

    Raises InvalidRun when the reference cannot be used. Without a reference the token oracle is `unscored`, which the
    gate never takes for a pass.
    """
    out = root / "oracles"
    visits = {role: [_visit(root, pair, role) for pair in range(1, pairs + 1)] for role in ROLES}
    try:
        reference = open_reference_of(plan.reference, plan, progress) if plan.reference else None
        for role in ROLES if reference is None else ():
            write_json(out / role / "tokens.json", _without_reference(role))
        if reference is not None:
            _score_tokens(plan, visits, reference, root, progress)
            score_collected(root, ROLES, reference, progress)
        _check_conduct(plan, visits, reference, root, progress)
        grade_reference_tasks(plan, root)
        grade_tasks(plan, pairs, root, progress)
        grade_option_tasks(plan, root, progress)
    except OracleError as error:
        raise InvalidRun(str(error)) from None
    return sorted(path for path in out.rglob("*") if path.is_file())


def check_reference(reference: AskedReference | None) -> None:
    """InvalidRun when the extra that a reference needs is not installed."""
    if reference and not find_spec("torch" if reference.path else "transformers"):
        raise InvalidRun("Scoring under a reference needs the extra `reference`: pip install 'enginegate[reference]'")
    if reference and reference.ray and not find_spec("ray"):
        raise InvalidRun("Scoring on a Ray cluster needs the extra `ray`: pip install 'enginegate[ray]'")


def open_reference_of(asked: AskedReference, plan: TrafficPlan, progress: Progress) -> Reference:
    """A plan's reference, a local folder or a server, ready to score. Raises OracleError."""
    if asked.path is not None and asked.ray is not None:
        progress("looking for the Ray cluster")
        return open_ray(asked.path, asked.ray, dtype=asked.dtype)
    if asked.path is not None and asked.tensor_parallel > 1:
        return open_parallel(asked.path, asked.tensor_parallel, dtype=asked.dtype)
    if asked.path is not None:
        progress("loading the reference")
        return open_reference(asked.path, device=asked.device, dtype=asked.dtype)
    progress("asking the reference server what it returns")
    return open_endpoint(reference_ask(asked), asked.model or plan.model, plan.tokenizer_path or Path())


def _score_tokens(
    plan: Plan, visits: dict[Role, list[Visit]], reference: Reference, root: Path, progress: Progress
) -> None:
    out, kept = root / "oracles", ScoreStore(root / SCORES)
    floor = find_floor(plan.floor, plan.floor_tokens, visits["baseline"], reference, out / "floor", progress)
    # Ids for a request only where both arms gave them: the two are scored in one way or not at all.
    shared = keys_with_ids(visits["baseline"]) & keys_with_ids(visits["candidate"])
    for role in ROLES:
        score_arm(
            visits[role],
            reference,
            role,
            out / role,
            engine_ids=shared,
            tie_width=floor.tie_width,
            store=kept,
            progress=counting(f"scoring the {role}", "tokens", progress),
        )
    for role in ROLES:
        note_drift(out, role, "baseline", floor)


def find_floor(
    named: Path | None, max_tokens: int, visits: Sequence[Visit], reference: Reference, out: Path, progress: Progress
) -> Floor:
    """A run's noise floor: the one that its plan names, else measured on these visits' answers. Raises OracleError."""
    if named:
        return take_floor(named, reference, out)
    say = counting("measuring the noise floor", "tokens", progress)
    return measure_floor(visits, reference, out, max_tokens=max_tokens, progress=say)


def note_drift(out: Path, arm: str, baseline: str, floor: Floor) -> None:
    """Write drift.json: an arm's margin by load, position, time and kind of text, and what stands out as a note.

    Notes, not findings: an honest quantisation of another precision than the baseline's differs from it a little more
    where all engines differ more, and the margin's own criterion already has a floor for that.
    """
    mine, other = out / arm / "tokens.parquet", out / baseline / "tokens.parquet"
    if not mine.is_file():
        return
    beside = pq.read_table(other) if arm != baseline and other.is_file() else None
    margin = floor.result.metrics.get("margin")
    result = check_drift(
        pq.read_table(mine),
        beside,
        "baseline" if arm == "baseline" else "candidate",
        tie_width=floor.tie_width,
        floor_margin=margin.value or 0.0 if margin else 0.0,
    )
    seen = tuple(f"{f.name}: {f.sentence}" for f in result.findings if f.status == "broken")
    write_json(out / arm / "drift.json", result.model_copy(update={"findings": (), "notes": seen}))


def _check_conduct(
    plan: Plan, visits: dict[Role, list[Visit]], reference: Reference | None, root: Path, progress: Progress
) -> None:
    out, environment = root / "oracles", root / "environment.json"
    gpus = read_json(environment).get("gpus") or [] if environment.is_file() else []
    workload = _concatenated([(visit.pair, visit.workload) for visit in visits["baseline"]])
    requests = {role: _concatenated([(visit.pair, visit.requests) for visit in visits[role]]) for role in ROLES}
    for role in ROLES:
        progress(f"checking the {role}'s conduct")
        other = requests["baseline"] if role == "candidate" else None
        protocol = check_arm(
            requests[role],
            workload,
            role,
            other,
            prompt_tokens=prompt_counts(out / role),
            steps_per_s=steps_per_s(plan, role, gpus),
            decode=decoder(reference) if reference is not None else None,
        )
        write_json(out / role / "protocol.json", protocol)
        fresh = plan.connection_reuse == "never"
        audit = judge_audit(requests[role], workload, role, other, fresh_connections=fresh)
        write_json(out / role / "audit.json", audit)


def prompt_counts(scored: Path) -> pa.Table | None:
    """Tokens of every prompt as the reference counts them, from `oracles/<arm>`; None when nothing was scored."""
    path = scored / "tokens.parquet"
    return pq.read_table(path, columns=["pair", "line", "prompt_tokens"]) if path.is_file() else None


def decoder(reference: Reference) -> Callable[[Sequence[Sequence[int]]], list[str]]:
    """What turns many sequences of ids into text."""
    return lambda sequences: [reference.decode(ids) for ids in sequences]


def with_pair(pair: int, path: Path) -> pa.Table:
    """A table of one pair with its number in front."""
    table = pq.read_table(path)
    return table.add_column(0, "pair", pa.array([pair] * len(table), pa.int64()))


def _concatenated(parts: Sequence[tuple[int, Path]]) -> pa.Table:
    return pa.concat_tables([with_pair(pair, path) for pair, path in parts])


def _visit(root: Path, pair: int, role: Role) -> Visit:
    folder = root / "pairs" / f"{pair:02d}"
    own = folder / role / "workload.parquet"  # where the arm's own replies stand between the turns
    return Visit(pair, folder / role / "requests.parquet", own if own.is_file() else folder / "workload.parquet")


def _without_reference(role: Role) -> OracleResult:
    return OracleResult(
        oracle="tokens",
        arm=role,
        version=1,
        status="unscored",
        reason="The plan names no reference, so nothing says what is right.",
    )

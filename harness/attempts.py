"""A gate as an attempt: counted before it starts, pooled with what the same build showed before, recorded at its end.

Reads and writes `history.jsonl` and the run directory's `attempt.json`; the rules are in `harness.history`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field

from harness import history, sealed
from harness.errors import InvalidRun, UsageError
from harness.plan import Plan
from harness.run_store import RunStore, read_json, sha256, write_json
from harness.traffic_plan import dump_plan
from harness.verdict import Record, Verdict

ATTEMPT = "attempt.json"
HISTORY = "history.jsonl"
PRIVATE = ("pairs", "oracles", "engines", "tasks")  # what holds the text of held-out prompts
# Steps that a repeat takes over: what was asked and measured. It scores and calibrates for itself.
POOLED = frozenset({"capacity", "preflight", "tasks", "workload", "visit", "measure"})


class RunAttempt(Record):
    """`attempt.json`: which attempt of its history a run directory is."""

    schema_version: Literal[1] = 1
    attempt: int
    history: str = Field(description="path of the history file")
    head: str = Field(description="hash of the record that started this attempt")
    plan: str = Field(description="SHA-256 of the resolved plan, its budget left out")
    build: str = Field(description="SHA-256 over the candidate's build; empty when the plan names none")
    sealed: str | None = Field(description="fingerprint of the secret that the prompts come from; null: public prompts")
    pooled: str | None = Field(default=None, description="the earlier run whose pairs these go on from")
    pooled_pairs: int = 0


def standing(plan: Plan, run: Path) -> history.Attempt | None:
    """The attempt whose verdict stands for this build under this plan: no further look is due to it.

    Raises InvalidRun when the history's chain is broken or the looks at held-out prompts are spent.
    """
    path = history_path(plan, run)
    known = history.read(path)
    if plan.prompt_secret and not history.looks_left(known, plan.looks):
        raise InvalidRun(
            f"All {plan.looks} looks at held-out prompts are spent ({path}); who keeps the secret may raise `looks`."
        )
    build = fingerprint_build(plan)
    if plan.mode == "quick" or not build:
        return None
    return history.standing(known, engine=build, plan=plan_sha256(plan), max_pairs=plan.pairs[-1])


def secret_of(plan: Plan) -> bytes | None:
    """What held-out prompts are drawn from; None for public prompts. Raises UsageError.

    From here on this process and its environment cannot be looked into: engines run as its children.
    """
    if plan.prompt_secret or plan.task_secret:
        sealed.hide_process()
    return sealed.read_secret(plan.prompt_secret) if plan.prompt_secret else None


def start(plan: Plan, store: RunStore, secret: bytes | None) -> RunAttempt:
    """Count an attempt before anything is sent, and give it the pairs of an earlier run of the same build.

    A resumed run keeps the number it has. Raises InvalidRun when the chain is broken, or when the earlier pairs are no
    longer what was judged.
    """
    if (store.root / ATTEMPT).is_file():
        return _resumed(store.root, secret)
    path, build, plan_hash = history_path(plan, store.root), fingerprint_build(plan), plan_sha256(plan)
    known = history.read(path)
    earlier = history.poolable(known, engine=build, plan=plan_hash) if build and plan.mode == "full" else ()
    began = history.begin(
        path, run=_name(store.root, path), plan=plan_hash, engine=build, mode=plan.mode, sealed=secret is not None
    )
    attempt = RunAttempt(
        attempt=began.number,
        history=str(path.resolve()),
        head=began.hash,
        plan=plan_hash,
        build=build,
        sealed=sealed.fingerprint(secret) if secret else None,
        pooled=earlier[-1].run if earlier else None,
        pooled_pairs=earlier[-1].pairs if earlier else 0,
    )
    for name in PRIVATE if secret else ():
        (store.root / name).mkdir(exist_ok=True)
        (store.root / name).chmod(0o700)
    if earlier:
        _pool(path.parent / earlier[-1].run, store, earlier[-1].pairs)
    write_json(store.root / ATTEMPT, attempt)
    return attempt


def prompt_seed(attempt: RunAttempt, secret: bytes | None) -> int | None:
    """The seed of this attempt's held-out prompts; None: the plan's own, public ones."""
    return sealed.sealed_seed(secret, plan=attempt.plan, attempt=attempt.attempt) if secret else None


def finish(attempt: RunAttempt, store: RunStore, verdict: Verdict) -> None:
    """Record how the attempt ended; a verdict that is recorded already is not recorded twice."""
    path, digest = Path(attempt.history), sha256(store.root / "verdict.json")
    known = history.read(path)
    history.check_contains(known, attempt.head)
    if any(a.attempt == attempt.attempt and a.verdict_sha256 == digest for a in known):
        return
    history.end(path, known[attempt.attempt - 1], verdict, verdict_sha256=digest)


def verified(runs: Path) -> tuple[history.Attempt, ...]:
    """The history in a folder of runs (or the file itself), checked against itself and the runs beside it.

    Raises UsageError when there is none; InvalidRun when the chain is broken, has lost its end, or a run's
    verdict.json is not the one that was recorded.
    """
    path = runs / HISTORY if runs.is_dir() else runs
    if not path.is_file():
        raise UsageError(f"There is no history {path}; every gate writes one beside its run directory.")
    known = history.read(path)
    for own in sorted(path.parent.glob(f"*/{ATTEMPT}")):
        history.check_contains(known, RunAttempt.model_validate(read_json(own), strict=False).head)
    for one in history.ended(known):
        file = path.parent / one.run / "verdict.json"
        if one.verdict_sha256 and file.is_file() and sha256(file) != one.verdict_sha256:
            raise InvalidRun(f"{file} is not the verdict that attempt {one.attempt} recorded: it was edited since.")
    return known


def history_path(plan: Plan, run: Path) -> Path:
    """The plan's history, or the one in the folder that holds the run directory."""
    return plan.history or run.parent / HISTORY


def plan_sha256(plan: Plan) -> str:
    """What two attempts must share to be pooled: the whole plan but what may be spent on it, and how often."""
    free = {"budget_minutes": None, "history": None, "looks": 1}
    return hashlib.sha256(dump_plan(plan.model_copy(update=free)).encode()).hexdigest()


def fingerprint_build(plan: Plan) -> str:
    """SHA-256 over the candidate's launch command and the files that its `build` names; empty without `build`.

    An engine whose launch command stays while its source changes is a new build, so only named files tell two apart.
    Raises UsageError when one is not there.
    """
    candidate = plan.endpoints.candidate
    if not candidate.build:
        return ""
    digest = hashlib.sha256(orjson.dumps([candidate.launch, list(candidate.all_urls), plan.served_model("candidate")]))
    for named in candidate.build:
        if not named.exists():
            raise UsageError(f"endpoints.candidate.build: there is no {named}.")
        files = [named] if named.is_file() else sorted(p for p in named.rglob("*") if p.is_file())
        for file in files:
            digest.update(f"{file.relative_to(named.parent)} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _resumed(root: Path, secret: bytes | None) -> RunAttempt:
    attempt = RunAttempt.model_validate(read_json(root / ATTEMPT), strict=False)
    if attempt.sealed is not None and (secret is None or sealed.fingerprint(secret) != attempt.sealed):
        raise UsageError(f"{root} was begun with another secret seed; its prompts cannot be made again with this one.")
    history.check_contains(history.read(Path(attempt.history)), attempt.head)
    return attempt


def _pool(earlier: Path, store: RunStore, pairs: int) -> None:
    """Take over an earlier run's first pairs, as steps that are finished."""
    if not (earlier / "manifest.json").is_file():
        raise InvalidRun(
            f"{earlier} holds earlier pairs of this build and is gone; a repeat pools with them, so put it back."
        )
    altered = RunStore.open(earlier).altered()
    if altered:
        raise InvalidRun(f"{earlier} holds earlier pairs of this build and was altered since: {altered[0]}.")
    for step, outputs in RunStore.open(earlier).steps().items():
        kind, _, rest = step.partition("/")
        pair = rest.partition("/")[0]
        if kind not in POOLED or (pair.isdigit() and int(pair) > pairs):
            continue
        for name in outputs:
            (store.root / name).parent.mkdir(parents=True, exist_ok=True)
            _link(earlier / name, store.root / name)
        store.record(step, [store.root / name for name in outputs])


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy across file systems: nothing writes into a finished visit."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _name(run: Path, history_file: Path) -> str:
    """The run as its history names it: relative where it lies beside the history."""
    run, folder = run.resolve(), history_file.parent.resolve()
    return str(run.relative_to(folder)) if run.is_relative_to(folder) else str(run)

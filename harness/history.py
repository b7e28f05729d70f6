"""Every attempt counts: the append-only, hash-chained `history.jsonl`.

An engine that is changed until a gate passes has had many chances to pass by luck. So each attempt is written down,
each record carrying the hash of the one before; the record of truth is kept where the engine's author cannot write.

How repeats are treated:

- A repeat of the same engine build under the same plan *pools with* the pairs measured before; it does not replace
  them, and it is judged at the plan's looks as one run. `poolable` names the runs.
- After the plan's last look its error is spent: that build's verdict stands (`standing`), and only a new build can be
  judged again.
- INVALID runs are recorded and count as attempts, but their pairs are not pooled.
- Full runs on held-out prompts are looks at them; `looks_left` counts them against the limit, whatever the build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field, ValidationError

from harness.errors import InvalidRun, UsageError
from harness.verdict import Finite, Record, Status, Verdict

GENESIS = "0" * 64
MAX_LINE = 16_384


class Attempt(Record):
    """One line of `history.jsonl`."""

    schema_version: Literal[1] = 1
    number: int = Field(ge=1)
    time_utc: str
    run: str = Field(max_length=1000)
    plan: str = Field(max_length=128, description="SHA-256 of the resolved plan")
    engine: str = Field(max_length=128, description="fingerprint of the candidate's build")
    mode: Literal["full", "quick"]
    sealed: bool = Field(description="the prompts were held out")
    status: Status
    passed: int
    judged: int
    pairs: int
    worst: str = Field(max_length=300)
    distance: Finite | None = Field(description="of the worst check to its bar, as a share of the bar")
    note: str = Field(default="", max_length=500)
    previous: str = Field(min_length=64, max_length=64)
    hash: str = Field(min_length=64, max_length=64)


def read(path: Path) -> tuple[Attempt, ...]:
    """All attempts, oldest first. Raises InvalidRun naming the first line that breaks the chain."""
    if not path.exists():
        return ()
    attempts: list[Attempt] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            attempts.append(_read_line(path, number, line, attempts[-1].hash if attempts else GENESIS))
    return tuple(attempts)


def append(path: Path, verdict: Verdict, *, run: str, plan: str, engine: str, sealed: bool, note: str = "") -> Attempt:
    """Add one attempt, after checking the chain. Safe against a second process that appends at the same time."""
    if len(note) > 500:
        raise UsageError("A history note is at most 500 characters.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        attempts = read(path)
        attempt = _attempt(attempts, verdict, run, plan, engine, sealed, note)
        file.write(orjson.dumps(attempt.model_dump(mode="json")) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return attempt


def head(attempts: Sequence[Attempt]) -> str:
    """Hash of the newest record: kept in a verdict, it also shows a history whose end was cut off."""
    return attempts[-1].hash if attempts else GENESIS


def check_contains(attempts: Sequence[Attempt], known_head: str) -> None:
    """Raise InvalidRun unless the record with this hash is still there."""
    if known_head != GENESIS and all(attempt.hash != known_head for attempt in attempts):
        raise InvalidRun(
            f"The history has lost the record {known_head[:12]} that a verdict names: "
            "its end was cut off, or it is another file."
        )


def looks_left(attempts: Sequence[Attempt], limit: int) -> int:
    """Full runs on held-out prompts that are still allowed; every one counts, whatever its outcome."""
    return max(0, limit - sum(a.sealed and a.mode == "full" for a in attempts))


def poolable(attempts: Sequence[Attempt], *, engine: str, plan: str) -> tuple[Attempt, ...]:
    """Earlier runs whose pairs a new run of this build under this plan must be judged together with."""
    return tuple(
        a for a in attempts
        if a.engine == engine and a.plan == plan and a.mode == "full" and a.status is not Status.INVALID
    )  # fmt: skip


def standing(attempts: Sequence[Attempt], *, engine: str, plan: str, max_pairs: int) -> Attempt | None:
    """The attempt whose verdict stands for this build, when it passed, failed, or used the plan's last pair."""
    for attempt in reversed(poolable(attempts, engine=engine, plan=plan)):
        if attempt.status in {Status.PASS, Status.FAIL} or attempt.pairs >= max_pairs:
            return attempt
    return None


def table(attempts: Sequence[Attempt]) -> list[tuple[str, ...]]:
    """Rows for people: number, time, mode, status, passed of judged, change to the last one, worst check, run."""
    rows: list[tuple[str, ...]] = []
    for before, attempt in zip((None, *attempts), attempts, strict=False):
        change = "" if before is None else f"{attempt.passed - before.passed:+d}"
        score = f"{attempt.passed}/{attempt.judged}"
        rows.append(
            (
                str(attempt.number),
                attempt.time_utc,
                attempt.mode,
                attempt.status.value,
                score,
                change,
                attempt.worst,
                attempt.run,
            )
        )
    return rows


def _attempt(
    attempts: Sequence[Attempt], verdict: Verdict, run: str, plan: str, engine: str, sealed: bool, note: str
) -> Attempt:
    worst = next((c for c in verdict.checks if c.check in verdict.failed_first[:1]), None)
    fields = {
        "schema_version": 1,
        "number": len(attempts) + 1,
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "plan": plan,
        "engine": engine,
        "mode": verdict.mode,
        "sealed": sealed,
        "status": verdict.status.value,
        "passed": verdict.passed,
        "judged": verdict.judged,
        "pairs": verdict.power.pairs,
        "worst": worst.check[:300] if worst else "",
        "distance": worst.distance if worst else None,
        "note": note,
        "previous": head(attempts),
    }
    return Attempt.model_validate({**fields, "hash": _digest(fields)}, strict=False)


def _digest(fields: dict[str, object]) -> str:
    """SHA-256 of the record without its own hash, keys sorted."""
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _read_line(path: Path, number: int, line: bytes, previous: str) -> Attempt:
    where = f"{path}, line {number}"
    if len(line) > MAX_LINE:
        raise InvalidRun(f"{where} is longer than {MAX_LINE} bytes: this is no history of enginegate's.")
    try:
        fields = orjson.loads(line)
        attempt = Attempt.model_validate(fields, strict=False)
    except (orjson.JSONDecodeError, ValidationError):
        raise InvalidRun(f"{where} is not a history record: the file was cut off or edited.") from None
    del fields["hash"]
    if attempt.previous != previous or attempt.number != number or attempt.hash != _digest(fields):
        raise InvalidRun(
            f"{where} breaks the chain: it, or a line before it, was edited, removed or put in. "
            "Restore the file from where it is kept; a history cannot be repaired."
        )
    return attempt

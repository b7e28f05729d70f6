"""Every attempt counts: the append-only, hash-chained `history.jsonl`.

An engine that is changed until a gate passes has had many chances to pass by luck. So each attempt is written down,
each record carrying the hash of the one before; the record of truth is kept where the engine's author cannot write.

How repeats are treated:

- A repeat of the same engine build under the same plan *pools with* the pairs measured before; it does not replace
  them, and it is judged at the plan's looks as one run. `poolable` names the runs.
- After the plan's last look its error is spent: that build's verdict stands (`standing`), and only a new build can be
  judged again.
- An attempt is written down when it starts, before anything is sent, and again with its verdict: one that is killed
  because it goes badly counts all the same.
- INVALID runs count as attempts, but their pairs are not pooled.
- Full runs on held-out prompts are looks at them; `looks_left` counts them against the limit, whatever the build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from harness.errors import InvalidRun, UsageError
from harness.verdict import Finite, Record, Status, Verdict

GENESIS = "0" * 64
MAX_LINE = 16_384


class Attempt(Record):
    """One line of `history.jsonl`: an attempt that starts (no status yet) or ends."""

    schema_version: Literal[1] = 1
    number: int = Field(ge=1, description="of the line")
    attempt: int = Field(ge=1, description="number of the line that started it")
    time_utc: str
    run: str = Field(max_length=1000)
    plan: str = Field(max_length=128, description="SHA-256 of the resolved plan")
    engine: str = Field(max_length=128, description="fingerprint of the candidate's build")
    mode: Literal["full", "quick"]
    sealed: bool = Field(description="the prompts were held out")
    status: Status | None = Field(default=None, description="null where the attempt starts")
    passed: int = 0
    judged: int = 0
    pairs: int = 0
    worst: str = Field(default="", max_length=300)
    distance: Finite | None = Field(default=None, description="of the worst check to its bar, as a share of the bar")
    verdict_sha256: str = Field(default="", max_length=64, description="of verdict.json")
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


def begin(path: Path, *, run: str, plan: str, engine: str, mode: str, sealed: bool) -> Attempt:
    """Write down that an attempt starts."""
    return _add(path, {"run": run, "plan": plan, "engine": engine, "mode": mode, "sealed": sealed}, attempt=None)


def end(path: Path, began: Attempt, verdict: Verdict, *, verdict_sha256: str = "", note: str = "") -> Attempt:
    """Write down how the attempt that `began` ended."""
    if len(note) > 500:
        raise UsageError("A history note is at most 500 characters.")
    worst = next((c for c in verdict.checks if c.check in verdict.failed_first[:1]), None)
    fields = {
        "run": began.run,
        "plan": began.plan,
        "engine": began.engine,
        "sealed": began.sealed,
        "mode": verdict.mode,
        "status": verdict.status,
        "passed": verdict.passed,
        "judged": verdict.judged,
        "pairs": verdict.power.pairs,
        "worst": worst.check[:300] if worst else "",
        "distance": worst.distance if worst else None,
        "verdict_sha256": verdict_sha256,
        "note": note,
    }
    return _add(path, fields, began.attempt)


def _add(path: Path, fields: dict[str, Any], attempt: int | None) -> Attempt:
    """Add one line, after checking the chain. Safe against a second process that appends at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = read(path)
        number = len(known) + 1
        whole = Attempt.model_construct(
            number=number,
            attempt=attempt or number,
            time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            previous=head(known),
            hash="",
            **fields,
        ).model_dump(mode="json")
        del whole["hash"]
        line = Attempt.model_validate(whole | {"hash": _digest(whole)}, strict=False)
        file.write(orjson.dumps(line.model_dump(mode="json")) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return line


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
    """Full runs on held-out prompts that are still allowed; every one that started counts, whatever its outcome."""
    return max(0, limit - len({a.attempt for a in attempts if a.sealed and a.mode == "full"}))


def poolable(attempts: Sequence[Attempt], *, engine: str, plan: str) -> tuple[Attempt, ...]:
    """Earlier runs whose pairs a new run of this build under this plan must be judged together with."""
    return tuple(
        a for a in attempts
        if a.engine == engine and a.plan == plan and a.mode == "full" and a.status not in {None, Status.INVALID}
    )  # fmt: skip


def standing(attempts: Sequence[Attempt], *, engine: str, plan: str, max_pairs: int) -> Attempt | None:
    """The attempt whose verdict stands for this build, when it passed, failed, or used the plan's last pair."""
    for attempt in reversed(poolable(attempts, engine=engine, plan=plan)):
        if attempt.status in {Status.PASS, Status.FAIL} or attempt.pairs >= max_pairs:
            return attempt
    return None


def ended(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The last line of each attempt, oldest attempt first; one that only started has no status."""
    return tuple({a.attempt: a for a in attempts}.values())


def table(attempts: Sequence[Attempt]) -> list[tuple[str, ...]]:
    """Rows for people: attempt, time, mode, status, passed of judged, change to the last one, worst check, run."""
    rows: list[tuple[str, ...]] = []
    before: Attempt | None = None
    for one in ended(attempts):
        mode = one.mode + (", held out" if one.sealed else "")
        if one.status is None:
            rows.append((str(one.attempt), one.time_utc, mode, "no verdict", "", "", "", one.run))
            continue
        change = "" if before is None else f"{one.passed - before.passed:+d}"
        worst = one.worst + (f" {one.distance:+.1%}" if one.distance is not None else "")
        score = f"{one.passed}/{one.judged}"
        rows.append((str(one.attempt), one.time_utc, mode, one.status.value, score, change, worst, one.run))
        before = one
    return rows


def trend(attempts: Sequence[Attempt]) -> str:
    """One sentence: how many attempts and looks, the best so far, where it has been going."""
    judged = [a for a in ended(attempts) if a.status is not None]
    if not judged:
        return f"{len(ended(attempts))} attempts, none with a verdict."
    best = max(judged, key=lambda a: (a.status is Status.PASS and a.mode == "full", a.passed / max(a.judged, 1)))
    last = " -> ".join(f"{a.passed}/{a.judged}" for a in judged[-6:])
    looks = len({a.attempt for a in attempts if a.sealed and a.mode == "full"})
    return (
        f"{len(ended(attempts))} attempts, {looks} of them looks at held-out prompts; "
        f"best: attempt {best.attempt}, {best.mode} {best.status}, {best.passed}/{best.judged}; last: {last}."
    )


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

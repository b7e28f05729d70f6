"""verdict.json as a report reads it: tolerant of what is missing, never of what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reports.values import as_dict, as_list, as_number

STATUSES = ("PASS", "FAIL", "INCONCLUSIVE", "INVALID")


@dataclass(frozen=True)
class Check:
    """One judged criterion, as verdict.json has it (harness/verdict.py)."""

    check: str
    family: str
    status: str
    criterion: str
    metric: str
    reason: str
    cell: str | None = None
    unit: str = ""
    value_unit: str = ""
    observed: float | None = None
    required: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    confidence: float | None = None
    distance: float | None = None
    noise: float | None = None
    baseline: float | None = None
    candidate: float | None = None
    n: int = 0
    evidence: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Verdict:
    """verdict.json."""

    status: str
    mode: str
    line: str
    sentence: str
    next_step: str
    passed: int
    judged: int
    checks: tuple[Check, ...]
    failed_first: tuple[str, ...] = ()
    power: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def unreadable(sentence: str) -> Verdict:
    """The verdict of a file that says nothing: INVALID, and why."""
    return Verdict("INVALID", "full", "VERDICT INVALID", sentence, "Look at the problems listed below.", 0, 0, ())


def parse_verdict(raw: dict[str, Any]) -> tuple[Verdict, str]:
    """(verdict, what is wrong with it). A PASS that its own checks do not bear out becomes INVALID."""
    if raw.get("schema_version") != 1:
        problem = f"verdict.json has schema version {raw.get('schema_version')}; this report reads version 1."
        return unreadable(
            "verdict.json is of a version that this report does not read, so nothing is decided."
        ), problem
    problem = ""
    items = as_list(raw.get("checks"))
    checks = tuple(_check(item) for item in items if isinstance(item, dict))
    status, sentence = _status(raw), _text(raw, "sentence")
    if status == "PASS" and (not checks or len(checks) < len(items) or any(c.status != "PASS" for c in checks)):
        problem = "verdict.json says PASS, but not every check in it passed."
        status, sentence = "INVALID", "verdict.json contradicts itself: it says PASS, but not every check passed."
    verdict = Verdict(
        status=status,
        mode="full" if raw.get("mode") == "full" else "quick",
        line=_text(raw, "line"),
        sentence=sentence,
        next_step=_text(raw, "next_step"),
        passed=int(as_number(raw.get("passed")) or 0),
        judged=int(as_number(raw.get("judged")) or len(checks)),
        checks=checks,
        failed_first=tuple(str(name) for name in as_list(raw.get("failed_first"))),
        power=as_dict(raw.get("power")),
        cost=as_dict(raw.get("cost")),
        hashes=as_dict(raw.get("hashes")),
        notes=tuple(str(note) for note in as_list(raw.get("notes"))),
    )
    return verdict, problem


def _check(raw: dict[str, Any]) -> Check:
    texts = ("check", "family", "criterion", "metric", "reason", "unit", "value_unit", "hint")
    numbers = ("observed", "required", "ci_low", "ci_high", "confidence", "distance", "noise", "baseline", "candidate")
    fields: dict[str, Any] = {key: _text(raw, key) for key in texts} | {key: as_number(raw.get(key)) for key in numbers}
    return Check(
        status=_status(raw),
        cell=_text(raw, "cell") or None,
        n=int(as_number(raw.get("n")) or 0),
        evidence=tuple(str(path) for path in as_list(raw.get("evidence"))),
        **fields,
    )


def _status(raw: dict[str, Any]) -> str:
    status = str(raw.get("status"))
    return status if status in STATUSES else "INVALID"


def _text(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""

"""Honest: what the oracles found, as checks. Pure.

A broken contract is the candidate's FAIL and the baseline's INVALID. A required oracle that did not score is INVALID;
a finding that could not be scored (the endpoint does not offer what it needs) is a note, and the timed tokens are
judged all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.verdict import Check, Family, Status
from oracles.result import Finding, OracleResult


def contract_checks(results: Sequence[OracleResult], required: frozenset[str]) -> tuple[Check, ...]:
    """One check for each finding of the candidate, and one for each thing that keeps an oracle from being believed."""
    checks: list[Check] = []
    for result in results:
        for finding in result.findings:
            if result.arm in {"candidate", "both"} and finding.status != "unscored":
                checks.append(_candidate(result, finding))
            elif result.arm == "baseline" and finding.status == "broken":
                checks.append(_baseline(result, finding))
    for oracle in sorted(required | {result.oracle for result in results}):
        problem = _problem(oracle, [r for r in results if r.oracle == oracle], required)
        if problem:
            checks.append(_invalid(f"oracle.{oracle}", problem))
    return tuple(checks)


def contract_notes(results: Sequence[OracleResult]) -> tuple[str, ...]:
    """What was not scored, and why; and the oracles' own notes."""
    notes = []
    for result in results:
        where = f"{result.oracle} ({result.arm})"
        if result.status == "unscored":
            notes.append(f"{where} was not scored: {result.reason}")
        notes += [] if result.arm == "baseline" else [f"{where}: {line}" for line in _unscored(result.findings)]
        notes += [f"{where}: {note}" for note in result.notes]
        notes += [_power(result)] if result.arm == "candidate" and any(map(_states_power, result.findings)) else []
    return tuple(dict.fromkeys(notes))


def _unscored(findings: Sequence[Finding]) -> list[str]:
    """A line for each reason. The baseline's are left out: most are set against a baseline, which it has not."""
    names: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status == "unscored":
            names.setdefault(finding.sentence, []).append(finding.name)
    return [
        f"{', '.join(those)} {'were' if len(those) > 1 else 'was'} not scored: {why}" for why, those in names.items()
    ]


def _power(result: OracleResult) -> str:
    """What this run's size could have found, rarest last."""
    rates = {f.name: f.detectable_rate or 0.0 for f in result.findings if _states_power(f)}
    listed = ", ".join(f"{name} {rates[name]:.1%}" for name in sorted(rates, key=lambda n: -rates[n]))
    return f"Power of {result.oracle}: share of misbehaving requests found with 95 % confidence: {listed}."


def _states_power(finding: Finding) -> bool:
    return finding.status != "unscored" and finding.detectable_rate is not None


def withheld(results: Sequence[OracleResult]) -> tuple[OracleResult, ...]:
    """The results without their sentences: on held-out prompts, which check and how far, never a word of an answer."""
    return tuple(
        result.model_copy(
            update={
                "reason": "not told for held-out prompts" if result.reason else "",
                "notes": (),
                "findings": tuple(
                    finding.model_copy(update={"sentence": f"{finding.status} on held-out prompts; no more is told"})
                    for finding in result.findings
                ),
            }
        )
        for result in results
    )


def _problem(oracle: str, results: Sequence[OracleResult], required: frozenset[str]) -> str | None:
    arms = {result.arm: result for result in results}
    if len(arms) != len(results):
        return f"Oracle {oracle} reported one arm twice."
    if oracle in required and "both" not in arms:
        absent = [arm for arm in ("baseline", "candidate") if arm not in arms]
        if absent:
            return f"Oracle {oracle} has no result for the {' and the '.join(absent)}."
    unscored = [r for r in results if r.status == "unscored" and r.arm != "floor"]
    if oracle in required and unscored:
        return f"Oracle {oracle} did not score the {unscored[0].arm}: {unscored[0].reason or 'no reason given'}"
    if {"baseline", "candidate"} <= arms.keys() and not unscored:
        names = [{finding.name for finding in arms[arm].findings} for arm in ("baseline", "candidate")]
        if names[0] != names[1]:
            apart = ", ".join(sorted(names[0] ^ names[1]))
            return f"Oracle {oracle} looked at different things in the two arms: {apart}."
    return None


def _candidate(result: OracleResult, finding: Finding) -> Check:
    return _check(
        f"{result.oracle}.{finding.name}",
        Family.HONESTY,
        Status.FAIL if finding.status == "broken" else Status.PASS,
        result,
        finding,
    )


def _baseline(result: OracleResult, finding: Finding) -> Check:
    return _check(f"baseline.{result.oracle}.{finding.name}", Family.VALIDITY, Status.INVALID, result, finding)


def _check(name: str, family: Family, status: Status, result: OracleResult, finding: Finding) -> Check:
    folder = "candidate" if result.arm == "both" else result.arm
    return Check(
        check=name,
        family=family,
        status=status,
        criterion=f"{finding.name} kept",
        metric=finding.name,
        observed=finding.observed,
        required=finding.limit,
        n=finding.n,
        detectable_rate=finding.detectable_rate,
        evidence=(f"oracles/{folder}/{result.oracle}.json",),
        reason=finding.sentence,
    )


def _invalid(name: str, reason: str) -> Check:
    return Check(
        check=name,
        family=Family.VALIDITY,
        status=Status.INVALID,
        criterion="oracle scored",
        metric=name,
        reason=reason,
    )

"""The decision: everything a run measured in, one Verdict out. Pure: no files, no clock.

A proven FAIL stands over INVALID over INCONCLUSIVE over PASS. What the candidate breaks is its FAIL; INVALID is for
what the judge, the client, the baseline, the reference or the machine got wrong, and takes away the speed (and, where
the baseline itself is broken, the accuracy) checks that rest on it. docs/gate.md tells the whole story.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from harness.accuracy import Judged, TaskScores, judge_divergence, judge_tasks
from harness.completeness import ROLES, blocked_by, broken_baseline, cached_shares, check_complete, whole_pairs
from harness.contracts import contract_checks, contract_notes
from harness.criteria import CellScope
from harness.criterion import Criterion
from harness.divergence import Divergence
from harness.foreign import baseline_checks
from harness.hints import with_hint
from harness.measurement import Role, VisitMeasurement
from harness.noise import KnownNoise
from harness.power import futile, run_power
from harness.speed import (
    Blocked,
    Series,
    Unjudged,
    Visits,
    judge_series,
    make_series,
    served_checks,
    show,
    unjudged_check,
)
from harness.statistics import EXACT_PAIRS, Look, look_at
from harness.verdict import Check, Cost, Family, Power, Status, Verdict
from oracles.result import OracleResult

ACCURACY = ("token_margin", "kld", "tasks")
STATUS_ORDER = (Status.FAIL, Status.INVALID, Status.INCONCLUSIVE, Status.PASS)
FAMILY_ORDER = (Family.VALIDITY, Family.HONESTY, Family.ACCURACY, Family.SPEED)


@dataclass(frozen=True)
class GateInput:
    """All that a verdict rests on.

    Attributes:
        criteria: as `harness.criteria.resolve` paired them with cells.
        cells: every cell of the plan, with the requests each visit must have asked in it.
        visits: one measurement for every pair and role.
        pairs: the plan's looks, (6, 12) or (6,).
        mode: `full` or `quick`; fewer than five pairs are quick whatever this says.
        run: path of the run directory, for the line.
        cost: what was spent.
        hashes: SHA-256 of plan, profiles, criteria and the judge's own code.
        required_oracles: names that must have scored both arms.
        oracles: every result, any arm.
        validity: checks judged elsewhere (client, machine, AIPerf, lengths, caches); INVALID ones take the speed
            checks of their cell, or all of them, with them.
        token_margin: margins of the timed tokens under the reference; None when there is no reference.
        kld: KL divergence by document; None when not measured.
        tasks: paired scores of the timed task items; None when not measured.
        options: the same of options that were asked apart.
        gpus: of each arm, for throughput_per_gpu.
        notes: what the plan could not gate (`harness.criteria.not_gateable`), and the like.
        budget_minutes: that the visits may spend; None without a limit.
        known_noise: of an A/A run that fits this one; sharpens what is said about power, never a verdict.
    """

    criteria: tuple[tuple[Criterion, str | None], ...]
    cells: tuple[CellScope, ...]
    visits: tuple[VisitMeasurement, ...]
    pairs: tuple[int, ...]
    mode: Literal["full", "quick"]
    run: str
    cost: Cost
    hashes: Mapping[str, str]
    required_oracles: frozenset[str]
    oracles: tuple[OracleResult, ...] = ()
    validity: tuple[Check, ...] = ()
    token_margin: Divergence | None = None
    kld: Divergence | None = None
    tasks: TaskScores | None = None
    options: TaskScores | None = None
    gpus: Mapping[Role, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    known_noise: KnownNoise | None = None
    budget_minutes: float | None = None


def decide(run: GateInput, *, power_draws: int = 2000) -> Verdict:
    """Judge a run. `power_draws` simulated runs give the power; 0 leaves it unknown."""
    visits, pairs = whole_pairs(run.visits)
    look = look_at(len(pairs), run.pairs[0], run.pairs[-1])

    complete, incomplete = check_complete(run.criteria, run.cells, run.visits, run.pairs)
    served = served_checks(run.cells, visits, pairs)
    contracts = (
        *contract_checks(run.oracles, run.required_oracles),
        *baseline_checks(run.token_margin, run.kld),
    )
    evidence = (complete, *run.validity, *served, *contracts)
    blocked = blocked_by(evidence) | incomplete

    series, missing = _line_up(run, visits, pairs, blocked)
    speed = judge_series(series, pairs, look)
    accuracy, documents = _accuracy(run, look, len(pairs), broken_baseline(contracts))
    power = run_power(
        series, speed, len(pairs), run.pairs, document_pairs=documents, draws=power_draws, known=run.known_noise
    )
    unordered = (*evidence, *accuracy, *speed, *(unjudged_check(one) for one in missing))
    cached = cached_shares(run.cells, visits, pairs)
    checks = tuple(sorted((with_hint(check, unordered, cached) for check in unordered), key=_order))
    mode: Literal["full", "quick"] = "full" if run.mode == "full" and len(pairs) >= EXACT_PAIRS else "quick"
    return _verdict(run, checks, power, mode)


# --- the two halves ------------------------------------------------------------------------------------------------


def _line_up(
    run: GateInput, visits: Visits, pairs: Sequence[int], blocked: Blocked
) -> tuple[list[Series], list[Unjudged]]:
    """Every speed criterion over the pairs, in an order that does not depend on the input's."""
    lined_up = [
        make_series(criterion, cell, visits, pairs, run.gpus, blocked)
        for criterion, cell in sorted(run.criteria, key=lambda pair: pair[0].check_id(pair[1]))
        if criterion.metric not in ACCURACY
    ]
    series = [one for one in lined_up if isinstance(one, Series)]
    return series, [one for one in lined_up if isinstance(one, Unjudged)]


def _accuracy(run: GateInput, look: Look, pairs: int, broken: str | None) -> tuple[tuple[Check, ...], int | None]:
    """Accuracy checks, and the pairs at which all open ones would have documents enough."""
    checks, needed = [], [0]
    for criterion, _ in run.criteria:
        if criterion.metric not in ACCURACY:
            continue
        for oracle in _oracles(criterion, run):
            judged = Judged(Status.INVALID, broken) if broken else _judge(criterion, oracle, run, look)
            if judged.needed and judged.n and oracle != "options":  # more pairs bring no more of these
                needed.append(int(np.ceil(pairs * judged.needed / judged.n)))
            checks.append(_accuracy_check(criterion, oracle, judged, look))
    return tuple(checks), max(needed) or None


def _oracles(criterion: Criterion, run: GateInput) -> Sequence[str]:
    """Whose numbers a criterion is judged on, one check each.

    Options are never pooled with timed answers: they are asked apart, where an engine may take care.
    """
    if criterion.metric != "tasks":
        return ("tokens",) if criterion.metric == "token_margin" else ("logits",)
    return [one for one in ("tasks", "options") if one in run.required_oracles] or ["tasks"]


def _judge(criterion: Criterion, oracle: str, run: GateInput, look: Look) -> Judged:
    if criterion.metric == "tasks":
        scores = run.tasks if oracle == "tasks" else run.options
        if scores is None:
            return Judged(Status.INVALID, f"No {oracle.removesuffix('s')} was graded.")
        return judge_tasks(scores, criterion.value, alpha=look.alpha)
    arms = run.token_margin if criterion.metric == "token_margin" else run.kld
    if arms is None:
        return Judged(Status.INVALID, f"{criterion.metric} was not measured: no answer was scored under a reference.")
    return judge_divergence(arms, criterion.value, unit=criterion.unit, alpha=look.alpha)


def _accuracy_check(criterion: Criterion, oracle: str, judged: Judged, look: Look) -> Check:
    points = criterion.unit == "pt"
    observed, bar = judged.observed, criterion.value
    distance = errors = None
    if observed is not None:
        distance = (observed - bar) / max(abs(bar), 1.0) if points else bar / max(observed, 1e-9) - 1
        apart = observed - bar if points else float(np.log1p(distance))  # `noise` is of points, or of the log ratio
        errors = apart / judged.noise if judged.noise else None
    return Check(
        check=criterion.check_id(None) + (".options" if oracle == "options" else ""),
        family=Family.ACCURACY,
        status=judged.status,
        criterion=criterion.text,
        metric=criterion.metric,
        unit=criterion.unit,
        observed=observed,
        required=bar,
        ci_low=judged.low,
        ci_high=judged.high,
        confidence=look.confidence,
        n=judged.n,
        distance=distance,
        noise=judged.noise,
        distance_noise=errors,
        baseline=judged.baseline,
        candidate=judged.candidate,
        value_unit="%" if points else "nats",
        evidence=tuple(f"oracles/{arm}/{oracle}.json" for arm in ROLES),
        reason=judged.reason,
        hint=judged.hint,
    )


# --- one answer ----------------------------------------------------------------------------------------------------


def _order(check: Check) -> tuple[int, int, float, str]:
    """What stands in the way first: by status, by family, by distance to the bar."""
    distance = check.distance if check.distance is not None else -np.inf
    return STATUS_ORDER.index(check.status), FAMILY_ORDER.index(check.family), distance, check.check


def overall(checks: Sequence[Check]) -> Status:
    """A proven FAIL over INVALID over INCONCLUSIVE over PASS."""
    statuses = {check.status for check in checks}
    return next(status for status in STATUS_ORDER if status in statuses)


def _verdict(run: GateInput, checks: tuple[Check, ...], power: Power, mode: Literal["full", "quick"]) -> Verdict:
    status = overall(checks)
    passed = sum(check.status is Status.PASS for check in checks)
    standing = [check for check in checks if check.status is not Status.PASS]
    worst = standing[0] if standing else _closest(checks)
    word = f"PROVISIONAL {status.value}" if mode == "quick" else status.value
    line = f"VERDICT {word} {passed}/{len(checks)} worst={_short(worst)} run={run.run}"
    return Verdict(
        status=status,
        mode=mode,
        line=line,
        sentence=_sentence(status, mode, checks, worst),
        passed=passed,
        judged=len(checks),
        checks=checks,
        failed_first=tuple(check.check for check in standing),
        power=power,
        cost=run.cost,
        next_step=_next_step(run, status, mode, standing, power),
        notes=(*run.notes, *contract_notes(run.oracles)),
        hashes=dict(run.hashes),
    )


def _closest(checks: Sequence[Check]) -> Check:
    """Of checks that all pass, the criterion nearest its bar."""
    judged = [c for c in checks if c.family in {Family.SPEED, Family.ACCURACY} and c.distance is not None]
    return min(judged, key=lambda check: check.distance or 0.0) if judged else checks[0]


def _short(check: Check) -> str:
    if check.observed is None or check.required is None or not check.unit:
        return check.check
    return f"{check.check} {show(check.observed, check.unit)} need {show(check.required, check.unit)}"


def _sentence(status: Status, mode: str, checks: Sequence[Check], worst: Check) -> str:
    count = sum(check.status is status for check in checks)
    prefix = "Provisional (a quick run decides nothing): " if mode == "quick" else ""
    if status is Status.PASS:
        return f"{prefix}all {len(checks)} checks pass; the closest is {worst.check}: {worst.reason}"
    what = {Status.FAIL: "fail", Status.INVALID: "could not be judged", Status.INCONCLUSIVE: "are undecided"}[status]
    return f"{prefix}{count} of {len(checks)} checks {what}; first {worst.check}: {worst.reason}"


def _next_step(run: GateInput, status: Status, mode: str, standing: Sequence[Check], power: Power) -> str:
    if status is Status.PASS:
        return "Run the full gate: a quick PASS never counts." if mode == "quick" else "Nothing stands in the way."
    if status is Status.INCONCLUSIVE:
        return _more_pairs(run, standing, power)
    first = standing[0]
    what = "Repair the run first" if status is Status.INVALID else "Start with"
    return f"{what}: {first.check}. {first.hint or first.reason}"


def _more_pairs(run: GateInput, standing: Sequence[Check], power: Power) -> str:
    hopeless = futile(standing)
    if hopeless is not None:
        return (
            f"Futile: more pairs will not make this a PASS. {hopeless.check}: {hopeless.reason} {hopeless.hint}".strip()
        )
    if power.pairs_needed is None:
        return "No reasonable number of pairs decides this: an open check sits on its bar or has unknown noise."
    more = max(power.pairs_needed - power.pairs, 1)
    minutes = run.cost.wall_s / 60 / max(power.pairs, 1) * more
    advice = f"About {power.pairs_needed} pairs would decide: {more} more, some {minutes:.0f} minutes at this pace."
    if run.budget_minutes is not None and run.cost.wall_s / 60 + minutes > run.budget_minutes:
        advice += f" budget_minutes: {run.budget_minutes:g} does not pay for that; raise it and go on with --resume."
    elif power.pairs_needed > power.max_pairs:
        advice += f" The plan stops at {power.max_pairs}."
    return advice

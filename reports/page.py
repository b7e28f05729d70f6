"""From a run to what one page says: plain values that the template lays out and summary.md repeats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from reports import wording
from reports.definitions import label
from reports.heatmap import SEVERITY, anchor, severity
from reports.run_data import Run
from reports.values import as_dict, as_list, as_number
from reports.verdict_data import Check

FAMILIES = {"speed": "Faster", "accuracy": "As right", "honesty": "Honest"}
UNJUDGED = "NOT JUDGED"


@dataclass(frozen=True)
class Half:
    """One half of the question: its state, how many checks passed, and the check that limits it."""

    title: str
    family: str
    state: str
    counts: str
    limiting: Check | None
    sentence: str

    @property
    def glyph(self) -> str:
        """The state as a sign."""
        return wording.GLYPHS.get(self.state, "○")


def halves(run: Run) -> tuple[Half, ...]:
    """Faster, as right, honest: never shown apart."""
    return tuple(_half(run, family, title) for family, title in FAMILIES.items())


def _half(run: Run, family: str, title: str) -> Half:
    checks = run.of_family(family)
    if not checks:
        return Half(title, family, UNJUDGED, "no check", None, _why_unjudged(run, family))
    worst = min(checks, key=severity)
    passed = sum(check.status == "PASS" for check in checks)
    counts = f"{passed} of {wording.count(len(checks), 'check')} passed"
    if family == "honesty":
        broken = [check for check in checks if check.status != "PASS"]
        more = f" And {wording.count(len(broken) - 1, 'other')}." if len(broken) > 1 else ""
        told = f"{worst.check}: {worst.reason}{more}" if broken else f"Every contract was kept.{_power(run)}"
        return Half(title, family, worst.status, counts, None, told)
    return Half(title, family, worst.status, counts, worst, worst.reason)


def _power(run: Run) -> str:
    """What the sharpest and the bluntest of the probabilistic checks would have found."""
    findings = [
        as_dict(finding)
        for result in run.oracles.get("candidate", {}).values()
        for finding in as_list(result.get("findings"))
    ]
    rates = [rate for finding in findings if (rate := as_number(finding.get("detectable_rate"))) is not None]
    if not rates:
        return ""
    return (
        f" The sharpest check finds misbehaviour in {wording.percent(min(rates))} of requests, "
        f"the bluntest in {wording.percent(max(rates))} (95 % confidence)."
    )


def _why_unjudged(run: Run, family: str) -> str:
    if run.verdict is None:
        return "Nothing was judged."
    if family == "accuracy":
        reasons = [
            str(result.get("reason"))
            for arm in ("candidate", "baseline")
            for result in run.oracles.get(arm, {}).values()
            if result.get("status") == "unscored" and result.get("reason")
        ]
        return reasons[0] if reasons else "No reference scored this run, so nothing is known about its answers."
    return "This run has no such check."


def headline(check: Check) -> str:
    """One check in a few words: TTFT p50 at chat/c32: 1.11× (1.08 to 1.15), needs ≥ 1.20×."""
    if not wording.sign(check):
        return f"{check.check}: {check.reason}"
    where = f" at {check.cell}" if check.cell else ""
    observed = wording.with_unit(check.observed, check.unit) if check.observed is not None else check.status
    bounds = wording.interval(check)
    verb = "needs" if wording.wants_more(check) else "allowed"
    needs = f", {verb} {wording.bar(check)}"
    return (
        f"{label(check.metric)}{where}: {observed}"
        + (f" ({bounds})" if bounds else "")
        + (needs if check.required is not None else "")
    )


def limiting(run: Run) -> Check | None:
    """The check that stands in the way most, or the closest one when all passed."""
    by_id = {check.check: check for check in run.checks}
    named = [by_id[name] for name in run.verdict.failed_first if name in by_id] if run.verdict else []
    if named:
        return named[0]
    judged = [check for check in run.checks if check.family in ("speed", "accuracy") and check.distance is not None]
    broken = [check for check in run.checks if check.status != "PASS"]
    return min(broken or judged or run.checks, key=severity, default=None)


def next_step(run: Run) -> str:
    """What to do next, without what the verdict's sentence has just said."""
    worst = limiting(run)
    if run.verdict is None or worst is None:
        return run.verdict.next_step if run.verdict else ""
    told = run.verdict.next_step
    if worst.reason and worst.reason in run.verdict.sentence:
        told = " ".join(told.replace(worst.reason, "").split())
    return "" if told.rstrip(".") in ("", f"Start with: {worst.check}") else told.replace(f"{worst.check}: ", "")


@dataclass(frozen=True)
class ChecklistItem:
    """Checks of one kind over all cells, folded into one line."""

    name: str
    state: str
    scope: str
    sentence: str
    hint: str
    target: str

    @property
    def glyph(self) -> str:
        """The state as a sign."""
        return wording.GLYPHS.get(self.state, "○")


def checklist(checks: Sequence[Check]) -> tuple[ChecklistItem, ...]:
    """Fold `same-cache@a`, `same-cache@b`, ... into one line that carries the worst of them; broken ones first."""
    kinds: dict[str, list[Check]] = {}
    for check in checks:
        kinds.setdefault(check.check.partition("@")[0], []).append(check)
    items = []
    for kind, members in kinds.items():
        worst = min(members, key=severity)
        broken = sum(member.status != "PASS" for member in members)
        scope = wording.count(len(members), "cell") if worst.cell else ""
        if worst.cell and broken:
            scope = f"{broken} of {scope}"
        name = wording.sentence_case(kind).replace(".", " · ")
        items.append(ChecklistItem(name, worst.status, scope, worst.reason, worst.hint, anchor(worst.check)))
    return tuple(sorted(items, key=lambda item: SEVERITY[item.state]))


def identity(run: Run) -> tuple[tuple[str, str], ...]:
    """Who was compared, on what, when: (label, value)."""
    plan, env = run.plan, run.environment
    arms = sorted(run.arms, key=lambda arm: arm != "candidate")
    rows = [(arm.capitalize() if arm in ("candidate", "baseline") else arm, _engine(run, arm)) for arm in arms]
    rows += [
        ("Model", _text(plan.get("model"))),
        ("Reference", _reference(plan)),
        ("Machine", _machine(env)),
        ("Judge", _judge(env)),
        ("Measured", _when(run)),
        ("Traffic", _traffic(run)),
    ]
    return tuple((name, value) for name, value in rows if value)


def _engine(run: Run, arm: str) -> str:
    """Server, model and address: what the engine says of itself, and where the plan found it."""
    endpoint = as_dict(as_dict(run.plan.get("endpoints")).get(arm))
    known = run.engines.get(arm, {})
    replica = next((as_dict(item) for item in as_list(known.get("replicas"))), {})
    model = next((as_dict(item) for item in as_list(replica.get("models"))), {})
    urls = as_list(known.get("urls")) or as_list(endpoint.get("urls")) or [endpoint.get("url")]
    parts = [
        replica.get("server"),
        replica.get("system_fingerprint"),
        endpoint.get("model") or model.get("id"),
        as_dict(model.get("meta")).get("ftype"),
        *urls[:2],
        f"and {len(urls) - 2} more" if len(urls) > 2 else "",
    ]
    return " · ".join(dict.fromkeys(str(part) for part in parts if part))


def _reference(plan: dict[str, object]) -> str:
    reference = as_dict(plan.get("reference"))
    if not reference:
        return "none: accuracy is not judged"
    where = str(reference.get("model") or reference.get("url") or reference.get("path") or "")
    short = where if "://" in where else "/".join(where.rstrip("/").split("/")[-2:])
    return " · ".join(part for part in (short, str(reference.get("dtype") or "")) if part)


def _machine(env: dict[str, object]) -> str:
    gpus = [str(as_dict(gpu).get("name")) for gpu in as_list(env.get("gpus"))]
    drivers = {str(driver) for gpu in as_list(env.get("gpus")) if (driver := as_dict(gpu).get("driver_version"))}
    cpu = as_dict(env.get("cpu"))
    parts = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    parts += [f"driver {', '.join(sorted(drivers))}"] if drivers else []
    parts += [f"{cpu.get('model')} × {cpu.get('count')}"] if cpu.get("model") else []
    return " · ".join(parts)


def _judge(env: dict[str, object]) -> str:
    aiperf = as_dict(env.get("versions")).get("aiperf")
    code = str(env.get("code_sha256") or "")[:10]
    parts = [
        ("enginegate", env.get("enginegate")), ("", _revision(env) if env else ""), ("code", code), ("AIPerf", aiperf),
    ]  # fmt: skip
    return " · ".join(f"{name} {value}".strip() for name, value in parts if value)


def _revision(env: dict[str, object]) -> str:
    """A commit names the code only when the code is what the commit holds; a copied tree's often is not."""
    revision = str(env.get("git_revision") or "")[:10]
    if revision and not env.get("git_dirty"):
        return f"revision {revision}"
    return "revision unknown" + (f" (changed since {revision})" if revision else "")


def started_at(run: Run) -> float | None:
    """Unix time of the first visit."""
    times = [as_number(visit.record.get("started_at")) for visit in run.visits]
    return min((t for t in times if t), default=None)


def _when(run: Run) -> str:
    start = started_at(run)
    parts = [time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start))] if start else []
    if run.verdict and (wall := as_number(run.verdict.cost.get("wall_s"))):
        parts.append(wording.duration(wall))
    return " · ".join(parts)


def _traffic(run: Run) -> str:
    parts = [wording.count(run.pairs, "pair")] if run.verdict or run.pairs > 1 else []
    parts.append(wording.count(len(run.cells), "cell"))
    if run.verdict and (requests := as_number(run.verdict.cost.get("requests"))):
        parts.append(wording.count(requests, "request"))
    if run.plan.get("seed") is not None:
        parts.append(f"seed {run.plan['seed']}")
    return " · ".join(parts)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def validity_line(items: Sequence[ChecklistItem]) -> tuple[str, str]:
    """(state, sentence) of the whole checklist in one line."""
    broken = [item.name.lower() + (f" ({item.scope})" if item.scope else "") for item in items if item.state != "PASS"]
    if not items:
        return UNJUDGED, "No validity check in this run."
    return (items[0].state, f"Not fit to be judged: {', '.join(broken)}.") if broken else ("PASS", "Fit to be judged.")


def measured_line(run: Run) -> str:
    """What a run without a verdict did, and what it cannot say."""
    done = f"{wording.count(len(run.arms), 'endpoint')}, {wording.count(len(run.cells), 'cell')}."
    if run.status == "UNFINISHED":
        return (
            f"{done} This gate has not come to a verdict; go on with it: enginegate gate --resume --run-dir {run.name}"
        )
    return (
        f"{done} A sweep measures speed only: whether the answers are right is not known until a gate or a verify has "
        "judged them."
    )


def reproduce(run: Run) -> tuple[str, ...]:
    """Commands that make this run again and that re-judge it."""
    if run.verdict:
        return (f"enginegate gate {run.name}/plan.yaml", f"enginegate recheck {run.name}")
    return (f"enginegate sweep {run.name}/plan.yaml",) if run.plan.get("kind") == "sweep" else ()

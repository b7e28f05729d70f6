"""From counts to findings: when is misbehaviour proven, and how rare a misbehaviour would this run have found?

A *contract* needs no statistics: one error event inside a 200 stream is one too many. Everything else is an exact
one-sided test: binomial against a rate that honest engines stay under, Fisher's exact test against the baseline on the
same requests (their outcomes correlate, which makes it conservative), or a test made by the caller. Holm's step-down
bounds the chance that an honest arm is accused of *anything* by `ALPHA`; a minimum effect keeps large runs from
accusing an engine of trifles. Power is Clopper-Pearson's: the share r of misbehaving requests for which
P(enough of n misbehave) >= 95 %; with one instance enough that is 1 - 0.05^(1/n).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from oracles.result import Finding

ALPHA = 0.01
POWER = 0.95
EXAMPLES = 3
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Evidence:
    """What one check saw. `p` is None for a contract; `needed[level]` is how many instances would accuse."""

    name: str
    what: str
    count: int = 0
    n: int = 0
    p: float | None = None
    against: str = ""
    limit: float | None = None
    effect: bool = True  # is the departure large enough to matter?
    p_by_count: npt.NDArray[np.float64] | None = None  # p for 0..n instances, inf where the effect is too small
    examples: tuple[str, ...] = ()
    unscored: str = ""


def unscored(name: str, reason: str) -> Evidence:
    """The check could not be made; `reason` completes the sentence."""
    return Evidence(name, "", unscored=reason)


def contract(name: str, what: str, broke: Flags, labels: Sequence[Any]) -> Evidence:
    """One instance proves it. `labels` name the requests looked at."""
    if len(broke) == 0:
        return unscored(name, "no request in this run could break it")
    return Evidence(name, what, int(broke.sum()), len(broke), limit=0.0, examples=_pick(broke, labels))


def rate(name: str, what: str, broke: Flags, labels: Sequence[Any], honest: float) -> Evidence:
    """More than honest engines do: exact binomial against the share `honest`."""
    n, count = len(broke), int(broke.sum())
    if n == 0:
        return unscored(name, "no request in this run could show it")
    ladder = stats.binom.sf(np.arange(n + 1) - 1, n, honest)
    ladder[np.arange(n + 1) / n <= honest] = np.inf
    return Evidence(
        name, what, count, n, float(min(1.0, ladder[count])), f"honest engines stay under {honest:.0%}", honest,
        p_by_count=ladder, effect=count / n > honest, examples=_pick(broke, labels),
    )  # fmt: skip


def versus(
    name: str, what: str, broke: Flags, labels: Sequence[Any], baseline: Flags | None, margin: float, trials: int = 1
) -> Evidence:
    """More than the baseline on the same requests, by at least `margin`: Fisher's exact test, one-sided.

    `trials`: among how many candidates the tested property was picked (Bonferroni).
    """
    if len(broke) == 0:
        return unscored(name, "no request in this run could show it")
    if baseline is None or len(baseline) == 0:
        return unscored(name, "it is judged against the baseline, and there is none")
    n, m, count, other = len(broke), len(baseline), int(broke.sum()), int(baseline.sum())
    steps = np.arange(n + 1)
    ladder = np.minimum(1.0, trials * stats.hypergeom.sf(steps - 1, n + m, steps + other, n))
    ladder[steps / n - other / m < margin] = np.inf
    limit = other / m + margin
    return Evidence(
        name, what, count, n, float(min(1.0, ladder[count])), f"the baseline {other} of {m}", limit,
        p_by_count=ladder, effect=count / n - other / m >= margin, examples=_pick(broke, labels),
    )  # fmt: skip


def exceeds(
    name: str, what: str, broke: Flags, labels: Sequence[Any], baseline: Flags | None, honest: float, margin: float
) -> Evidence:
    """More than the baseline by `margin`; for the baseline itself, which has none, more than the share `honest`."""
    if baseline is None:
        return rate(name, what, broke, labels, honest)
    return versus(name, what, broke, labels, baseline, margin)


def tested(
    name: str, what: str, broke: Flags, labels: Sequence[Any], p: float, effect: bool, against: str, limit: float
) -> Evidence:
    """A test the caller made; no power is stated for it."""
    if len(broke) == 0:
        return unscored(name, "no request in this run could show it")
    return Evidence(
        name, what, int(broke.sum()), len(broke), float(p), against, limit, effect, examples=_pick(broke, labels)
    )


def merge(name: str, parts: Iterable[Evidence]) -> Evidence:
    """One check made in several ways: the strongest way speaks, its p multiplied by how many there were."""
    made = [part for part in parts if not part.unscored]
    if not made:
        return next((replace(part, name=name) for part in parts if part.unscored), unscored(name, "nothing to judge"))
    worst = min(made, key=lambda part: (not part.effect, _p(part)))
    if worst.p is None:
        return replace(worst, name=name)
    ladder = None if worst.p_by_count is None else worst.p_by_count * len(made)
    return replace(worst, name=name, p=min(1.0, worst.p * len(made)), p_by_count=ladder)


def judge(evidence: Sequence[Evidence], alpha: float = ALPHA) -> tuple[Finding, ...]:
    """Holm over the probabilistic checks, contracts as they are; one Finding each, in the order given."""
    random = [e for e in evidence if e.p is not None and not e.unscored]
    accused: set[str] = set()
    for rank, e in enumerate(sorted(random, key=_p)):
        if _p(e) > alpha / (len(random) - rank):
            break
        accused.add(e.name)
    level = alpha / max(1, len(random))
    return tuple(_finding(e, e.name in accused and e.effect, level) for e in evidence)


def detectable(n: int, needed: int) -> float | None:
    """Share of misbehaving requests at which at least `needed` of `n` misbehave with 95 % confidence; None: never."""
    if n <= 0 or needed > n:
        return None
    return float(stats.beta.ppf(POWER, needed, n - needed + 1))


def _finding(e: Evidence, accused: bool, level: float) -> Finding:
    if e.unscored:
        sentence = f"Not judged: {e.unscored}."
        return Finding(
            name=e.name, status="unscored", sentence=sentence, count=0, n=0, detectable_rate=None, examples=()
        )
    needed = _needed(e, level)
    found = None if needed is None else detectable(e.n, needed)
    seen = f"{e.count} of {e.n} requests: {e.what}"
    broken = e.count > 0 if e.p is None else accused
    status: Literal["kept", "broken", "unscored"] = "broken" if broken else "kept"
    sentence = f"{seen}; none may." if e.p is None else f"{seen}; {e.against} (p={e.p:.2g})."
    if needed is not None and found is None and not broken:
        status, sentence = "unscored", f"Not judged: {e.n} requests are too few. {sentence}"
    elif found is not None and not broken:
        sentence += f" {found:.1%} of requests doing so would have been found."
    return Finding(
        name=e.name,
        status=status,
        sentence=sentence,
        observed=e.count / e.n if e.n else None,
        limit=e.limit,
        count=e.count,
        n=e.n,
        detectable_rate=found,
        examples=e.examples if broken else (),
    )


def _needed(e: Evidence, level: float) -> int | None:
    if e.p is None:
        return 1
    if e.p_by_count is None:
        return None
    enough = np.flatnonzero(e.p_by_count <= level)
    return int(enough[0]) if len(enough) else e.n + 1


def _p(e: Evidence) -> float:
    return 0.0 if e.p is None else e.p


def _pick(broke: Flags, labels: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(labels[i])[:120] for i in np.flatnonzero(broke)[:EXAMPLES])

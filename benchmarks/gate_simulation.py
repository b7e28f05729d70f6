"""Is the gate right as often as it claims? Synthetic gates with known truth, judged by the gate's own statistics.

Every gate has 40 checks (10 cells, four metrics), noise of 2, 3 or 5 % between pairs, correlated 0.5 between checks,
looks at 6 and 12 pairs, ABBA order. All gates of a setting are one array; a sample of each is also driven through the
whole `decide`, visit by visit, and must end the same. The last line is for machines (worst noise of the three):

    false_pass   one check exactly at 1.20x, the rest at 1.50x, policy beat-by-20: share of gates that PASS
    false_fail   candidate equal to the baseline, policy no-regression: share of gates that FAIL
    power_error  share that passes minus the chance that the verdicts print, in points
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log

import numpy as np
import numpy.typing as npt

from harness.accuracy import judge_divergence
from harness.criteria import CellScope, load_policy, resolve
from harness.divergence import Divergence, Documents
from harness.gate import GateInput, decide
from harness.measurement import CellMeasurement, Distribution, Role, VisitMeasurement
from harness.power import HEADROOM, chance_to_pass, looks_of, measured_noise, wants_more_pairs
from harness.statistics import Array, Decisions, hodges_lehmann, judge, look_at
from harness.verdict import Cost, Status

CELLS = tuple(f"chat/c{concurrency}" for concurrency in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256))
METRICS = ("ttft.p50", "tpot.p50", "request_latency.p50", "output_throughput")
SCOPES = tuple(CellScope(cell, "chat", frozenset(METRICS), 64) for cell in CELLS)
CHECKS = len(CELLS) * len(METRICS)
BARS = {"beat-by-20": 1.20, "no-regression": 0.95}
LOOKS = (6, 12)
CORRELATION = 0.5
SAMPLE = 20  # gates of each setting that go through the whole decide
ZERO = Distribution(count=64, mean=1.0, stddev=0.0, min=1.0, p50=1.0, p90=1.0, p95=1.0, p99=1.0, max=1.0)
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """What the synthetic engines are: log speed-ups [checks], noise of the log ratio, drift of log speed a slot."""

    policy: str
    speedup: Array
    noise: float
    drift: float = 0.0


def draw(truth: Truth, gates: int, seed: int) -> Array:
    """Log speeds [gates, pairs, arms, checks]; arm 0 is the baseline. Noise is split evenly between the arms."""
    rng = np.random.default_rng(seed)
    shape = (gates, LOOKS[-1], 2)
    shared, own = rng.standard_normal((*shape, 1)), rng.standard_normal((*shape, CHECKS))
    speed = truth.noise / np.sqrt(2) * (np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * own)
    # ABBA in random orientation: in each block of two pairs the candidate comes second in the first or in the other.
    second = (np.arange(LOOKS[-1]) + np.repeat(rng.integers(2, size=(gates, LOOKS[-1] // 2)), 2, axis=1)) % 2
    slot = 2 * np.arange(LOOKS[-1])[:, None] + np.stack([1 - second, second], axis=-1)
    speed -= truth.drift * slot[..., None]
    speed[:, :, 1] += truth.speedup
    return np.asarray(speed)


def over_bar(speed: Array, policy: str) -> Array:
    """log(speed-up / bar) as the gate sees it: [gates, checks, pairs]."""
    return np.asarray((speed[:, :, 1] - speed[:, :, 0]).transpose(0, 2, 1) - log(BARS[policy]))


def judged(d: Array) -> tuple[Flags, Flags, Flags]:
    """Which gates PASS, which FAIL, and which took the second look: as the pipeline goes through its looks."""
    first = judge(d[..., : LOOKS[0]], look_at(LOOKS[0], *LOOKS).alpha)
    passed, failed = first.passed.all(axis=-1), first.failed.any(axis=-1)
    again = ~passed & ~failed & ~_futile(first)
    last = judge(d[again], look_at(LOOKS[1], *LOOKS).alpha)
    passed[again], failed[again] = last.passed.all(axis=-1), last.failed.any(axis=-1)
    return passed & ~failed, failed, again


def _futile(decisions: Decisions) -> Flags:
    undecided = ~decisions.passed & ~decisions.failed
    return np.asarray((undecided & (decisions.estimate < 0) & (decisions.upper < 0)).any(axis=-1))


def printed_power(d: Array, again: Flags, bar: float) -> Array:
    """The chance to pass that each gate's verdict would print, from its own measured noise: [gates]."""
    margin = np.full(CHECKS, log((bar + HEADROOM) / bar))
    chances = np.empty(len(d))
    for i, pairs in enumerate(np.where(again, LOOKS[1], LOOKS[0])):
        noise = measured_noise(d[i, :, :pairs])
        chances[i] = chance_to_pass(margin, noise.sd, noise.correlation, looks_of(LOOKS), draws=100, seed=i)
    return chances


# --- the same gates through the whole decide ------------------------------------------------------------------------


def whole_gate(truth: Truth, speed: Array) -> Status:
    """One gate's log speeds [pairs, arms, checks] as measured visits, through `decide` at each look."""
    run = GateInput(
        resolve(load_policy(truth.policy), SCOPES, frozenset()),
        SCOPES,
        (),
        LOOKS,
        "full",
        "runs/synthetic",
        Cost(wall_s=60, requests=1, output_tokens=1),
        {},
        frozenset(),
    )
    visits = list(_visits(np.exp(speed)))
    for look in LOOKS:
        verdict = decide(replace(run, visits=tuple(visits[: 2 * look])), power_draws=0)
        if not wants_more_pairs(verdict):
            break
    return verdict.status


def _visits(speed: Array) -> Iterator[VisitMeasurement]:
    roles: tuple[Role, Role] = ("baseline", "candidate")
    for pair, arms in enumerate(speed):
        for role, of_checks in zip(roles, arms, strict=True):
            cells = {cell: _cell(of_checks[4 * i : 4 * i + 4]) for i, cell in enumerate(CELLS)}
            yield VisitMeasurement.model_construct(pair=pair + 1, role=role, slot=2 * pair, cells=cells)


def _cell(speed: Array) -> CellMeasurement:
    times = [ZERO.model_copy(update={"p50": 100 / s}) for s in speed[:3]]
    return CellMeasurement.model_construct(
        asked=64, served=64, failures={}, duration_s=10.0,
        ttft_ms=times[0], tpot_ms=times[1], request_latency_ms=times[2],
        output_tokens=6400, output_tokens_source="ids", output_throughput=640 * float(speed[3]),
        output_throughput_per_user=None, request_throughput=None, goodput=None, signals={},
    )  # fmt: skip


def disagreements(truth: Truth, speed: Array, passed: Flags, failed: Flags) -> int:
    """How many of the first gates end otherwise in `decide` than in the array."""
    expected = np.where(passed, "PASS", np.where(failed, "FAIL", "INCONCLUSIVE"))
    return sum(whole_gate(truth, one).value != want for one, want in zip(speed[:SAMPLE], expected, strict=False))


# --- the accuracy half ----------------------------------------------------------------------------------------------


def accuracy_status(ratio: float, seed: int) -> Status:
    """Judge 200 documents of four strata whose true ratio to the baseline is known, at the first look's level."""
    rng = np.random.default_rng(seed)
    difficulty = rng.gamma(0.5, 2, 200)
    arms = [_documents(rng, difficulty, scale) for scale in (ratio, 1.0)]
    floor = _documents(rng, difficulty[:40], 0.2)
    return judge_divergence(Divergence(*arms, floor), 1.05, alpha=look_at(6, *LOOKS).alpha, resamples=500).status


def _documents(rng: np.random.Generator, difficulty: Array, scale: float) -> Documents:
    """Answers of 16 to 96 tokens; a disagreement in 3 % of them, exponential margins, hard documents have more."""
    n = len(difficulty)
    tokens, line = rng.integers(16, 97, n).astype(float), np.arange(n)
    disagreements = rng.poisson(0.03 * tokens * difficulty)
    nats = scale * 0.12 * rng.standard_gamma(np.maximum(disagreements, 1e-9)) * (disagreements > 0)
    return Documents(np.ones(n, dtype=np.int64), line, line.astype(str), (line % 4).astype(str), tokens, nats)


# --- the table ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=2000, help="synthetic gates a setting")
    gates, began = parser.parse_args().gates, time.monotonic()
    edge = np.full(CHECKS, log(1.5))
    edge[CHECKS // 2] = log(1.2)
    false_pass, false_fail, errors, differ = [], [], [], 0
    print(f"{gates} gates of {CHECKS} checks a setting, correlation {CORRELATION}, looks at 6 and 12 pairs")
    for number, noise in enumerate((0.02, 0.03, 0.05)):
        settings = (
            Truth("beat-by-20", edge, noise),
            Truth("no-regression", np.zeros(CHECKS), noise),
            Truth("beat-by-20", np.full(CHECKS, log(1.25)), noise),
        )
        shares = []
        for index, truth in enumerate(settings):
            speed = draw(truth, gates, seed=10 * number + index)
            d = over_bar(speed, truth.policy)
            passed, failed, again = judged(d)
            differ += disagreements(truth, speed, passed, failed)
            shares.append((float(passed.mean()), float(failed.mean())))
        printed = float(printed_power(d, again, 1.20).mean())
        false_pass.append(shares[0][0])
        false_fail.append(shares[1][1])
        errors.append(100 * (shares[2][0] - printed))
        print(f"noise {noise:.0%}: one check at the bar, the rest at 1.5x: PASS {shares[0][0]:.2%}")
        print(f"          equal engines under no-regression: FAIL {shares[1][1]:.2%}, PASS {shares[1][0]:.1%}")
        print(f"          truly 1.25x everywhere: PASS {shares[2][0]:.1%}, printed {printed:.1%}", flush=True)
    drifting = Truth("beat-by-20", np.full(CHECKS, log(1.25)), 0.03, drift=0.02)
    d = over_bar(draw(drifting, gates, seed=99), drifting.policy)[..., : LOOKS[0]]
    bias = 100 * (float(np.exp(hodges_lehmann(d) - log(1.25 / 1.20)).mean()) - 1)
    print(f"drift of 2 % a slot biases the estimate by {bias:+.3f} %", flush=True)
    equal = [accuracy_status(1.0, seed) for seed in range(gates)]
    at_limit = [accuracy_status(1.05, seed) for seed in range(gates, 2 * gates)]
    accuracy_fail, accuracy_pass = equal.count(Status.FAIL) / gates, at_limit.count(Status.PASS) / gates
    print(f"accuracy: equal numerics FAIL {accuracy_fail:.2%}, exactly at 1.05x PASS {accuracy_pass:.2%}")
    print(f"gates driven through decide as well: {9 * min(SAMPLE, gates)}, of which {differ} ended otherwise")
    print(f"{time.monotonic() - began:.0f} s")
    if differ:
        raise SystemExit("The array and decide disagree: no figure above can be trusted.")
    print(
        f"false_pass={max(false_pass):.4f} false_fail={max(false_fail):.4f} power_error={max(errors, key=abs):+.2f}pt "
        f"drift_bias={bias:+.3f}% accuracy_false_fail={accuracy_fail:.4f} accuracy_false_pass={accuracy_pass:.4f}"
    )


if __name__ == "__main__":
    main()

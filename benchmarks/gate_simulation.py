"""Is the gate right as often as it claims? Synthetic gates through the real `decide`, with known truth.

Every gate has 40 checks (10 cells, four metrics), noise of 2, 3 or 5 % between pairs, correlated 0.5 between checks,
looks at 6 and 12 pairs, ABBA order. The last line is for machines (worst noise of the three):

    false_pass   one check exactly at 1.20x, the rest at 1.50x, policy beat-by-20: share of gates that PASS
    false_fail   candidate equal to the baseline, policy no-regression: share of gates that FAIL
    power_error  share that passes minus the chance that the verdicts print, in points
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import log

import numpy as np

from harness.accuracy import Divergence, Documents, judge_divergence
from harness.criteria import CellScope, load_policy, resolve
from harness.gate import GateInput, decide
from harness.measurement import CellMeasurement, Distribution, Role, VisitMeasurement
from harness.power import wants_more_pairs
from harness.statistics import Array, hodges_lehmann, look_at
from harness.verdict import Cost, Status, Verdict

CELLS = tuple(f"chat/c{concurrency}" for concurrency in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256))
METRICS = ("ttft.p50", "tpot.p50", "request_latency.p50", "output_throughput")
SCOPES = tuple(CellScope(cell, "chat", frozenset(METRICS), 64) for cell in CELLS)
LOOKS = (6, 12)
CORRELATION = 0.5
ZERO = Distribution(count=64, mean=1.0, stddev=0.0, min=1.0, p50=1.0, p90=1.0, p95=1.0, p99=1.0, max=1.0)


@dataclass(frozen=True)
class Truth:
    """What the synthetic engines are: log speed-ups [40], noise of the log ratio, drift a slot."""

    policy: str
    speedup: Array
    noise: float
    drift: float = 0.0


def one_gate(truth: Truth, seed: int, power_draws: int = 0) -> tuple[Verdict, GateInput]:
    """Drive one synthetic gate through its looks, as the pipeline does."""
    rng = np.random.default_rng(seed)
    visits: list[VisitMeasurement] = []
    first = int(rng.integers(2))
    criteria = resolve(load_policy(truth.policy), SCOPES, frozenset())
    run = GateInput(
        criteria,
        SCOPES,
        (),
        LOOKS,
        "full",
        "runs/synthetic",
        Cost(wall_s=60, requests=1, output_tokens=1),
        {},
        frozenset(),
    )
    for look in LOOKS:
        while len(visits) < 2 * look:
            visits += _pair(truth, len(visits) // 2, first, rng)
        run = replace(run, visits=tuple(visits))
        verdict = decide(run, power_draws=power_draws)
        if not wants_more_pairs(verdict):
            break
    return verdict, run


def _pair(truth: Truth, pair: int, first: int, rng: np.random.Generator) -> Iterator[VisitMeasurement]:
    """One pair; noise is split evenly between the arms, orientation alternates (ABBA)."""
    order: tuple[Role, Role] = ("baseline", "candidate") if (pair + first) % 2 == 0 else ("candidate", "baseline")
    for position, role in enumerate(order):
        slot = 2 * pair + position
        shared, own = rng.standard_normal(), rng.standard_normal(len(truth.speedup))
        noise = truth.noise / np.sqrt(2) * (np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * own)
        speed = np.exp(noise - truth.drift * slot + (truth.speedup if role == "candidate" else 0.0))
        cells = {cell: _cell(speed[4 * i : 4 * i + 4]) for i, cell in enumerate(CELLS)}
        yield VisitMeasurement.model_construct(pair=pair + 1, role=role, slot=slot, cells=cells)


def _cell(speed: Array) -> CellMeasurement:
    times = [ZERO.model_copy(update={"p50": 100 / s}) for s in speed[:3]]
    return CellMeasurement.model_construct(
        asked=64, served=64, failures={}, duration_s=10.0,
        ttft_ms=times[0], tpot_ms=times[1], request_latency_ms=times[2],
        output_tokens=6400, output_tokens_source="ids", output_throughput=640 * float(speed[3]),
        output_throughput_per_user=None, request_throughput=None, goodput=None, signals={},
    )  # fmt: skip


def _status(job: tuple[Truth, int]) -> Status:
    return one_gate(*job)[0].status


def _power(job: tuple[Truth, int]) -> tuple[bool, float]:
    verdict, _ = one_gate(*job, power_draws=400)
    return verdict.status is Status.PASS, verdict.power.chance_to_pass or 0.0


def _drift(job: tuple[Truth, int]) -> float:
    """Estimated over true speed-up, mean over the checks."""
    truth, seed = job
    rng = np.random.default_rng(seed)
    visits = [v for pair in range(LOOKS[0]) for v in _pair(truth, pair, seed % 2, rng)]
    times = {(v.pair, v.role): [v.cells[c].ttft_ms.p50 or 0.0 for c in CELLS] for v in visits}
    d = np.log([[times[p, "baseline"][i] / times[p, "candidate"][i] for p in range(1, 7)] for i in range(len(CELLS))])
    return float(np.exp(hodges_lehmann(d) - truth.speedup[0]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=2000, help="synthetic gates a setting")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    n, checks = options.gates, len(CELLS) * len(METRICS)
    edge = np.full(checks, log(1.5))
    edge[checks // 2] = log(1.2)
    false_pass, false_fail, errors = [], [], []
    with ProcessPoolExecutor(options.workers) as pool:
        for noise in (0.02, 0.03, 0.05):
            at_bar = list(pool.map(_status, _jobs(Truth("beat-by-20", edge, noise), n), chunksize=20))
            equal = list(pool.map(_status, _jobs(Truth("no-regression", np.zeros(checks), noise), n), chunksize=20))
            better = Truth("beat-by-20", np.full(checks, log(1.25)), noise)
            passed, printed = np.mean(list(pool.map(_power, _jobs(better, n), chunksize=20)), axis=0)
            false_pass.append(at_bar.count(Status.PASS) / n)
            false_fail.append(equal.count(Status.FAIL) / n)
            errors.append(100 * float(passed - printed))
            print(f"noise {noise:.0%}: one check at the bar PASS {false_pass[-1]:.2%}")
            print(f"          equal engines FAIL {false_fail[-1]:.2%}, PASS {equal.count(Status.PASS) / n:.1%}")
            print(f"          truly 1.25x everywhere PASS {passed:.1%}, printed {printed:.1%}", flush=True)
        drifting = Truth("beat-by-20", np.full(checks, log(1.25)), 0.03, drift=0.02)
        bias = 100 * (float(np.mean(list(pool.map(_drift, _jobs(drifting, n), chunksize=50)))) - 1)
        equal_accuracy = list(pool.map(_accuracy, ((1.0, seed) for seed in range(n)), chunksize=20))
        at_limit = list(pool.map(_accuracy, ((1.05, seed) for seed in range(n, 2 * n)), chunksize=20))
    accuracy_false_fail, accuracy_false_pass = equal_accuracy.count(Status.FAIL) / n, at_limit.count(Status.PASS) / n
    print(f"accuracy: equal numerics FAIL {accuracy_false_fail:.2%}, exactly at 1.05x PASS {accuracy_false_pass:.2%}")
    print(f"drift of 2 % a slot biases the estimate by {bias:+.3f} %")
    print(
        f"false_pass={max(false_pass):.4f} false_fail={max(false_fail):.4f} power_error={max(errors, key=abs):+.2f}pt "
        f"drift_bias={bias:+.3f}% accuracy_false_fail={accuracy_false_fail:.4f} "
        f"accuracy_false_pass={accuracy_false_pass:.4f}"
    )


def _jobs(truth: Truth, n: int) -> Iterator[tuple[Truth, int]]:
    first = round(1e8 * truth.noise)  # other draws for each noise
    return ((truth, first + seed) for seed in range(n))


def _accuracy(job: tuple[float, int]) -> Status:
    """Judge 200 documents of four strata whose true ratio to the baseline is known, at the first look's level."""
    ratio, seed = job
    rng = np.random.default_rng(seed)
    difficulty = rng.gamma(0.5, 2, 200)
    arms = [_documents(rng, difficulty, scale) for scale in (ratio, 1.0)]
    floor = _documents(rng, difficulty[:40], 0.2)
    return judge_divergence(Divergence(*arms, floor), 1.05, alpha=look_at(6, *LOOKS).alpha, resamples=1000).status


def _documents(rng: np.random.Generator, difficulty: Array, scale: float) -> Documents:
    """Answers of 16 to 96 tokens; a disagreement in 3 % of them, exponential margins, hard documents have more."""
    n = len(difficulty)
    tokens, line = rng.integers(16, 97, n).astype(float), np.arange(n)
    disagreements = rng.poisson(0.03 * tokens * difficulty)
    nats = scale * 0.12 * rng.standard_gamma(np.maximum(disagreements, 1e-9)) * (disagreements > 0)
    return Documents(np.ones(n, dtype=np.int64), line, line.astype(str), (line % 4).astype(str), tokens, nats)


if __name__ == "__main__":
    main()

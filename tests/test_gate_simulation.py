"""The simulation's array of gates must decide as the gate does; `make gate-simulation` checks more of them."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from benchmarks.gate_simulation import CHECKS, Truth, disagreements, draw, judged, over_bar, printed_power
from harness.statistics import hodges_lehmann, holm, judge


@pytest.mark.parametrize(
    ("policy", "speedup", "noise"),
    [("beat-by-20", 1.25, 0.03), ("beat-by-20", 1.18, 0.02), ("no-regression", 1.0, 0.05)],
)
def test_an_array_of_gates_ends_as_the_whole_gate_does(policy: str, speedup: float, noise: float) -> None:
    truth = Truth(policy, np.full(CHECKS, log(speedup)), noise)
    speed = draw(truth, 6, seed=1)
    passed, failed, _ = judged(over_bar(speed, policy))
    assert disagreements(truth, speed, passed, failed) == 0


def test_statistics_of_many_runs_are_those_of_each() -> None:
    d = np.random.default_rng(3).normal(0, 0.05, (4, 7, 6))
    together = judge(d, 0.05)
    for i, one in enumerate(d):
        alone = judge(one, 0.05)
        assert np.array_equal(together.failed[i], alone.failed)
        assert np.allclose(together.lower[i], alone.lower)
    p = np.random.default_rng(4).random((3, 5, 9))
    assert np.allclose(holm(p)[1, 2], holm(p[1, 2]))


def test_drift_cancels_in_abba_and_power_is_a_chance() -> None:
    drifting = Truth("beat-by-20", np.full(CHECKS, log(1.25)), 0.01, drift=0.02)
    d = over_bar(draw(drifting, 50, seed=2), "beat-by-20")[..., :6]
    assert abs(np.exp(hodges_lehmann(d) - log(1.25 / 1.20)).mean() - 1) < 0.005
    chances = printed_power(d[:2], np.zeros(2, dtype=bool), 1.20)
    assert ((chances >= 0) & (chances <= 1)).all()

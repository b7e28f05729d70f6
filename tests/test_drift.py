"""Drift is found where it was planted, named by its own check, and not where the arms are alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from oracles import drift
from oracles.drift import check_drift
from oracles.result import OracleResult
from oracles.token_table import SCHEMA

N = 160
Worse = Callable[[int, int, np.ndarray], np.ndarray]


def arm(seed: int, worse: Worse | None = None, tokens: int = 400) -> pa.Table:
    """Answers with margins as honest engines have them: 3 % near-ties; `worse(line, concurrency, position)` adds."""
    rng, hard = np.random.default_rng(seed), np.random.default_rng(99)
    rows = []
    for line in range(N):
        concurrency = (1, 8, 32)[line * 3 // N]
        rate = 0.03 * hard.gamma(2.0, 0.5)
        margins = np.where(rng.random(tokens) < rate, rng.exponential(0.1, tokens), 0.0)
        if worse is not None:
            share = worse(line, concurrency, np.arange(tokens))
            margins = np.where(rng.random(tokens) < share, rng.exponential(2.0, tokens), margins)
        rows.append(
            {
                "pair": 1,
                "line": line,
                "cell": f"chat/c{concurrency}",
                "item": f"i{line}",
                "stratum": "en",
                "greedy": True,
                "prompt_tokens": 10,
                "tokens": tokens,
                "margin_sum": float(margins.sum()),
                "margin_max": float(margins.max()),
                "margin_first64": float(margins[:64].sum()),
                "top1": int((margins == 0).sum()),
                "nll_sum": 1.0,
                "entropy_sum": 1.0,
                "loop_share": 0.0,
                "margins": margins.astype(np.float32),
                "ids": [],
                "ids_source": "engine",
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


def judged(table: pa.Table, other: pa.Table | None = None, tie_width: float | None = 0.9) -> OracleResult:
    return check_drift(table, arm(2) if other is None else other, "candidate", tie_width=tie_width, floor_margin=0.003)


def broken(result: OracleResult) -> set[str]:
    return {finding.name for finding in result.findings if finding.status == "broken"}


@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_two_honest_arms_differ_only_by_noise(seed: int) -> None:
    result = judged(arm(seed))
    assert broken(result) == set()
    assert {f.name for f in result.findings if f.status == "kept"} >= {
        "margin-by-load", "margin-by-position", "margin-over-time", "inexcusable-flips",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("worse", "name"),
    [
        (lambda line, c, position: 0.02 * (c >= 32) + 0 * position, "margin-by-load"),
        (lambda line, c, position: 0.05 * (position > 256), "margin-by-position"),
        (lambda line, c, position: 0.05 * (line % 53 > 35) + 0 * position, "margin-over-time"),
        (lambda line, c, position: 0.01 + 0 * position, "inexcusable-flips"),
    ],
)
def test_a_planted_drift_is_named(worse: Worse, name: str) -> None:
    if name == "margin-over-time":  # each cell is a visit's third: one cell, so that time is all there is
        table, other = (a.set_column(2, "cell", pa.array(["chat/c1"] * N)) for a in (arm(1, _late), arm(2)))
        assert name in broken(judged(table, other))
        return
    result = judged(arm(1, worse))
    assert name in broken(result)
    finding = next(f for f in result.findings if f.name == name)
    assert finding.count > 0 and finding.examples


def _late(line: int, c: int, position: np.ndarray) -> np.ndarray:
    return 0.03 * (line > 100) + 0.0 * position


def test_the_better_arm_is_not_accused() -> None:
    worse = arm(1, lambda line, c, position: 0.02 * (c >= 32) + 0 * position)
    assert broken(judged(arm(2), worse)) == set()


def test_a_loop_entered_by_force_is_told_from_one_that_the_reference_enters_too() -> None:
    def looping(table: pa.Table, entry_margin: float) -> pa.Table:
        rows = table.to_pylist()
        for row in rows[:60]:
            row |= {"loop_share": 0.8, "loop_entry": 80}
            row["margins"][80] = entry_margin
        return pa.Table.from_pylist(rows, SCHEMA)

    assert "loop-entry" in broken(judged(looping(arm(1), 5.0)))
    assert "loop-entry" not in broken(judged(looping(arm(1), 0.0), looping(arm(2), 0.0)))


def test_numbers_by_bucket_add_up() -> None:
    table = arm(1)
    metrics = judged(table).metrics
    total = sum(table["margin_sum"].to_pylist())
    for prefix in ("cell", "stratum", "quarter", "position"):
        parts = [m for name, m in metrics.items() if name.startswith(f"margin@{prefix}:")]
        assert sum(m.n for m in parts) == N * 400
        assert sum((m.value or 0) * m.n for m in parts) == pytest.approx(total, rel=1e-5)
    assert {
        "margin@cell:chat/c8",
        "margin@position:0-64",
        "margin@position:256-1024",
        "margin@quarter:4",
    } <= metrics.keys()


def test_without_the_other_arm_or_a_floor_it_says_so() -> None:
    result = check_drift(arm(1), None, "baseline", tie_width=None)
    assert {f.status for f in result.findings} == {"unscored"}
    assert result.metrics


def test_an_empty_table_is_unscored() -> None:
    assert check_drift(arm(1).slice(0, 0), None, "candidate", tie_width=1.0).status == "unscored"


def test_few_requests_accuse_nobody() -> None:
    result = judged(arm(1, lambda line, c, position: 0.5 + 0 * position).slice(0, 10))
    assert broken(result) == set()


def test_permutation_p_values_are_uniform_under_the_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PERMUTATIONS", 400)
    both = [
        drift._paired(drift._frame(arm(seed, tokens=80)), drift._frame(arm(seed + 1000, tokens=80)))
        for seed in range(40)
    ]
    for test in (drift._by_load, drift._over_time):
        p = np.array([test(rows, 0.0).p for rows in both])
        assert (p <= 0.1).mean() <= 0.3
        assert 0.25 <= np.median(p) <= 0.75

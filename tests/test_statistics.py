from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from harness.power import chance_to_pass, mean_correlation, moderated_sd, pairs_needed
from harness.statistics import (
    attained_level,
    block_bootstrap,
    document_sums,
    exact_lower,
    hodges_lehmann,
    holm,
    judge,
    look_at,
    lower_bound,
    mcnemar_mid_p,
    minimum_requests,
    quantile_bounds,
    signed_rank_k,
    t_lower,
    t_pvalue_below,
    tango_lower,
    upper_bound,
    walsh_averages,
)

SAMPLES = arrays(float, st.integers(5, 14), elements=st.floats(-1, 1, width=32), unique=True)


def test_ranks_of_the_exact_bound_are_the_published_ones() -> None:
    assert [signed_rank_k(n) for n in (4, 5, 6, 8, 10, 12)] == [0, 1, 3, 6, 11, 18]


@given(SAMPLES, st.sampled_from([0.05, 0.025, 1 / 64]))
def test_the_exact_bound_is_the_signed_rank_test_turned_round(d: np.ndarray, alpha: float) -> None:
    if (d == 0).any() or len(np.unique(np.abs(d))) < len(d):
        return  # scipy's exact test has no ties
    p = stats.wilcoxon(d, alternative="greater", method="exact").pvalue
    assert (exact_lower(d[None], alpha)[0] > 0) == (p <= alpha * (1 + 1e-9))


@given(SAMPLES)
def test_estimate_lies_between_its_bounds_and_bounds_mirror(d: np.ndarray) -> None:
    low, high = lower_bound(d[None])[0], upper_bound(d[None])[0]
    assert low <= hodges_lehmann(d[None])[0] <= high
    assert -lower_bound(-d[None])[0] == high


@given(SAMPLES, st.integers(0, 13), st.floats(0, 1, width=32))
def test_raising_one_pair_never_lowers_the_bound(d: np.ndarray, which: int, by: float) -> None:
    raised = d.copy()
    raised[which % len(d)] += by
    assert lower_bound(raised[None])[0] >= lower_bound(d[None])[0]


def test_walsh_averages_and_t_against_scipy() -> None:
    d = np.array([[0.1, 0.3, -0.2]])
    assert walsh_averages(d)[0] == pytest.approx([-0.2, -0.05, 0.05, 0.1, 0.2, 0.3])
    assert t_lower(d)[0] == pytest.approx(stats.t.interval(0.9, 2, d.mean(), stats.sem(d[0]))[0])
    assert t_pvalue_below(d)[0] == pytest.approx(stats.ttest_1samp(d[0], 0, alternative="less").pvalue)
    assert t_pvalue_below(np.array([[0.0, 0.0], [-1.0, -1.0], [1.0, 1.0]])).tolist() == [0.5, 0.0, 1.0]


def test_below_five_pairs_only_t_speaks_and_one_pair_says_nothing() -> None:
    d = np.array([[0.1, 0.12, 0.11]])
    assert lower_bound(d)[0] == t_lower(d)[0]
    assert lower_bound(d[:, :1])[0] == -np.inf
    assert not judge(d[:, :1], 0.05).passed.any()
    assert not judge(d[:, :1], 0.05).failed.any()


def test_two_looks_spend_five_percent_in_all() -> None:
    first, last = look_at(6, 6, 12), look_at(12, 6, 12)
    assert (first.number, last.number) == (1, 2)
    assert attained_level(6, first.alpha) + attained_level(12, last.alpha) <= 0.05
    assert first.alpha == 1 / 64
    assert look_at(6, 6, 6).alpha == 0.05


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_two_looks_hold_their_level_at_the_bar(noise: float) -> None:
    rng = np.random.default_rng(5)
    d = rng.normal(0, noise, (20_000, 12))
    first, last = look_at(6, 6, 12), look_at(12, 6, 12)
    passed = judge(d[:, :6], first.alpha).passed | judge(d, last.alpha).passed
    assert 0.02 < passed.mean() <= 0.05


def test_holm_against_a_worked_example() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(arrays(float, st.integers(1, 20), elements=st.floats(0, 1)))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p: np.ndarray) -> None:
    adjusted = holm(p)
    assert (adjusted >= p - 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def test_forty_equal_cells_are_rarely_named_and_a_slow_one_is() -> None:
    rng = np.random.default_rng(1)
    named = sum(judge(rng.normal(0, 0.03, (40, 6)), 0.025).failed.any() for _ in range(500))
    assert named <= 25
    d = rng.normal(0.2, 0.03, (40, 6))
    d[7] = rng.normal(-0.2, 0.03, 6)
    assert np.flatnonzero(judge(d, 1 / 64).failed).tolist() == [7]


def test_percentile_rules() -> None:
    assert [minimum_requests(stat) for stat in ("p90", "p95", "p99")] == [29, 59, 1000]
    assert 0.95**59 <= 0.05 < 0.95**58
    assert 0.9**29 <= 0.05 < 0.9**28
    assert quantile_bounds(5, 0.99) is None
    low, high = quantile_bounds(100, 0.5) or (0, 0)
    assert stats.binom.cdf(high - 1, 100, 0.5) - stats.binom.cdf(low - 1, 100, 0.5) >= 0.95


def test_document_sums_are_the_bootstrap_of_the_documents() -> None:
    rng = np.random.default_rng(0)
    rows, group = rng.gamma(1, 1, (50, 2)), np.arange(50) % 3
    draws = document_sums(rows, group, resamples=4000)
    assert draws.shape == (4000, 3, 2)
    total = draws.sum(axis=1)
    assert total.mean(axis=0) == pytest.approx(rows.sum(axis=0), rel=0.01)
    assert total.std(axis=0) == pytest.approx(rows.std(axis=0) * np.sqrt(50), rel=0.05)
    assert (document_sums(rows, group, resamples=7, seed=3) == document_sums(rows, group, resamples=7, seed=3)).all()


def test_block_bootstrap_resamples_whole_pairs() -> None:
    pairs = np.random.default_rng(0).normal(1, 0.1, (8, 3))
    estimate, low, high = block_bootstrap(pairs, lambda p: float(p.mean()))
    assert low < estimate < high
    assert block_bootstrap(np.ones((5, 2)), lambda p: float(p.sum())) == (10, 10, 10)


def test_power_agrees_with_the_published_table() -> None:
    """perf-anchors 4e: 40 cells correlated 0.5, true 1.25x at 3 % noise passes rarely at n=6, 1.30x nearly always."""
    sd, six = np.full(40, 0.03), (look_at(6, 6, 6),)
    assert chance_to_pass(np.full(40, np.log(1.25 / 1.2)), sd, 0.5, six) == pytest.approx(0.21, abs=0.05)
    assert chance_to_pass(np.full(40, np.log(1.30 / 1.2)), sd, 0.5, six) > 0.97
    assert chance_to_pass(np.zeros(1), sd[:1], 0.0, (look_at(6, 6, 12), look_at(12, 6, 12)), draws=20_000) < 0.05


def test_pairs_needed_agrees_with_the_published_table() -> None:
    for noise, wanted in ((0.02, 6), (0.03, 11), (0.05, 26), (0.08, 62)):
        assert pairs_needed(np.log(1.25 / 1.2), noise, power=0.99) == pytest.approx(wanted, abs=3)
    assert pairs_needed(0.0, 0.03) is None
    assert pairs_needed(1e-4, 0.03) is None
    assert pairs_needed(float("nan"), 0.03) is None


def test_noise_is_shrunk_towards_the_machines() -> None:
    rng = np.random.default_rng(0)
    d = rng.normal(0, 0.03, (40, 6))
    raw = d.std(axis=1, ddof=1)
    assert moderated_sd(raw, 6).std() < 0.5 * raw.std()
    assert moderated_sd(raw, 6).mean() == pytest.approx(0.03, rel=0.1)
    uneven = rng.normal(0, 1, (40, 6)) * np.where(np.arange(40) < 20, 0.01, 0.1)[:, None]
    shrunk = moderated_sd(uneven.std(axis=1, ddof=1), 6)
    assert shrunk[20:].mean() > 4 * shrunk[:20].mean()


def test_correlation_between_cells() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=(1, 400))
    d = np.sqrt(0.5) * common + np.sqrt(0.5) * rng.normal(size=(30, 400))
    assert mean_correlation(d) == pytest.approx(0.5, abs=0.05)
    assert mean_correlation(d[:1]) == 0


def test_paired_proportions() -> None:
    assert mcnemar_mid_p(0, 0) == 1
    assert mcnemar_mid_p(10, 3) == pytest.approx(
        stats.binomtest(10, 13, 0.5, alternative="greater").pvalue - 0.5 * stats.binom.pmf(10, 13, 0.5)
    )
    z2 = stats.norm.ppf(0.95) ** 2
    assert tango_lower(0, 0, 100) == pytest.approx(-z2 / (100 + z2), abs=1e-6)
    assert tango_lower(0, 0, 0) == -1


@settings(max_examples=25)
@given(st.integers(50, 500), st.integers(0, 40), st.integers(0, 40))
def test_tangos_bound_lies_under_the_difference_and_rises_with_gains(n: int, gained: int, lost: int) -> None:
    bound = tango_lower(gained, lost, n)
    assert -1 <= bound <= (gained - lost) / n
    assert tango_lower(gained + 1, lost, n) >= bound

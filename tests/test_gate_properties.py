"""Laws of the gate: what can never happen, whatever the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from harness.divergence import Documents
from harness.foreign import FOREIGN_NATS
from harness.gate import GateInput, decide
from harness.measurement import CellMeasurement, Role
from harness.verdict import Check, Family, Status, Verdict
from tests.gate_runs import CELLS, gate_run, visits, with_cell

PASSING = gate_run(1.45)
LAW = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
PAIRS, ROLES, NAMES = st.integers(1, 6), st.sampled_from(["baseline", "candidate"]), st.sampled_from(CELLS)
LATENCIES = st.sampled_from(["ttft_ms", "tpot_ms"])
STATS = st.sampled_from(["p50", "p95"])
RUNS = st.builds(
    lambda speedup, noise, seed: replace(PASSING, visits=visits(speedup, 6, noise, seed=seed)),
    st.sampled_from([1.0, 1.15, 1.25, 1.4]),
    st.sampled_from([0.01, 0.04]),
    st.integers(0, 10_000),
)


def judge(run: GateInput) -> Verdict:
    return decide(run, power_draws=0)


def measured(run: GateInput, pair: int, role: str, name: str) -> CellMeasurement:
    return next(v for v in run.visits if (v.pair, v.role) == (pair, role)).cells[name]


def statuses(checks: tuple[Check, ...]) -> dict[str, Status]:
    return {check.check: check.status for check in checks}


@LAW
@given(RUNS, PAIRS, NAMES, LATENCIES, STATS, st.floats(1.0, 10.0))
def test_improving_one_number_never_turns_a_pass_into_anything_else(
    run: GateInput, pair: int, name: str, latency: str, stat: str, factor: float
) -> None:
    cell = measured(run, pair, "candidate", name)
    distribution = getattr(cell, latency)
    better = distribution.model_copy(update={stat: getattr(distribution, stat) / factor})
    after = judge(with_cell(run, pair, "candidate", name, cell.model_copy(update={latency: better})))
    before = judge(run)
    passed = {check for check, status in statuses(before.checks).items() if status is Status.PASS}
    assert all(statuses(after.checks)[check] is Status.PASS for check in passed)
    assert before.status is not Status.PASS or after.status is Status.PASS


@LAW
@given(RUNS, PAIRS, ROLES, NAMES)
def test_removing_a_cell_never_yields_a_pass(run: GateInput, pair: int, role: Role, name: str) -> None:
    assert judge(with_cell(run, pair, role, name, None)).status is not Status.PASS


@LAW
@given(RUNS, PAIRS, ROLES, NAMES, st.integers(1, 64), st.booleans())
def test_removing_requests_never_yields_a_pass(
    run: GateInput, pair: int, role: Role, name: str, lost: int, told: bool
) -> None:
    cell = measured(run, pair, role, name)
    update: dict[str, Any] = {"served": 64 - lost}
    update |= {"failures": {"missing": lost}} if told else {"asked": 64 - lost}
    assert judge(with_cell(run, pair, role, name, cell.model_copy(update=update))).status is not Status.PASS


@LAW
@given(RUNS, st.lists(st.integers(0, 11), min_size=1, max_size=11, unique=True))
def test_removing_visits_never_yields_a_pass(run: GateInput, gone: list[int]) -> None:
    kept = tuple(visit for i, visit in enumerate(run.visits) if i not in gone)
    assert judge(replace(run, visits=kept)).status is not Status.PASS


@LAW
@given(RUNS, PAIRS, ROLES, NAMES, LATENCIES, STATS)
def test_removing_a_key_never_yields_a_pass(
    run: GateInput, pair: int, role: Role, name: str, latency: str, stat: str
) -> None:
    cell = measured(run, pair, role, name)
    empty = getattr(cell, latency).model_copy(update={stat: None})
    for update in ({latency: empty}, {"output_throughput": None}):
        assert judge(with_cell(run, pair, role, name, cell.model_copy(update=update))).status is not Status.PASS


@pytest.mark.parametrize("gone", ["oracles", "token_margin", "tasks", "visits", "criteria"])
def test_removing_a_whole_input_never_yields_a_pass(gone: str) -> None:
    assert judge(PASSING).status is Status.PASS
    empty = () if gone in {"oracles", "visits", "criteria"} else None
    assert judge(replace(PASSING, **{gone: empty})).status is not Status.PASS


@LAW
@given(PAIRS, ROLES, NAMES, LATENCIES, STATS, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_any_nan_is_invalid(pair: int, role: Role, name: str, latency: str, stat: str, bad: float) -> None:
    cell = measured(PASSING, pair, role, name)
    poisoned = getattr(cell, latency).model_copy(update={stat: bad})  # past pydantic, which refuses it
    for update in ({latency: poisoned}, {"output_throughput": bad}):
        verdict = judge(with_cell(PASSING, pair, role, name, cell.model_copy(update=update)))
        assert verdict.status is Status.INVALID
        assert "NaN" not in verdict.model_dump_json()


@LAW
@given(st.sampled_from(["candidate", "baseline", "floor"]), st.integers(0, 59), st.sampled_from(["nats", "tokens"]))
def test_any_nan_in_a_document_is_invalid(arm: str, where: int, column: str) -> None:
    margins = PASSING.token_margin
    assert margins is not None
    values = getattr(getattr(margins, arm), column).copy()
    values[where] = np.nan
    poisoned = replace(margins, **{arm: replace(getattr(margins, arm), **{column: values})})
    assert judge(replace(PASSING, token_margin=poisoned)).status is Status.INVALID


@LAW
@given(st.floats(0.001, 20), st.floats(0.001, 20), st.booleans())
def test_a_baseline_far_from_the_reference_is_invalid_whatever_the_candidate(
    near: float, far: float, sampled: bool
) -> None:
    """Two engines that are equally wrong read 1.00x of each other; a ratio alone would pass them."""
    assume(abs(far - FOREIGN_NATS) > 1e-9)
    arms = PASSING.token_margin
    assert arms is not None

    def at(documents: Documents, nats: float) -> Documents:
        return replace(documents, nats=np.full(len(documents.tokens), nats) * documents.tokens)

    moved = replace(arms, candidate=at(arms.candidate, near), baseline=at(arms.baseline, far))
    verdict = judge(replace(PASSING, token_margin=moved))
    assert ("baseline.model" in statuses(verdict.checks)) == (far > FOREIGN_NATS)
    if far > FOREIGN_NATS:
        assert verdict.status is Status.INVALID
        rests_on_it = [c for c in verdict.checks if c.family in {Family.SPEED, Family.ACCURACY}]
        assert {c.status for c in rests_on_it} == {Status.INVALID}
        if sampled:  # a sampled token is no sign of another model, so nothing is said
            greedy = np.zeros(len(arms.baseline.tokens), dtype=bool)
            moved = replace(moved, baseline=replace(moved.baseline, greedy=greedy))
            assert "baseline.model" not in statuses(judge(replace(PASSING, token_margin=moved)).checks)


@LAW
@given(RUNS, st.randoms(use_true_random=False))
def test_order_of_everything_does_not_matter(run: GateInput, random: Any) -> None:
    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(items, len(items)))

    def shuffle(documents: Documents) -> Documents:
        order = np.array(random.sample(range(len(documents.tokens)), len(documents.tokens)))
        columns = {name: getattr(documents, name) for name in Documents.__dataclass_fields__}
        return Documents(**{name: column if column is None else column[order] for name, column in columns.items()})

    margins = run.token_margin
    assert margins is not None
    moved = replace(
        run,
        visits=shuffled(run.visits),
        criteria=shuffled(run.criteria),
        cells=shuffled(run.cells),
        oracles=shuffled(run.oracles),
        token_margin=replace(margins, candidate=shuffle(margins.candidate), baseline=shuffle(margins.baseline)),
    )
    before, after = judge(run), judge(moved)
    assert before.line == after.line
    assert before.failed_first == after.failed_first
    assert statuses(before.checks) == statuses(after.checks)
    assert [c.reason for c in before.checks] == [c.reason for c in after.checks]


@LAW
@given(RUNS, st.floats(0.01, 100))
def test_scaling_both_arms_changes_nothing(run: GateInput, factor: float) -> None:
    def scale(cell: CellMeasurement) -> CellMeasurement:
        times = {
            name: getattr(cell, name).model_copy(
                update={
                    stat: getattr(getattr(cell, name), stat) * factor for stat in ("p50", "p90", "p95", "p99", "mean")
                }
            )
            for name in ("ttft_ms", "tpot_ms", "request_latency_ms")
        }
        return cell.model_copy(update={**times, "output_throughput": (cell.output_throughput or 0) / factor})

    scaled = tuple(v.model_copy(update={"cells": {k: scale(c) for k, c in v.cells.items()}}) for v in run.visits)
    before, after = judge(run), judge(replace(run, visits=scaled))
    assert before.status is after.status
    assert statuses(before.checks) == statuses(after.checks)
    assert [c.observed for c in before.checks] == pytest.approx([c.observed for c in after.checks])

"""Each named validity check breaks on its own evidence, says what to do, and cannot be bought by the candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibration import MARGIN, compare
from harness.cells import Cell
from harness.client_bias import ClientBias, bias_checks, bias_notes, shape_of
from harness.measurement import CellMeasurement, Load, VisitMeasurement, measure_visit
from harness.raw_export import SCHEMA
from harness.validity import judge_validity
from harness.verdict import Check, Status
from tests.test_calibration import SHAPE, known
from traffic_profiles.profile import load_profile

CHAT = Cell(load_profile("chat-steady", "smoke"), 4, None, 16)
BURST = load_profile("burst", "smoke")
POISSON = Cell(BURST.model_copy(update={"arrival_pattern": "poisson", "arrival_smoothness": None}), None, 2.0, 100)


def rows(cell: str, starts: list[float], *, latency_ms: float = 1000, lag_ms: float = 1, **more: Any) -> pa.Table:
    """Request rows as raw_export writes them, one answer of 10 tokens each."""
    common = {
        "cell": cell, "kind": "load", "item": "i", "stratum": "s", "status": "ok", "error": "", "credit_lag_ms": lag_ms,
        "ttft_ms": 100.0, "tpot_ms": 10.0, "request_latency_ms": latency_ms, "output_tokens": 10,
        "output_tokens_source": "usage", "usage_prompt_tokens": 20, "usage_completion_tokens": 10,
        "retokenised_tokens": 10, "event_ms": [100.0, 1000.0], "event_tokens": [1, 9],
    } | more  # fmt: skip
    return pa.Table.from_pylist(
        [common | {"line": n, "start_s": start} for n, start in enumerate(starts)], schema=SCHEMA
    )


def measured(table: pa.Table, cell: str) -> CellMeasurement:
    return measure_visit(table, pair=1, role="baseline", slot=0, slos={}).cells[cell]


def judged(
    cell: Cell, baseline: CellMeasurement, candidate: CellMeasurement | None = None, **more: Any
) -> dict[str, Check]:
    visits = [
        VisitMeasurement(pair=1, role=role, slot=slot, cells={cell.name: one})
        for slot, (role, one) in enumerate((("baseline", baseline), ("candidate", candidate or baseline)))
    ]
    return {check.metric: check for check in judge_validity([cell], visits, {}, **more)}


def closed_loop(gap_s: float, latency_s: float = 1.0, slots: int = 4, turns: int = 4) -> list[float]:
    """Starts of a closed loop whose client rests `gap_s` between two requests of a slot."""
    return [slot * 0.001 + turn * (latency_s + gap_s) for turn in range(turns) for slot in range(slots)]


def test_a_fed_closed_loop_is_valid() -> None:
    found = judged(CHAT, measured(rows(CHAT.name, closed_loop(0.01)), CHAT.name))
    assert found["kept-busy"].status is Status.PASS and found["kept-busy"].observed == pytest.approx(0.99, abs=0.01)
    assert "sent-in-time" not in found


def test_an_underfed_engine_is_invalid_and_says_what_to_do() -> None:
    found = judged(CHAT, measured(rows(CHAT.name, closed_loop(0.5)), CHAT.name))["kept-busy"]
    assert found.status is Status.INVALID
    assert "of 4 requests in flight" in found.reason and "more cores" in found.hint


def test_a_candidate_that_fails_at_once_cannot_buy_an_invalid() -> None:
    good = measured(rows(CHAT.name, closed_loop(0.01)), CHAT.name)
    bad = measured(rows(CHAT.name, closed_loop(0.5), latency_ms=1.0, status="http_error"), CHAT.name)
    found = judged(CHAT, good, bad)
    assert all(check.status is Status.PASS for name, check in found.items() if name != "aiperf-complete"), found


@given(st.floats(0, 3), st.integers(2, 6), st.integers(2, 8))
def test_fed_concurrency_is_never_more_than_asked(gap_s: float, slots: int, turns: int) -> None:
    cell = f"chat-steady/c{slots}"
    value = measured(rows(cell, closed_loop(gap_s, slots=slots, turns=turns)), cell).signals["fed_concurrency"]
    assert value is not None and 0 < value <= slots + 1e-9


def test_nothing_to_follow_is_no_underfeeding() -> None:
    signal = measured(rows(CHAT.name, [0.0, 0.1, 0.2]), CHAT.name).signals
    assert signal["fed_concurrency"] is None


def test_open_loop_latencies_count_from_the_intended_start() -> None:
    late = measured(rows(POISSON.name, [n / 2 for n in range(100)], lag_ms=40), POISSON.name)
    assert late.ttft_ms.p50 == pytest.approx(140) and late.request_latency_ms.p50 == pytest.approx(1040)
    closed = measured(rows(CHAT.name, closed_loop(0.01), lag_ms=40), CHAT.name)
    assert closed.ttft_ms.p50 == pytest.approx(100)


def test_a_client_that_sends_too_slowly_or_late() -> None:
    on_time = judged(POISSON, measured(rows(POISSON.name, [n / 2 for n in range(100)]), POISSON.name))
    assert on_time["achieved-rate"].status is on_time["sent-in-time"].status is Status.PASS
    slow = judged(POISSON, measured(rows(POISSON.name, [n * 1.2 for n in range(100)]), POISSON.name))
    assert slow["achieved-rate"].status is Status.INVALID and "41.7%" in slow["achieved-rate"].reason
    late = judged(POISSON, measured(rows(POISSON.name, [n / 2 for n in range(100)], lag_ms=60), POISSON.name))
    assert late["sent-in-time"].status is Status.INVALID


@given(st.integers(0, 2**31))
def test_a_poisson_schedule_is_not_called_off_by_its_own_chance(seed: int) -> None:
    import random

    rng, at = random.Random(seed), [0.0]
    while len(at) < 100:
        at.append(at[-1] + rng.expovariate(2.0))
    found = judged(POISSON, measured(rows(POISSON.name, at), POISSON.name))["achieved-rate"]
    assert found.required is not None and 0.67 < found.required < 0.69, "three deviations of a mean of 99 gaps, and 2 %"
    assert found.observed is not None and 0.6 < found.observed < 1.7


def test_counts_that_do_not_fit_the_text() -> None:
    off = measured(rows(CHAT.name, closed_loop(0.01), retokenised_tokens=20), CHAT.name)
    found = judged(CHAT, off)["counts-agree"]
    assert found.status is Status.INVALID and "tokenizer" in found.hint
    one_more = measured(rows(CHAT.name, closed_loop(0.01), retokenised_tokens=9), CHAT.name)
    assert judged(CHAT, one_more)["counts-agree"].status is Status.PASS, "the end token is counted and not shown"


def test_a_baseline_that_drifts() -> None:
    table = rows(CHAT.name, closed_loop(0.01)).to_pylist()
    for number, row in enumerate(table):
        row["tpot_ms"] = 10.0 if number < 8 else 12.0
    drifted = measured(pa.Table.from_pylist(table, schema=SCHEMA), CHAT.name)
    steady = measured(rows(CHAT.name, closed_loop(0.01)), CHAT.name)
    full = {"machines": [{"load_average_1m": 0.1, "cpu_count": 2}]}
    assert judged(CHAT, drifted, **full)["steady"].status is Status.INVALID
    assert judged(CHAT, steady, drifted, **full)["steady"].status is Status.PASS
    assert "steady" not in judged(CHAT, drifted), "a quick run's few requests drift by chance"


@pytest.mark.parametrize(
    ("drifts", "status"),
    [
        ((1.210, 0.981, 1.209, 1.175, 1.030), Status.PASS),  # one vLLM server on an H200, visit by visit
        ((1.210, 1.181, 1.209, 1.175, 1.130), Status.INVALID),
        ((0.85, 0.84, 0.86, 0.85, 0.85), Status.INVALID),
        ((1.04, 1.05, 1.04, 1.05, 1.04), Status.PASS),
    ],
)
def test_a_drift_is_one_when_the_visits_agree(drifts: tuple[float, ...], status: Status) -> None:
    one = measured(rows(CHAT.name, closed_loop(0.01)), CHAT.name)
    visits = [
        VisitMeasurement(
            pair=pair,
            role=role,
            slot=0,
            cells={CHAT.name: one.model_copy(update={"signals": {**one.signals, "tpot_drift": drift}})},
        )
        for pair, drift in enumerate(drifts, 1)
        for role in ("baseline", "candidate")
    ]
    machines = [{"load_average_1m": 0.1, "cpu_count": 2}]
    found = {check.metric: check for check in judge_validity([CHAT], visits, {}, machines)}
    assert found["steady"].status is status


def test_the_end_of_a_closed_loop_is_no_drift() -> None:
    table = rows(CHAT.name, closed_loop(0.01, turns=4)).to_pylist()
    for row in table[-3:]:
        row["tpot_ms"] = 4.0  # the last ones run almost alone
    assert measured(pa.Table.from_pylist(table, schema=SCHEMA), CHAT.name).signals["tpot_drift"] == pytest.approx(1.0)


@pytest.mark.parametrize(("load", "status"), [(1.0, Status.PASS), (8.0, Status.INVALID), (None, Status.INVALID)])
def test_a_busy_machine(load: float | None, status: Status) -> None:
    visit = {"load_average_1m": load, "cpu_count": 2}
    fine = measured(rows(CHAT.name, closed_loop(0.01)), CHAT.name)
    assert judged(CHAT, fine, machines=[visit, visit])["quiet-machine"].status is status
    assert "quiet-machine" not in judged(CHAT, fine), "a quick run may share its machine"


def biased(**changes: Any) -> ClientBias:
    bias = compare(SHAPE, *known(late_ms=0.2, slower=1.001), load=0)
    bias = bias.model_copy(update={"schedule_slip": 0.0, "measured_at": 0.0, **changes})
    return ClientBias(client={}, cells={CHAT.name: {"candidate": bias}})


def test_a_cell_whose_client_is_biased_is_invalid() -> None:
    (fine,) = bias_checks([CHAT], biased(), required=True)
    assert fine.status is Status.PASS and fine.hint == ""
    (off,) = bias_checks([CHAT], biased(tpot_bias=0.07), required=True)
    assert off.status is Status.INVALID and "tpot.p50 +7.0%" in off.reason and off.required == MARGIN
    assert off.evidence == ("calibration.json",)
    assert bias_notes([CHAT], biased(tpot_bias=0.07)) == {("candidate", CHAT.name): [off.reason]}


def test_only_what_the_profile_gates_counts() -> None:
    easy = Cell(load_profile("decode-easy", "smoke"), 1, None, 16)
    bias = biased(ttft_bias_ms=9.0).cells[CHAT.name]
    (found,) = bias_checks([easy], ClientBias(client={}, cells={easy.name: bias}), required=True)
    assert found.status is Status.PASS, "decode-easy gates TPOT alone"


def test_a_starved_or_missing_calibration_is_no_pass() -> None:
    (starved,) = bias_checks([CHAT], biased(schedule_slip=0.5), required=True)
    assert starved.status is Status.INVALID and "too busy" in starved.reason
    (missing,) = bias_checks([CHAT], None, required=True)
    assert missing.status is Status.INVALID and missing.cell is None
    assert bias_checks([CHAT], None, required=False) == ()


def test_the_candidates_shape_is_what_it_streamed() -> None:
    one = measured(rows(CHAT.name, closed_loop(0.01), event_ms=[100.0, 1000.0], event_tokens=[5, 5]), CHAT.name)
    shape = shape_of([one], CHAT)
    assert shape is not None
    assert (shape.concurrency, shape.tokens_per_event) == (4, 5)
    assert 90 < shape.ttft_ms <= 100 and 9 < shape.tpot_ms <= 10 and shape.output_tokens == 8
    dead = measured(rows(CHAT.name, closed_loop(0.01), status="http_error"), CHAT.name)
    assert shape_of([dead], CHAT) is None


@pytest.mark.parametrize(
    ("name", "load"), [("a/c8", ("c", 8)), ("a-b/r2.5", ("r", 2.5)), ("a/t0.25", ("t", 0.25)), ("odd", ("c", 1))]
)
def test_a_cells_name_says_its_load(name: str, load: tuple[str, float]) -> None:
    assert (Load.of(name).kind, Load.of(name).amount) == load
    assert Load.of(name).open_loop == (load[0] != "c")


def test_calibration_json_is_read_back(tmp_path: Path) -> None:
    text = biased().model_dump_json()
    assert ClientBias.model_validate_json(text) == biased() and json.loads(text)["margin"] == MARGIN

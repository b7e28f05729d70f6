"""The protocol oracle: its statistics as laws, its contracts on rows made by hand, honest engines at every size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import evidence, text_signs
from oracles.protocol import check_arm
from tests.engines import bugs
from tests.engines.fast import FastGate, fast_gate
from tests.engines.stream import Engine
from tests.engines.toy import Pace, toy_tokenizer


@pytest.mark.parametrize(("n", "rate"), [(23, 0.1221), (299, 0.00997), (2995, 0.001)])
def test_one_instance_is_enough_power(n: int, rate: float) -> None:
    assert evidence.detectable(n, 1) == pytest.approx(1 - 0.05 ** (1 / n)) == pytest.approx(rate, rel=0.01)


@given(n=st.integers(1, 400), needed=st.integers(1, 40))
def test_power_is_what_a_binomial_says(n: int, needed: int) -> None:
    from scipy import stats

    rate = evidence.detectable(n, needed)
    if needed > n:
        assert rate is None
    else:
        assert rate is not None
        assert stats.binom.sf(needed - 1, n, rate) == pytest.approx(0.95, abs=1e-6)


def test_honest_arms_are_accused_of_anything_less_often_than_alpha() -> None:
    rng = np.random.default_rng(0)
    accused = 0
    for _ in range(150):
        made = [
            evidence.versus(f"v{i}", "", rng.random(60) < 0.2, ["x"] * 60, rng.random(60) < 0.2, 0.0) for i in range(15)
        ] + [evidence.rate(f"r{i}", "", rng.random(60) < 0.1, ["x"] * 60, 0.1) for i in range(5)]
        accused += any(finding.status == "broken" for finding in evidence.judge(made))
    assert accused <= 5  # alpha 0.01: 1.5 expected at most, 6 with probability under 1 %


@settings(max_examples=60)
@given(n=st.integers(2, 200), m=st.integers(2, 200), other=st.integers(0, 20))
def test_more_instances_never_help(n: int, m: int, other: int) -> None:
    baseline = np.arange(m) < min(other, m)
    p = [
        evidence.versus("v", "", np.arange(n) < k, ["x"] * n, baseline, 0.0).p for k in range(0, n + 1, max(1, n // 8))
    ]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(p))  # type: ignore[operator]


def test_a_check_that_could_find_nothing_is_unscored() -> None:
    none = np.zeros(3, dtype=bool)
    (finding,) = evidence.judge([evidence.versus("v", "it does", none, ["a", "b", "c"], none, 0.0)])
    assert finding.status == "unscored" and "too few" in finding.sentence


@given(st.text(max_size=300))
def test_loop_share_is_a_share(text: str) -> None:
    assert 0 <= text_signs.loop_share(text) <= 1


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("aaaaaaaaaaaaaaaaaaaa", 1.0, 1.0),
        ("and and and and and and", 0.9, 1.0),
        ("The harbour keeps a long letter before the rain, and nobody asked why it did.", 0.0, 0.1),
        ("It began well. " + "Then it went on. " * 8, 0.85, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_loop_share_examples(text: str, low: float, high: float) -> None:
    assert low <= text_signs.loop_share(text) <= high


def test_openings_refusals_and_nan_text() -> None:
    assert text_signs.opening("  Well, then") == "Well," and text_signs.opening("港口很") == "港"
    assert text_signs.is_refusal("I'm sorry, but no") and not text_signs.is_refusal("Sorry is a word in this story")
    assert text_signs.is_nan_text("!" * 20) and not text_signs.is_nan_text("Hurray!!!")
    assert text_signs.lost_characters("a\ufffdb") and not text_signs.lost_characters("ab\ufffd")


def _edit(table: pa.Table, line: int, **fields: Any) -> pa.Table:
    rows = table.to_pylist()
    rows[line] |= fields
    return pa.Table.from_pylist(rows, schema=table.schema)


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        ("stream-errors", {"status": "stream_error"}),
        ("truncated-streams", {"status": "truncated"}),
        ("finish-reason", {"finish_reason": None}),
        ("finish-reason", {"finish_reason": "abort"}),
        ("max-tokens", {"usage_completion_tokens": 165}),
        ("length-finish", {"finish_reason": "length", "usage_completion_tokens": 3}),
        ("nan-text", {"text": "!" * 400}),
        ("logprobs", {"token_logprobs": [0.1] * 20}),
        ("logprobs", {"token_logprobs": [float("nan")] * 20}),
        ("usage-bytes", {"text": "short", "usage_completion_tokens": 90}),
    ],
)
def test_one_broken_contract_is_found_among_many_requests(check: str, fields: dict[str, Any]) -> None:
    gate = fast_gate()
    honest = gate.visit(Engine(), "vllm")
    found = {f.name: f for f in gate.judge(_edit(honest, 5, **fields)) if f.status == "broken"}
    assert set(found) == {check} and found[check].count == 1 and "line 5" in found[check].examples[0]


def test_the_baseline_alone_is_judged_without_itself() -> None:
    gate = fast_gate()
    result = check_arm(gate.baseline, gate.workload, "baseline")
    assert result.status == "scored" and not [f for f in result.findings if f.status == "broken"]
    names = [f.name for f in check_arm(gate.baseline, gate.workload, "candidate", gate.baseline).findings]
    assert [f.name for f in result.findings] == names and len(set(names)) == len(names)


def test_missing_columns_and_empty_runs_are_unscored() -> None:
    gate = fast_gate()
    cut = check_arm(gate.baseline.drop_columns(["event_ms"]), gate.workload, "candidate")
    assert cut.status == "unscored" and "event_ms" in cut.reason
    empty = check_arm(gate.baseline.slice(0, 0), gate.workload, "candidate")
    assert empty.status == "unscored" and "no measured request" in empty.reason


def test_prompt_tokens_by_the_judges_template_find_a_second_bos() -> None:
    gate = fast_gate()
    counted = gate.baseline.select(["pair", "line", "usage_prompt_tokens"]).rename_columns(
        ["pair", "line", "prompt_tokens"]
    )
    for engine, status in ((Engine, "kept"), (bugs.SecondBos, "broken")):
        candidate = gate.visit(engine(), "vllm")
        result = check_arm(candidate, gate.workload, "candidate", gate.baseline, prompt_tokens=counted)
        assert {f.name: f.status for f in result.findings}["prompt-tokens"] == status


def test_a_roofline_bounds_the_speed() -> None:
    gate = fast_gate()
    for steps, status in ((1e3, "kept"), (5.0, "broken")):
        result = check_arm(gate.baseline, gate.workload, "candidate", gate.baseline, steps_per_s=steps)
        assert {f.name: f.status for f in result.findings}["impossible-speed"] == status


def test_several_times_faster_is_a_note_for_a_person_not_an_accusation() -> None:
    gate = fast_gate()
    quick = gate.visit(Engine(), "vllm", Pace(9, 0.01, 1.2))
    result = check_arm(quick, gate.workload, "candidate", gate.baseline)
    assert not [f for f in result.findings if f.status == "broken"]
    assert any("a person must look" in note for note in result.notes)


def test_long_prefill_and_fast_decode_is_no_burst() -> None:
    gate = FastGate(seed=9, load=60, share=0)
    slow_start = gate.visit(Engine(), "vllm", Pace(60, 3.0, 1.0))
    result = check_arm(slow_start, gate.workload, "candidate", gate.baseline)
    assert {f.name: f.status for f in result.findings}["bursts"] == "kept"


def test_toy_text_survives_retokenising() -> None:
    gate = fast_gate()
    tokens = gate.baseline.to_pylist()
    tokenizer = toy_tokenizer()
    apart = [r for r in tokens if abs(len(tokenizer.encode(r["text"]).ids) - r["usage_completion_tokens"]) > 4]
    assert len(apart) < 0.05 * len(tokens)


@pytest.mark.parametrize(("held", "status"), [(1, "kept"), (12, "broken")])
def test_one_overlooked_stop_string_is_no_proof_and_many_are(held: int, status: str) -> None:
    """As llama.cpp did once in 64 answers: the token that ends the stop string went on with a part of a character."""
    gate = fast_gate()
    workload = pa.Table.from_pylist(
        [row | {"stop": [". "] if i < 64 else []} for i, row in enumerate(gate.workload.to_pylist())],
        schema=gate.workload.schema,
    )
    clean = pa.Table.from_pylist(
        [row | {"text": (row["text"] or "").replace(". ", " ")} for row in gate.baseline.to_pylist()],
        schema=gate.baseline.schema,
    )
    asked = [i for i, row in enumerate(clean.to_pylist()) if row["line"] < 64 and row["status"] == "ok"]
    candidate = clean
    for i in asked[:held]:
        candidate = _edit(candidate, i, text="сказа очебны. Вот что")
    for other in (None, clean):
        found = {f.name: f for f in check_arm(candidate, workload, "candidate", other).findings}
        assert found["stop-strings"].status == status, found["stop-strings"].sentence

"""Audits: bounded, blind, and judged against the baseline as control."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.audit import judge_audit
from oracles.audit_plan import COST, FAMILIES, plan_audit
from tests.engines.cheats import cheats
from tests.engines.fast import fast_gate
from tests.engines.prompts import SCHEMA, with_audits, workload
from tests.engines.stream import Engine
from tests.engines.visit import body_of

LOAD = workload(200, 3)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63), count=st.integers(1, 200), share=st.floats(0, 0.5))
def test_audits_stay_inside_their_share(seed: int, count: int, share: float) -> None:
    audits = plan_audit(seed, LOAD[:count], share)
    assert len(audits) <= share * count
    assert all(0 <= audit.after < count for audit in audits)
    assert audits == plan_audit(seed, LOAD[:count], share)


def test_a_large_budget_holds_every_family_about_equally() -> None:
    audits = plan_audit(1, LOAD, 0.3, families=FAMILIES)
    groups = {f: sum(a.item.startswith(f"audit/{f}/") for a in audits) / COST[f] for f in FAMILIES}
    assert len(audits) <= 60 and max(groups.values()) - min(groups.values()) <= 2


def test_nothing_in_the_body_tells_an_audit_from_load() -> None:
    rows = with_audits(LOAD, plan_audit(5, LOAD, 0.2))
    bodies = {kind: [body_of(r, {}) for r in rows if r["kind"] == kind] for kind in ("load", "audit")}
    shapes = {kind: {tuple(sorted(body)) for body in found} for kind, found in bodies.items()}
    assert shapes["audit"] <= shapes["load"]
    assert not any(b"audit" in orjson.dumps(body) for body in bodies["audit"])
    assert {b["max_tokens"] for b in bodies["audit"]} <= {b["max_tokens"] for b in bodies["load"]}


def test_audits_are_spread_over_the_whole_run() -> None:
    after = [a.after for seed in range(20) for a in plan_audit(seed, LOAD, 0.1)]
    quarters = [sum(50 * q <= a < 50 * (q + 1) for a in after) / len(after) for q in range(4)]
    assert min(quarters) > 0.1  # repeats lean to the end: they come after what they repeat


def test_a_needle_is_in_its_own_text_and_not_in_the_question() -> None:
    for audit in plan_audit(2, LOAD, 0.3, families=("needles",)):
        code, depth = audit.item.split("/")[-2:]
        text = orjson.loads(audit.messages)[-1]["content"]
        assert text.count(code) == 1 and abs(text.index(code) / len(text) - float(depth)) < 0.15


def test_a_needle_looks_like_the_longest_load_request() -> None:
    longest = max(len(row["messages"]) for row in LOAD)
    sizes = [len(a.messages) for a in plan_audit(2, LOAD, 0.3, families=("needles",))]
    assert sizes and max(sizes) < 1.6 * longest and min(sizes) > 0.9 * longest


def test_minimal_pairs_differ_in_one_character() -> None:
    audits = plan_audit(2, LOAD, 0.2, families=("minimal-pairs",))
    pairs: dict[str, list[str]] = {}
    for audit in audits:
        pairs.setdefault(audit.item[:-2], []).append(audit.messages)
    assert pairs
    for a, b in pairs.values():
        assert len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1


def test_every_finding_states_its_power() -> None:
    gate = fast_gate()
    findings = judge_audit(gate.visit(Engine(), "vllm"), gate.workload, "candidate", gate.baseline).findings
    assert {f.name for f in findings} == {*FAMILIES, "order"}
    for finding in findings:
        assert finding.status == "kept" and finding.detectable_rate and 0 < finding.detectable_rate < 1
        assert "would have been found" in finding.sentence


@pytest.mark.parametrize("name", ["memoises-responses", "cached-sample", "fuzzy-cache", "sliding-window"])
def test_without_a_baseline_the_audits_are_unscored_not_passed(name: str) -> None:
    gate = fast_gate()
    result = judge_audit(gate.visit(cheats()[name](), "vllm"), gate.workload, "baseline")
    judged = {f.name for f in result.findings if f.status != "unscored"}
    assert judged <= {"repeats", "nonce-twins", "logprob-twins"}  # these have their control in the arm itself


def test_a_run_without_audits_is_unscored_with_a_reason() -> None:
    gate = fast_gate()
    keep = [kind != "audit" for kind in gate.workload["kind"].to_pylist()]
    load = gate.baseline.filter(pa.array([kind != "audit" for kind in gate.baseline["kind"].to_pylist()]))
    result = judge_audit(load, gate.workload.filter(pa.array(keep)), "candidate", gate.baseline)
    assert result.status == "unscored" and "no audit request" in result.reason
    empty = judge_audit(load.drop_columns(["text"]), pa.Table.from_pylist([], schema=SCHEMA), "candidate")
    assert empty.status == "unscored" and "text" in empty.reason

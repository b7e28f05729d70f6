"""Audits mixed into a gate's stream: their share, their looks, their way into the verdict."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.audits import audit_source, audits_in_pair
from harness.cells import Cell, make_cells
from harness.contracts import contract_checks, contract_notes
from harness.plan import Plan, make_plan
from harness.score import score_arms
from harness.verdict import Status
from harness.workload import write_pair
from oracles.audit_plan import COST
from oracles.result import OracleResult
from tests.engines.cheats import catalogue
from tests.engines.fast import fast_gate
from tests.engines.stream import Engine


def _plan(**changes: object) -> Plan:
    data = {
        "model": "m",
        "tokenizer": "/nowhere",
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "profiles": [{"name": "chat-steady", "concurrency": [1, 4], "request_count": 40}],
        "tier": "smoke",
    }
    return make_plan(data | changes, source="test", folder=Path("/"))


def _words(text: str) -> int:
    return len(text.split())


def _pair(plan: Plan, folder: Path, pair: int = 1) -> tuple[list[dict], list[dict]]:
    cells = make_cells(plan)
    write_pair(plan, cells, pair, folder, _words, [audit_source(plan, cells, pair)])
    bodies = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    return pq.read_table(folder / "workload.parquet").to_pylist(), bodies


TEMPLATE = make_cells(_plan())[0]


@given(share=st.floats(0, 1), counts=st.lists(st.integers(1, 60), min_size=1, max_size=5), pairs=st.integers(1, 12))
def test_audits_add_up_to_their_share_and_never_over_it(share: float, counts: list[int], pairs: int) -> None:
    cells = [replace(TEMPLATE, concurrency=c + 1, request_count=n) for c, n in enumerate(counts)]
    made = [number for pair in range(1, pairs + 1) for number in audits_in_pair(share, cells, pair).values()]
    load = pairs * sum(counts)
    assert all(number % 2 == 0 for number in made)
    assert share * load - 2 <= sum(made) <= share * load


def test_a_cell_too_short_for_one_audit_gets_one_in_some_pair() -> None:
    cells: list[Cell] = [replace(TEMPLATE, request_count=8)]
    made = [audits_in_pair(0.05, cells, pair)[cells[0].name] for pair in range(1, 13)]
    assert sum(made) == 4 and made.count(2) == 2


def test_the_default_share_is_small_and_the_places_are_drawn(tmp_path: Path) -> None:
    plan = _plan(profiles=[{"name": "chat-steady", "concurrency": [4], "request_count": 400}])
    rows, bodies = _pair(plan, tmp_path)
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["load"] == 400 and kinds["audit"] == 20 and len(bodies) == len(rows)
    places = [i for i, row in enumerate(rows) if row["kind"] == "audit"]
    assert min(places) < 150 and max(places) > 270
    families = Counter(row["item"].split("/")[1] for row in rows if row["kind"] == "audit")
    assert set(families) == set(COST) - {"logprob-twins"}


@pytest.mark.parametrize("logprobs", [False, True])
def test_no_body_says_that_it_is_an_audit(tmp_path: Path, logprobs: bool) -> None:
    rows, bodies = _pair(_plan(audit_share=0.5, audit_logprobs=logprobs), tmp_path)
    shapes: dict[str, set[tuple[str, ...]]] = {"load": set(), "audit": set()}
    for row, body in zip(rows, bodies, strict=True):
        if row["kind"] in shapes:
            shapes[row["kind"]].add(tuple(sorted(body)))
        assert "audit" not in json.dumps(body)
    (load,) = shapes["load"]
    asked_for_logprobs = {tuple(sorted((*load, "logprobs")))} if logprobs else set()
    assert shapes["audit"] == {load} | asked_for_logprobs


def test_no_share_no_audits(tmp_path: Path) -> None:
    rows, _ = _pair(_plan(audit_share=0), tmp_path)
    assert {row["kind"] for row in rows} == {"warmup", "load"}


def test_twins_ask_what_their_load_request_asked(tmp_path: Path) -> None:
    rows, _ = _pair(_plan(audit_share=0.5), tmp_path)
    load = {(r["cell"], r["item"]): r for r in rows if r["kind"] == "load"}
    repeats = [r for r in rows if r["item"].startswith("audit/repeats/")]
    assert repeats
    for row in repeats:
        base = load[row["cell"], row["item"].removeprefix("audit/repeats/")]
        same = ("messages", "seed", "temperature", "top_p", "max_tokens", "stop", "fixed_length", "stratum")
        assert {k: row[k] for k in same} == {k: base[k] for k in same} and row["line"] > base["line"]


def _scored(root: Path, candidate: pa.Table, keep: str = "") -> dict[str, OracleResult]:
    """oracles/*/audit.json of a run whose two visits are on disk as the pipeline leaves them."""
    gate = fast_gate()
    pair = root / "pairs" / "01"
    for role, table in (("baseline", gate.baseline), ("candidate", candidate)):
        (pair / role).mkdir(parents=True)
        pq.write_table(_only(table.drop_columns(["pair"]), keep), pair / role / "requests.parquet")
    pq.write_table(_only(gate.workload, keep), pair / "workload.parquet")
    score_arms(_plan(), 1, root, lambda *_: None)
    return {
        role: OracleResult.model_validate_json((root / "oracles" / role / "audit.json").read_text())
        for role in ("baseline", "candidate")
    }


def _only(table: pa.Table, kind: str) -> pa.Table:
    return table.filter(pa.array([kind in ("", k) for k in table["kind"].to_pylist()]))


def test_an_audit_that_catches_somebody_is_the_candidates_fail(tmp_path: Path) -> None:
    results = _scored(tmp_path, fast_gate().visit(catalogue()["memoises-responses"](), "vllm"))
    checks = {c.check: c for c in contract_checks(list(results.values()), frozenset())}
    assert checks["audit.repeats"].status is Status.FAIL
    assert checks["audit.repeats"].evidence == ("oracles/candidate/audit.json",)
    assert not [name for name, check in checks.items() if check.status is Status.INVALID]


def test_the_verdict_states_the_power_of_every_probabilistic_check(tmp_path: Path) -> None:
    results = list(_scored(tmp_path, fast_gate().visit(Engine(), "vllm")).values())
    checks = contract_checks(results, frozenset())
    assert all(check.detectable_rate for check in checks if check.check.startswith("audit."))
    (power,) = [note for note in contract_notes(results) if note.startswith("Power of audit")]
    assert all(f"{name} " in power for name in (*COST, "order"))
    assert any("fresh connections" in note for note in contract_notes(results))


def test_a_run_too_small_for_audits_is_disclosed_and_not_failed(tmp_path: Path) -> None:
    results = list(_scored(tmp_path, fast_gate().visit(Engine(), "vllm"), keep="load").values())
    assert {result.status for result in results} == {"unscored"}
    assert contract_checks(results, frozenset()) == ()
    assert any("audit (candidate) was not scored" in note for note in contract_notes(results))

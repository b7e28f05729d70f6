"""A/A: the baseline against itself, what it leaves behind, and which later gates use it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.aa import judge_aa
from harness.aa_run import as_aa
from harness.cells import make_cells
from harness.errors import InvalidRun, UsageError
from harness.forecast import forecast
from harness.gate import decide
from harness.judge import all_criteria, plan_criteria, speedup_bars
from harness.noise import AaResult, CheckNoise, KnownNoise, machine_check, noise_notes
from harness.noise_store import NOISE, fits, fitting_noise, keep_noise
from harness.plan import Plan, make_plan
from harness.verdict import Status
from tests.gate_runs import gate_run, margins


def plan(**changes: Any) -> Plan:
    endpoint = {"url": "http://127.0.0.1:1", "launch": "serve the baseline", "gpus": 1}
    data = {
        "model": "m",
        "endpoints": {"baseline": endpoint, "candidate": {"url": "http://127.0.0.1:2"}},
        "profiles": [{"name": "smoke", "request_count": 6}],
        "criteria": ["ttft.p50 >= 1.4x"],
    }
    return make_plan(data | changes, source="test", folder=Path("/"))


def known(result: AaResult, cells: dict[str, int] | None = None) -> KnownNoise:
    return KnownNoise(run="aa-1", measured_at="2026-12-02T10:00:00+00:00", fits={"cells": cells or {}}, result=result)


def test_both_arms_are_the_baseline_started_anew_for_each_visit() -> None:
    aa = as_aa(plan())
    assert aa.endpoints.candidate == aa.endpoints.baseline
    assert aa.engines == "one-at-a-time"
    assert aa.pairs == (6,)
    assert {c.text for c in all_criteria(aa)} >= {"ttft.p50 >= 0.95x"}, "an unchanged engine must be able to pass"
    assert "ttft.p50 >= 1.4x" in {c.text for c in plan_criteria(aa)}, "pairs needed are for the plan's own bars"
    with pytest.raises(UsageError, match=r"endpoints\.baseline\.launch"):
        as_aa(plan(endpoints={"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}}))


def test_an_engine_that_differs_from_itself_in_accuracy_cannot_be_trusted() -> None:
    result = judge_aa(gate_run(1.0, token_margin=margins(3.0)))
    assert result.status is Status.INVALID
    assert "Worse than allowed" in result.sentence
    assert result.checks == ()


def test_the_line_holds_what_a_person_asks_for() -> None:
    result = judge_aa(gate_run(1.0, noise=0.02))
    assert result.line.startswith(f"AA PASS 15 checks noise<={result.checks[0].noise:.1%} ({result.checks[0].check})")
    assert result.line.endswith(f"pairs_needed={result.pairs_needed}")


def test_noise_is_used_where_it_fits_and_nowhere_else(tmp_path: Path) -> None:
    aa = as_aa(plan())
    result = judge_aa(gate_run(1.0))
    keep_noise(result, aa, make_cells(aa), tmp_path / "aa-1")
    found = fitting_noise(plan(), make_cells(plan()), tmp_path)
    assert found is not None
    assert found.result == result
    assert found.run == "aa-1"
    assert fitting_noise(aa, make_cells(aa), tmp_path) is None, "an A/A run measures anew"
    assert fitting_noise(plan(), make_cells(plan()), tmp_path / "elsewhere") is None
    more = plan(profiles=[{"name": "smoke", "request_count": 7}])
    assert fitting_noise(more, make_cells(more), tmp_path) is None
    other = plan(model="another")
    assert fitting_noise(other, make_cells(other), tmp_path) is None
    assert fits(plan(), ())["machine"]["cpus"]


@pytest.mark.parametrize("text", ["{", "{}", '{"schema_version": 2}'])
def test_a_noise_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NOISE).write_text(text)
    with pytest.raises(InvalidRun, match=r"noise\.json"):
        fitting_noise(plan(), make_cells(plan()), tmp_path)


def test_known_noise_sharpens_power_and_changes_no_check() -> None:
    quiet = known(judge_aa(gate_run(1.0, noise=0.01)))
    run = gate_run(1.3, noise=0.06)
    before, after = decide(run), decide(replace(run, known_noise=quiet))
    assert before.checks == after.checks
    assert after.power.chance_to_pass is not None
    assert before.power.chance_to_pass is not None
    assert after.power.chance_to_pass > before.power.chance_to_pass
    assert after.power.sentence.endswith("Pooled with A/A run aa-1.")
    part = known(quiet.result.model_copy(update={"checks": quiet.result.checks[:3]}))
    some = decide(replace(run, known_noise=part)).power
    assert some.chance_to_pass is not None
    assert before.power.chance_to_pass <= some.chance_to_pass <= after.power.chance_to_pass
    other = known(quiet.result.model_copy(update={"checks": ()}))
    assert decide(replace(run, known_noise=other)).power == before.power


def test_a_dry_run_says_what_the_plan_can_see(tmp_path: Path) -> None:
    asked = plan(profiles=[{"name": "chat-steady", "concurrency": [1, 8], "request_count": 64}], criteria=[])
    assert "A/A run" not in forecast(asked, tmp_path)
    noise = [
        CheckNoise(check=c, ratio=1, ci_low=1, ci_high=1, noise=0.02) for c in speedup_bars(asked, make_cells(asked))
    ]
    result = judge_aa(gate_run(1.0)).model_copy(update={"checks": tuple(noise), "correlation": 0.5})
    keep_noise(result, asked, make_cells(asked), tmp_path / "aa-1")
    told = forecast(asked, tmp_path)
    assert "By A/A run aa-1: Noise between pairs is 2.0 % in the median check" in told
    assert "an engine truly 1.25x everywhere would pass" in told


def test_a_machine_that_differs_from_itself_makes_later_gates_invalid() -> None:
    biased = known(judge_aa(gate_run(1.10, noise=0.01)))
    checks = machine_check(biased)
    assert [c.status for c in checks] == [Status.INVALID]
    assert "aa-1" in checks[0].reason
    verdict = decide(gate_run(1.5, validity=checks))
    assert verdict.status is Status.INVALID
    assert verdict.failed_first[0] == "machine"
    assert machine_check(None) == ()
    assert decide(gate_run(1.5, validity=machine_check(known(judge_aa(gate_run(1.0)))))).status is Status.PASS


def test_a_plan_with_too_few_pairs_hears_so() -> None:
    noisy = known(judge_aa(gate_run(1.0, noise=0.05)))
    assert noisy.result.pairs_needed is None or noisy.result.pairs_needed > 12
    assert "the plan has 12" in noise_notes(noisy, 12)[0]
    assert noise_notes(known(judge_aa(gate_run(1.0, noise=0.005))), 12) == ()
    json.loads(noisy.model_dump_json())

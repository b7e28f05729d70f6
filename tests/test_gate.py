from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from harness.aa import judge_aa
from harness.accuracy import judge_divergence, judge_tasks
from harness.criteria import parse_criterion, resolve
from harness.divergence import Documents
from harness.gate import GateInput, decide
from harness.power import wants_more_pairs
from harness.verdict import Check, Family, Status, Verdict
from tests.gate_runs import (
    CELLS,
    REQUESTS,
    distribution,
    documents,
    gate_run,
    margins,
    oracle,
    scopes,
    tasks,
    visits,
    with_cell,
)

SCHEMA = Path(__file__).parent.parent / "docs" / "verdict.schema.json"


def find(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.check == name)


def changed(run: GateInput, pair: int, role: Any, name: str, **changes: Any) -> GateInput:
    visit = next(v for v in run.visits if (v.pair, v.role) == (pair, role))
    return with_cell(run, pair, role, name, visit.cells[name].model_copy(update=changes))


def all_pairs(run: GateInput, role: Any, name: str, **changes: Any) -> GateInput:
    for pair in {visit.pair for visit in run.visits}:
        run = changed(run, pair, role, name, **changes)
    return run


def invalid(name: str, where: str | None = None) -> Check:
    words = {"check": name, "criterion": name, "metric": name, "reason": "Broken."}
    return Check(family=Family.VALIDITY, status=Status.INVALID, cell=where, **words)


# --- the four states -----------------------------------------------------------------------------------------------


def test_a_better_engine_passes_with_one_line_of_truth() -> None:
    verdict = decide(gate_run(1.5))
    assert verdict.status is Status.PASS
    assert re.fullmatch(r"VERDICT PASS 23/23 worst=\S+ 1\.\d\dx need 1\.20x run=runs/test", verdict.line)
    assert verdict.failed_first == ()
    assert verdict.next_step == "Nothing stands in the way."
    check = find(verdict, "ttft.p50@chat/c8")
    assert check.ci_low is not None
    assert check.ci_high is not None
    assert check.observed is not None
    assert 1.2 < check.ci_low <= check.observed <= check.ci_high
    assert check.baseline == pytest.approx(50, rel=0.05)
    assert check.value_unit == "ms"
    assert check.confidence == 1 - 1 / 64


def test_an_equal_engine_fails_and_the_worst_check_leads() -> None:
    verdict = decide(gate_run(1.0))
    assert verdict.status is Status.FAIL
    first = find(verdict, verdict.failed_first[0])
    failing = [c.distance for c in verdict.checks if c.status is Status.FAIL and c.distance is not None]
    assert first.distance == min(failing)
    assert verdict.line == f"VERDICT FAIL 8/23 worst={first.check} {first.observed:.2f}x need 1.20x run=runs/test"
    assert "misses 1.20x (6 pairs; corrected for 15 checks)" in first.reason
    assert first.distance_noise is not None
    assert first.distance_noise < -5


def test_an_engine_near_the_bar_is_undecided_and_hears_what_it_takes() -> None:
    verdict = decide(gate_run(1.3, noise=0.06))
    assert verdict.status is Status.INCONCLUSIVE
    needed = verdict.power.pairs_needed
    assert needed is not None
    assert needed > 6
    minutes = f"{600 / 60 / 6 * (needed - 6):.0f}"
    assert verdict.next_step.startswith(f"About {needed} pairs would decide: {needed - 6} more, some {minutes} minutes")
    assert wants_more_pairs(verdict)


def test_more_pairs_are_not_asked_for_when_they_cannot_give_a_pass() -> None:
    run = gate_run(1.4)
    for pair, ratio in enumerate((1.19, 1.10, 1.18, 1.05, 1.17, 1.15), start=1):
        run = changed(run, pair, "baseline", "chat/c1", tpot_ms=distribution(10.0))
        run = changed(run, pair, "candidate", "chat/c1", tpot_ms=distribution(10 / ratio))
    verdict = decide(run)
    assert verdict.status is Status.INCONCLUSIVE
    assert not wants_more_pairs(verdict)
    assert verdict.next_step.startswith("Futile: more pairs will not make this a PASS. tpot.p")
    assert "but not beyond doubt among 15 checks" in find(verdict, "tpot.p50@chat/c1").reason


def test_the_second_look_is_the_last() -> None:
    verdict = decide(gate_run(1.24, pairs=12, noise=0.06))
    assert verdict.status is Status.INCONCLUSIVE
    assert not wants_more_pairs(verdict)
    assert find(verdict, "tpot.p50@chat/c1").confidence == 1 - (0.05 - 1 / 64)


def test_fewer_than_five_pairs_are_quick_and_provisional() -> None:
    verdict = decide(replace(gate_run(), visits=visits(1.5, 3, 0.005), pairs=(3,)))
    assert verdict.mode == "quick"
    assert verdict.line.startswith("VERDICT PROVISIONAL PASS 23/23")
    assert verdict.sentence.startswith("Provisional")
    assert "never counts" in verdict.next_step


def test_one_pair_decides_nothing() -> None:
    verdict = decide(replace(gate_run(), visits=visits(3.0, 1), pairs=(1, 2)))
    assert verdict.status is Status.INCONCLUSIVE
    assert "one pair says nothing about noise" in find(verdict, "tpot.p50@chat/c1").reason


# --- whose fault ---------------------------------------------------------------------------------------------------


def test_an_engine_cannot_buy_itself_an_invalid() -> None:
    run = all_pairs(gate_run(1.5), "candidate", "chat/c8", served=50, failures={"http_error": 10, "timeout": 4})
    verdict = decide(replace(run, validity=(invalid("client@chat/c8", "chat/c8"), invalid("machine"))))
    assert verdict.status is Status.FAIL
    assert verdict.failed_first[0] == "served@chat/c8"
    served = find(verdict, "served@chat/c8")
    assert served.family is Family.HONESTY
    assert "served 300 of 384 requests: 60 http_error, 24 timeout" in served.reason
    assert find(verdict, "ttft.p50@chat/c1").status is Status.INVALID


def test_the_baselines_failures_are_invalid_and_take_their_cell_along() -> None:
    verdict = decide(all_pairs(gate_run(1.0), "baseline", "chat/c8", served=60, failures={"empty": 4}))
    assert find(verdict, "baseline-served@chat/c8").status is Status.INVALID
    assert find(verdict, "ttft.p50@chat/c8").status is Status.INVALID
    assert "baseline-served@chat/c8 is INVALID" in find(verdict, "ttft.p50@chat/c8").reason
    assert find(verdict, "ttft.p50@chat/c1").status is Status.FAIL
    assert verdict.status is Status.FAIL


@pytest.mark.parametrize(("lost", "status"), [(2, Status.PASS), (3, Status.FAIL)])
def test_one_lost_request_in_a_thousand_is_forgiven(lost: int, status: Status) -> None:
    run = gate_run(cells=scopes(requests=400), requests=400)
    run = changed(run, 1, "candidate", "chat/c1", served=400 - lost, failures={"connection_error": lost})
    assert find(decide(run), "served@chat/c1").status is status


@pytest.mark.parametrize(("role", "status"), [("candidate", Status.FAIL), ("baseline", Status.INVALID)])
def test_a_percentile_among_failures(role: str, status: Status) -> None:
    late = distribution(50).model_copy(update={"p95": None})
    check = find(decide(changed(gate_run(), 2, role, "chat/c8", ttft_ms=late)), "ttft.p95@chat/c8")
    assert check.status is status
    assert f"The {role}'s ttft.p95 was not measured in pair 2" in check.reason


def test_a_throughput_of_nothing_and_a_time_of_zero_are_the_candidates_fail() -> None:
    verdict = decide(changed(gate_run(), 1, "candidate", "rag/c8", output_throughput=None))
    assert find(verdict, "output_throughput@rag/c8").status is Status.FAIL
    burst = distribution(10).model_copy(update={"p50": 0.0})
    verdict = decide(changed(gate_run(), 1, "candidate", "rag/c8", tpot_ms=burst))
    assert find(verdict, "tpot.p50@rag/c8").status is Status.FAIL


def test_answers_in_one_event_do_not_hide_from_tpot() -> None:
    run = all_pairs(gate_run(3.0), "candidate", "rag/c8", tpot_ms=distribution(1, REQUESTS // 2))
    check = find(decide(run), "tpot.p50@rag/c8")
    assert check.status is Status.FAIL
    assert "Only 50% of the candidate's answers" in check.reason


def test_what_the_oracles_found() -> None:
    verdict = decide(gate_run(oracles=(oracle("baseline"), oracle("candidate", "loops"))))
    assert verdict.status is Status.FAIL
    assert verdict.failed_first == ("protocol.loops",)
    assert find(verdict, "protocol.usage").status is Status.PASS
    assert verdict.line == "VERDICT FAIL 22/23 worst=protocol.loops run=runs/test"

    verdict = decide(gate_run(oracles=(oracle("baseline", "loops"), oracle("candidate"))))
    assert verdict.status is Status.INVALID
    assert verdict.failed_first[0] == "baseline.protocol.loops"
    assert find(verdict, "token_margin").status is Status.INVALID
    assert find(verdict, "ttft.p50@chat/c1").status is Status.INVALID


@pytest.mark.parametrize(
    ("oracles", "sentence"),
    [
        ((oracle("baseline"),), "has no result for the candidate"),
        ((), "has no result for the baseline and the candidate"),
        ((oracle("baseline"), oracle("candidate", findings=("loops",))), "different things in the two arms: usage"),
        ((oracle("baseline"), oracle("candidate"), oracle("candidate")), "one arm twice"),
        (
            (oracle("baseline"), oracle("candidate").model_copy(update={"status": "unscored", "reason": "No ids."})),
            "did not score the candidate: No ids.",
        ),
    ],
)
def test_an_oracle_that_did_not_score_is_invalid(oracles: Any, sentence: str) -> None:
    verdict = decide(gate_run(oracles=oracles))
    assert verdict.status is Status.INVALID
    assert sentence in find(verdict, "oracle.protocol").reason


def test_an_unscored_finding_is_a_note() -> None:
    finding = oracle("candidate").findings[0].model_copy(update={"status": "unscored", "sentence": "No logprobs."})
    arms = tuple(oracle(arm).model_copy(update={"findings": (finding,)}) for arm in ("baseline", "candidate"))
    verdict = decide(gate_run(oracles=arms))
    assert verdict.status is Status.PASS
    assert "protocol (candidate): loops was not scored: No logprobs." in verdict.notes


# --- completeness --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda r: replace(r, visits=r.visits[:-1]), "The run has 5 whole pairs; the plan asks for 6 to 12"),
        (lambda r: replace(r, visits=r.visits[:-2]), "The run has 5 whole pairs"),
        (lambda r: replace(r, visits=()), "The run has 0 whole pairs"),
        (lambda r: replace(r, visits=(*r.visits, r.visits[0])), "One visit is there twice"),
        (lambda r: replace(r, visits=(*r.visits, visits(pairs=7)[-1])), "A pair has only one of its two visits"),
        (lambda r: with_cell(r, 1, "candidate", "chat/c8", None), "chat/c8 of pair 1, candidate, was not measured"),
        (
            lambda r: changed(r, 1, "candidate", "chat/c8", asked=63, served=63),
            "asked 63 requests of load and the plan 64",
        ),
        (lambda r: changed(r, 1, "candidate", "chat/c8", served=60), "do not add up to 64"),
        (lambda r: replace(r, cells=r.cells[1:]), "chat/c1 has a criterion but is not a cell of the plan"),
        (lambda r: replace(r, visits=visits(pairs=13)), "The run has 13 whole pairs"),
    ],
)
def test_what_is_missing_is_invalid(break_it: Any, sentence: str) -> None:
    verdict = decide(break_it(gate_run()))
    assert verdict.status in {Status.INVALID, Status.FAIL}
    assert find(verdict, "complete").status is Status.INVALID
    assert sentence in find(verdict, "complete").reason


def test_no_criterion_judged_is_invalid() -> None:
    assert decide(gate_run(criteria=())).status is Status.INVALID


# --- as right ------------------------------------------------------------------------------------------------------


def test_a_hundredfold_margin_fails_however_fast() -> None:
    verdict = decide(gate_run(2.0, token_margin=margins(100.0)))
    assert verdict.failed_first == ("token_margin",)
    assert verdict.line.startswith("VERDICT FAIL 22/23 worst=token_margin")
    check = find(verdict, "token_margin")
    assert "Worse than allowed in" in check.reason
    assert check.n == 400


@pytest.mark.parametrize("name", ["token_margin", "tasks"])
def test_no_reference_is_invalid_not_a_pass(name: str) -> None:
    verdict = decide(gate_run(**{name: None}))
    assert verdict.status is Status.INVALID
    assert verdict.failed_first == (name,)


def test_the_distance_of_accuracy_is_told_in_its_own_noise_too() -> None:
    for arms, sign in ((margins(0.5), 1), (margins(3.0), -1)):
        check = next(c for c in decide(gate_run(token_margin=arms)).checks if c.metric == "token_margin")
        assert check.noise and check.observed and check.distance_noise
        assert check.distance_noise == pytest.approx(np.log(1.05 / check.observed) / check.noise)
        assert np.sign(check.distance_noise) == np.sign(check.distance) == sign
    lost = next(c for c in decide(gate_run(tasks=tasks(lost=60))).checks if c.metric == "tasks")
    assert lost.noise and lost.observed == pytest.approx(-3.0)
    assert lost.distance_noise == pytest.approx(-2.0 / lost.noise)


def test_options_asked_apart_cannot_make_up_for_timed_answers_nor_the_reverse() -> None:
    asked = frozenset({"protocol", "tasks", "options"})
    for timed, apart in ((60, 0), (0, 60)):
        run = gate_run(tasks=tasks(lost=timed), options=tasks(lost=apart), required_oracles=asked)
        judged = {c.check: c.status for c in decide(run).checks if c.metric == "tasks"}
        expected = [Status.FAIL if lost else Status.PASS for lost in (timed, apart)]
        assert list(judged) and sorted(judged) == ["tasks", "tasks.options"]
        assert [judged["tasks"], judged["tasks.options"]] == expected
    absent = decide(gate_run(options=None, required_oracles=asked)).checks
    assert {c.check: c.status for c in absent}["tasks.options"] is Status.INVALID


def test_the_floor_saves_an_honest_engine_of_other_numerics() -> None:
    """BF16 reads 0.0007 nats, a good 8-bit engine 0.0038: the ratio to the baseline alone says nothing."""
    engine, baseline = documents(scale=0.0038, seed=1), documents(scale=0.0007, seed=2)
    arms = margins(candidate=engine, baseline=baseline, floor=documents(60, 0.006, seed=3))
    assert judge_divergence(arms, 1.05).status is Status.PASS
    assert judge_divergence(replace(arms, floor=documents(60, 1e-5)), 1.05).status is Status.FAIL


def test_without_a_floor_a_fail_is_not_proven_but_a_pass_is() -> None:
    assert judge_divergence(margins(100.0, floor=None), 1.05).status is Status.INVALID
    assert judge_divergence(margins(0.3, floor=None), 1.05).status is Status.PASS


def test_one_bad_language_decides() -> None:
    engine = documents(600, 0.5, seed=1, strata=("en", "code", "zh"))
    bad = replace(engine, nats=np.where(engine.stratum == "zh", 6 * engine.nats, 0.2 * engine.nats))
    arms = margins(candidate=bad, baseline=documents(600, 1.0, seed=2, strata=("en", "code", "zh")))
    judged = judge_divergence(arms, 1.05)
    assert judged.status is Status.FAIL
    assert "Worse than allowed in zh (" in judged.reason


def test_small_strata_are_judged_together_or_named() -> None:
    def arm(scale: float, seed: int, rare: tuple[str, ...]) -> Documents:
        whole = documents(200, scale, seed)
        names = [rare[i // 20] if i < 20 * len(rare) else str(whole.stratum[i]) for i in range(200)]
        return replace(whole, stratum=np.array(names))

    two = judge_divergence(margins(candidate=arm(0.5, 1, ("th", "am")), baseline=arm(1.0, 2, ("th", "am"))), 1.05)
    assert "Too few" not in two.reason
    one = judge_divergence(margins(candidate=arm(0.5, 1, ("th",)), baseline=arm(1.0, 2, ("th",))), 1.05)
    assert "Too few documents to judge alone: th" in one.reason


def test_few_documents_decide_nothing_and_say_how_many_would() -> None:
    few = margins(candidate=documents(20, 0.1, 1), baseline=documents(20, 1.0, 2))
    assert judge_divergence(few, 1.05).status is Status.INCONCLUSIVE
    judged = judge_divergence(margins(0.9, n=100), 1.05)
    assert judged.status is Status.INCONCLUSIVE
    assert judged.needed is not None
    assert judged.needed > 100
    assert f"About {judged.needed:,} documents would decide; this run has 100" in judged.hint


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        ({"nats": np.full(400, np.nan)}, "not a finite number"),
        ({"nats": np.full(400, -1.0)}, "negative sum"),
        ({"tokens": np.zeros(400)}, "without tokens"),
        ({"line": np.zeros(400, dtype=int), "pair": np.zeros(400, dtype=int)}, "one request twice"),
        ({"line": np.arange(400) + 100}, "so they are not comparable"),
    ],
)
def test_documents_that_cannot_be_compared_are_invalid(breaks: dict[str, Any], sentence: str) -> None:
    judged = judge_divergence(margins(candidate=replace(documents(400, 0.5, 1), **breaks)), 1.05)
    assert judged.status is Status.INVALID
    assert sentence in judged.reason


@pytest.mark.parametrize(("strata", "n"), [(("en",), 60), (("en", "zh", "code", "ar"), 200)])
def test_an_honest_engine_of_equal_numerics_is_not_failed(strata: tuple[str, ...], n: int) -> None:
    outcomes = [
        judge_divergence(
            margins(
                candidate=documents(n, 1.0, 3 * seed, strata),
                baseline=documents(n, 1.0, 3 * seed + 1, strata),
                floor=documents(40, 0.3, 3 * seed + 2),
            ),
            1.05, alpha=0.025, resamples=400,
        ).status
        for seed in range(150)
    ]  # fmt: skip
    assert outcomes.count(Status.FAIL) <= 8


def test_sampled_answers_do_not_blur_the_margin() -> None:
    """Seen on an H200: two sampled audits in three hundred greedy answers hid a tenfold loss behind their own dice."""
    worse, base = documents(400, 2.0, seed=1), documents(400, 1.0, seed=2)
    dice = np.where(np.arange(400) % 8 == 0, 300.0, 0.0)
    greedy = dice == 0
    arms = margins(
        candidate=replace(worse, nats=worse.nats + dice, greedy=greedy),
        baseline=replace(base, nats=base.nats + dice, greedy=greedy),
    )
    judged = judge_divergence(arms, 1.05)
    assert judged.status is Status.FAIL and judged.observed > 1.6 and judged.n == 350
    everywhere = replace(arms, candidate=replace(worse, greedy=~(dice < 1)), baseline=replace(base, greedy=dice > 1e6))
    assert judge_divergence(everywhere, 1.05).n == 400, "where an arm has no greedy answer all are compared"


def test_absolute_divergence_limits() -> None:
    arms = margins(0.5)
    mean = float(arms.candidate.nats.sum() / arms.candidate.tokens.sum())
    assert judge_divergence(arms, 2 * mean, unit="nats").status is Status.PASS
    assert judge_divergence(arms, mean / 2, unit="nats").status is Status.FAIL


@pytest.mark.parametrize(
    ("lost", "gained", "n", "status"),
    [
        (0, 0, 2000, Status.PASS),
        (0, 0, 100, Status.INCONCLUSIVE),
        (30, 25, 2000, Status.PASS),
        (60, 30, 2000, Status.INCONCLUSIVE),
        (120, 20, 2000, Status.FAIL),
    ],
)
def test_paired_tasks(lost: int, gained: int, n: int, status: Status) -> None:
    judged = judge_tasks(tasks(n, lost, gained), -1.0)
    assert judged.status is status
    assert judged.observed == pytest.approx(100 * (gained - lost) / n)
    assert f"{lost} lost and {gained} gained" in judged.reason
    assert (judged.needed or 0) > n or status is not Status.INCONCLUSIVE


def test_items_of_one_template_are_one_observation() -> None:
    scores = tasks(2000, lost=20)
    together = replace(scores, cluster=np.array([str(i // 200) for i in range(2000)]))
    lone, clustered = judge_tasks(scores, -1.0).low, judge_tasks(together, -1.0).low
    assert lone is not None
    assert clustered is not None
    assert clustered < lone


def test_task_scores_that_are_missing_are_invalid() -> None:
    scores = tasks(100)
    assert judge_tasks(replace(scores, candidate=np.full(100, np.nan)), -1).status is Status.INVALID
    assert judge_tasks(replace(scores, item=np.array(["same"] * 100)), -1).status is Status.INVALID
    assert judge_tasks(tasks(0), -1).status is Status.INVALID


# --- criteria of every kind ----------------------------------------------------------------------------------------


def test_absolute_limits_are_the_candidates_own() -> None:
    user = ("ttft.p95 <= 60ms @ chat", "ttft.p50 <= 30ms @ rag", "output_throughput >= 900tok/s @ c1")
    verdict = decide(gate_run(1.5, user=user))
    over = find(verdict, "ttft.p50<=30ms@rag/c8")
    assert over.status is Status.FAIL
    assert over.observed == pytest.approx(50 / 1.5, rel=0.03)
    assert over.ci_low is not None
    assert over.ci_high is not None
    assert over.ci_low < over.ci_high
    assert over.distance is not None
    assert over.distance < 0
    assert find(verdict, "ttft.p95<=60ms@chat/c1").status is Status.PASS
    assert find(verdict, "output_throughput>=900tokens/s@chat/c1").status is Status.PASS


def test_throughput_per_gpu_divides_by_the_gpus() -> None:
    run = gate_run(1.5)
    run = replace(run, criteria=resolve([parse_criterion("throughput_per_gpu >= 1.20x")], run.cells))
    fair = decide(replace(run, gpus={"baseline": 1, "candidate": 1}))
    twice = decide(replace(run, gpus={"baseline": 1, "candidate": 2}))
    assert [v.status for v in (fair, twice)] == [Status.PASS, Status.FAIL]
    assert decide(run).status is Status.INVALID


def test_peak_memory_is_the_runs_and_the_judge_measures_it() -> None:
    run = gate_run(1.5)
    run = replace(run, criteria=(*run.criteria, (parse_criterion("peak_memory <= 1.0x"), None)))
    assert find(decide(run), "peak_memory").status is Status.INVALID
    for role, mib in (("baseline", 1000.0), ("candidate", 800.0)):
        for name in CELLS:
            run = all_pairs(run, role, name, signals={"peak_memory_mib": mib})
    check = find(decide(run), "peak_memory")
    assert (check.status, check.observed) == (Status.PASS, pytest.approx(0.8))


# --- hints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "changes", "check", "words"),
    [
        ("chat/c8", {"ttft_ms": distribution(55)}, "ttft.p50@chat/c8", ("admission", "chat/c1 but 0.9")),
        ("chat/c8", {"tpot_ms": distribution(11)}, "tpot.p50@chat/c8", ("Scheduler", "grows faster with the batch")),
        ("rag/c8", {"ttft_ms": distribution(55)}, "ttft.p50@rag/c8", ("Prefill", "0.9")),
        ("rag/c8", {"tpot_ms": distribution(11)}, "tpot.p50@rag/c8", ("Decode", "baseline")),
        ("chat/c8", {"output_throughput": 600.0}, "output_throughput@chat/c8", ("tokens flow at 1.", "fewer requests")),
        (
            "chat/c8", {"tpot_ms": distribution(10 / 1.5).model_copy(update={"p95": 14.0})},
            "tpot.p95@chat/c8", ("Scheduler", "at p50 but 0.9"),
        ),
    ],
)  # fmt: skip
def test_hints_name_a_phase_and_cite_numbers(
    where: str, changes: dict[str, Any], check: str, words: tuple[str, ...]
) -> None:
    found = find(decide(all_pairs(gate_run(1.5, noise=0.01), "candidate", where, **changes)), check)
    assert found.status is Status.FAIL
    for word in words:
        assert word in found.hint


def test_a_colder_cache_is_named() -> None:
    signals = {"ttft_ms": distribution(55), "signals": {"cached_prompt_share": 0.1}}
    run = all_pairs(gate_run(1.5), "candidate", "chat/c8", **signals)
    run = all_pairs(run, "baseline", "chat/c8", signals={"cached_prompt_share": 0.6})
    hint = find(decide(run), "ttft.p50@chat/c8").hint
    assert hint.startswith("Cache: the baseline served 60% of the prompt tokens")


# --- power, A/A, schema --------------------------------------------------------------------------------------------


def test_power_is_printed_and_falls_with_noise() -> None:
    quiet, loud = decide(gate_run(1.5, noise=0.02)).power, decide(gate_run(1.5, noise=0.08)).power
    assert quiet.assumed_speedup == loud.assumed_speedup == 1.25
    assert quiet.chance_to_pass is not None
    assert loud.chance_to_pass is not None
    assert quiet.chance_to_pass > 0.9
    assert loud.chance_to_pass < 0.3
    assert f"{quiet.chance_to_pass:.0%} of the time" in quiet.sentence


def test_power_without_speed_checks_still_counts_the_pairs() -> None:
    power = decide(replace(gate_run(), validity=(invalid("machine"),))).power
    assert (power.pairs, power.max_pairs, power.chance_to_pass) == (6, 12, None)
    assert power.sentence == "No speed check could be judged, so power is unknown."


def test_an_aa_run_measures_noise_and_trusts_the_machine() -> None:
    result = judge_aa(gate_run(1.0, noise=0.02))
    assert result.status is Status.PASS
    assert len(result.checks) == 15
    assert [c.noise for c in result.checks] == sorted((c.noise for c in result.checks), reverse=True)
    assert 0.01 < result.checks[7].noise < 0.03
    assert result.pairs_needed is not None
    assert 5 <= result.pairs_needed < 20


def test_an_aa_run_that_differs_from_itself_is_invalid() -> None:
    result = judge_aa(gate_run(1.10, noise=0.01))
    assert result.status is Status.INVALID
    assert "differs from 1 by more than 3% in 15 of 15 checks" in result.sentence
    near = judge_aa(gate_run(1.02, noise=0.01))
    assert near.status is Status.PASS
    far = max(near.checks, key=lambda check: abs(np.log(check.ratio)))
    assert f"{far.check}, {far.ratio:.2f}x, between {far.ci_low:.2f}x and {far.ci_high:.2f}x" in near.sentence
    assert "proven" in near.sentence, "a wide interval around 1 is no proof of 1"
    assert judge_aa(gate_run(0.9, noise=0.01)).status is Status.INVALID


def test_an_aa_run_that_is_incomplete_is_invalid() -> None:
    assert judge_aa(replace(gate_run(1.0), visits=visits(1.0)[:4])).status is Status.INVALID
    failing = all_pairs(gate_run(1.0), "candidate", "chat/c8", served=0, failures={"timeout": 64})
    assert "served 0 of 384" in judge_aa(failing).sentence


def test_aa_runs_are_rarely_called_biased() -> None:
    run = gate_run(1.0, token_margin=None)
    results = [judge_aa(replace(run, visits=visits(1.0, noise=0.05, seed=seed))) for seed in range(40)]
    assert sum(result.status is Status.INVALID for result in results) <= 3


def test_the_published_schema_is_current_and_verdicts_obey_it() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert schema == Verdict.model_json_schema(), "run: python -m harness.verdict > docs/verdict.schema.json"
    for run in (gate_run(1.5), gate_run(1.0), gate_run(token_margin=None)):
        verdict = decide(run)
        jsonschema.validate(json.loads(verdict.model_dump_json()), schema)
        assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict

"""Quick and full, CI, --on-inconclusive, the budget: what may start, what it may spend, what its exit code says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, models

from harness import modes, pipeline
from harness.budget import check_budget, pays_for
from harness.cells import make_cells
from harness.cli import gating, main
from harness.errors import InvalidRun, UsageError
from harness.gate import decide
from harness.plan import Plan, check_files, load_plan, make_plan
from harness.resuming import resumed_plan
from harness.run_store import RunStore, write_bytes, write_json
from harness.traffic_plan import dump_plan
from harness.verdict import Cost, Status
from tests.gate_runs import gate_run


def plan(**changes: Any) -> Plan:
    data = {
        "model": "m",
        "endpoints": {"baseline": {"url": "http://127.0.0.1:1"}, "candidate": {"url": "http://127.0.0.1:2"}},
        "profiles": ["chat-steady"],
    }
    return make_plan(data | changes, source="test", folder=Path("/"))


# --- quick ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["smoke", "chat-steady", "decode-easy", {"name": "chat-steady", "tier": "nightly"}])
def test_a_quick_run_is_small_and_can_judge_a_median_and_the_margin(profile: Any) -> None:
    small, dropped = modes.quick(plan(profiles=[profile]))
    assert dropped == ()
    assert small.mode == "quick"
    cells = make_cells(small)
    per_arm = small.pairs[0] * sum(cell.request_count for cell in cells)
    assert min(cell.request_count for cell in cells) >= 5, "a median needs five"
    assert per_arm >= 30, "accuracy needs thirty documents"
    assert per_arm < 400, "and minutes are minutes"


def test_a_quick_run_leaves_out_what_it_cannot_judge_and_says_so() -> None:
    profiles = [{"name": "chat-steady", "request_count": 64}]
    small, dropped = modes.quick(plan(profiles=profiles, criteria=["ttft.p95 <= 900ms", "tpot.p50 >= 1.3x"]))
    assert small.criteria == ("tpot.p50 >= 1.3x",)
    assert dropped == ("ttft.p95 <= 900ms",)
    with pytest.raises(UsageError, match="Did you mean tpot"):
        modes.quick(plan(criteria=["tpott.p50 >= 1.3x"]))


def test_public_prompts_are_the_same_in_a_quick_and_a_full_run() -> None:
    assert modes.quick(plan(seed=5))[0].seed == 5


@pytest.mark.parametrize(
    ("pairs", "full", "ci", "refused"),
    [
        ([2], False, False, False),
        ([2], True, False, True),
        ([4], False, True, True),
        ([6, 12], True, True, False),
        ([5], False, True, False),
    ],
)
def test_where_only_a_full_run_may_start(pairs: list[int], full: bool, ci: bool, refused: bool) -> None:
    if not refused:
        modes.refuse_quick(plan(pairs=pairs), full=full, ci=ci)
        return
    with pytest.raises(UsageError, match="decides nothing") as raised:
        modes.refuse_quick(plan(pairs=pairs), full=full, ci=ci)
    assert ("--no-ci" in str(raised.value)) == (not full)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("false", False), ("true", True), ("1", True), ("woodpecker", True)],
)
def test_ci_is_what_the_environment_says(value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert modes.in_ci(None) is expected
    assert modes.in_ci(True) is True
    assert modes.in_ci(False) is False


# --- on the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    data = {
        "model": "m",
        "reference": {"path": str(folder)},
        "endpoints": {"baseline": {"url": "http://127.0.0.1:9"}, "candidate": {"url": "http://127.0.0.1:9"}},
        "profiles": [{"name": "smoke", "request_count": 6}],
    }
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--quick", "--full"], "contradict each other"),
        (["--quick", "--ci"], "decides nothing"),
        (["--pairs", "2", "--full"], "--full was given"),
        (["--aa"], "endpoints.baseline.launch"),
        (["--on-inconclusive", "maybe"], "'fail', 'neutral', 'pass'"),
    ],
)
def test_what_may_not_start_exits_2_and_leaves_nothing(plan_file: Path, flags: list[str], sentence: str) -> None:
    result = invoke("gate", str(plan_file), "--run-dir", str(plan_file.parent / "run"), *flags)
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (plan_file.parent / "run").exists()


def test_a_budget_that_cannot_pay_for_one_pair_exits_2(plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text() + "budget_minutes: 0.1\n")
    result = invoke("gate", str(plan_file), "--run-dir", str(plan_file.parent / "run"))
    assert result.exit_code == 2
    assert "budget_minutes: 0.1 cannot pay for one pair" in result.output


UNDECIDED = decide(gate_run(1.22, noise=0.03), power_draws=0)


@pytest.mark.parametrize(("choice", "code"), [("fail", 4), ("neutral", 0), ("pass", 0)])
@pytest.mark.parametrize("github", [True, False])
def test_inconclusive_exits_as_it_was_asked_to(
    plan_file: Path, choice: str, code: int, github: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undecided(_plan: Plan, store: RunStore, *_: Any) -> Any:
        write_json(store.root / "verdict.json", UNDECIDED)
        write_bytes(store.root / "plan.yaml", dump_plan(_plan).encode())
        return UNDECIDED

    assert UNDECIDED.status is Status.INCONCLUSIVE
    monkeypatch.setattr(pipeline, "gate", undecided)
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if github else "")
    run = plan_file.parent / "run"
    result = invoke("gate", str(plan_file), "--run-dir", str(run), "--full", "--ci", "--on-inconclusive", choice)
    assert result.exit_code == code
    assert result.stdout.startswith("VERDICT INCONCLUSIVE"), "the verdict stays what it is"
    assert result.stdout.count("\n") == 1, "stdout carries one line"
    assert ("::warning title=enginegate::" in result.stderr) == (github and choice == "neutral")
    assert ("::warning title=INCONCLUSIVE" in result.stderr) == github


def test_only_inconclusive_can_be_let_through() -> None:
    for run, code in ((gate_run(1.5), 0), (gate_run(1.0), 3), (gate_run(token_margin=None), 5)):
        assert gating._exit_code(decide(run, power_draws=0), "pass") == code


# --- resume ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_its_plan_and_may_only_get_more_budget(plan_file: Path) -> None:
    root = plan_file.parent / "run"
    store = RunStore.create(root)
    given = load_plan(plan_file)
    pipeline.prepare(given, store)
    assert resumed_plan(root, None) == resumed_plan(root, given) == check_files(given)
    with pytest.raises(UsageError, match=r"differs .* in seed"):
        resumed_plan(root, load_plan(plan_file, {"seed": 8}))
    more = load_plan(plan_file, {"budget_minutes": 90})
    assert resumed_plan(root, more).budget_minutes == 90
    assert pipeline.stored_plan(root).budget_minutes == 90
    assert store.finished("prepare"), "what was recorded at the start stays as it was"


# --- budget ---------------------------------------------------------------------------------------------------------


def test_a_budget_is_compared_with_the_pace_of_the_pairs_there_are() -> None:
    half_an_hour = plan(budget_minutes=30)
    check_budget(half_an_hour)
    assert pays_for(plan(), 3, 1e9, 12)
    assert pays_for(half_an_hour, 0, 0, 6)
    assert pays_for(half_an_hour, 1, 300, 6)
    assert not pays_for(half_an_hour, 1, 301, 6)
    assert not pays_for(half_an_hour, 6, 1200, 12)


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stages that only write how long each visit took: 60 s, so two minutes a pair."""
    pairs: list[int] = []

    def drive(_plan: Plan, _cells: Any, pair: int, store: RunStore, *_: Any) -> None:
        pairs.append(pair)
        for role in ("baseline", "candidate"):
            record = {"pair": pair, "role": role, "started_at": 0.0, "ended_at": 60.0}
            write_json(store.root / "pairs" / f"{pair:02d}" / role / "visit.json", record)

    monkeypatch.setattr(pipeline, "drive_pair", drive)
    for stage in ("make_workload", "measure_pair"):
        monkeypatch.setattr(pipeline, stage, lambda *_: None)
    return pairs


def test_a_first_look_that_cannot_be_paid_ends_after_one_pair(tmp_path: Path, driven: list[int]) -> None:
    store = RunStore.create(tmp_path / "run")
    with pytest.raises(InvalidRun, match=r"does not pay for the 6 pairs .* 1 took 2\.0 minutes, so these take 12\.0"):
        pipeline.drive_pairs(plan(budget_minutes=11), (), 6, store, SimpleNamespace(), lambda *_: None)  # type: ignore[arg-type]
    assert driven == [1]
    more = plan(budget_minutes=13)
    assert pipeline.drive_pairs(more, (), 6, store, SimpleNamespace(), lambda *_: None) == 6  # type: ignore[arg-type]


def test_a_second_half_that_slows_down_is_judged_with_the_pairs_it_got(tmp_path: Path, driven: list[int]) -> None:
    store = RunStore.create(tmp_path / "run")
    got = pipeline.drive_pairs(plan(budget_minutes=17), (), 12, store, SimpleNamespace(), lambda *_: None)  # type: ignore[arg-type]
    assert got == 8
    assert driven == list(range(1, 9))


def test_an_undecided_run_hears_that_its_budget_is_too_small() -> None:
    cost = Cost(wall_s=600, requests=1, output_tokens=1)
    verdict = decide(gate_run(1.24, noise=0.03, cost=cost, budget_minutes=11.0), power_draws=0)
    assert verdict.status is Status.INCONCLUSIVE
    assert "budget_minutes: 11 does not pay for that" in verdict.next_step
    assert "budget" not in decide(gate_run(1.24, noise=0.03, cost=cost), power_draws=0).next_step


@pytest.mark.parametrize(
    ("engines", "used", "left"), [("together", 3 * 4.0, 3 * 6.0), ("one-at-a-time", 1 * 2.0 + 2 * 2.0, 1.5 * 6.0)]
)
def test_gpu_minutes_used_and_left(tmp_path: Path, driven: list[int], engines: str, used: float, left: float) -> None:
    from harness.judge import _cost

    endpoints = {"baseline": {"url": "http://a", "gpus": 1}, "candidate": {"url": "http://b", "gpus": 2}}
    counted = plan(endpoints=endpoints, engines=engines, budget_minutes=10, pairs=[2])
    store = RunStore.create(tmp_path / "run")
    pipeline.drive_pairs(counted, (), 2, store, SimpleNamespace(), lambda *_: None)  # type: ignore[arg-type]
    cost = _cost(counted, store.root, ())
    assert cost.wall_s == 240
    assert cost.gpu_minutes == pytest.approx(used)
    assert cost.gpu_minutes_left == pytest.approx(left)
    assert _cost(plan(pairs=[2]), store.root, ()).gpu_minutes is None

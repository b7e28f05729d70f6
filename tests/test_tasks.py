"""lm-eval's requests in the timed stream, and its grades on the answers that came back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells import make_cells
from harness.errors import UsageError
from harness.plan import Plan, make_plan
from harness.task_power import equal_engine_passes, half_width_pt, items_needed, task_forecast
from harness.task_stream import capacity, check_tasks, deal, planned_items, specs_of, write_tasks
from oracles.task_answers import read_answer, split_thinking
from oracles.task_grades import grade
from oracles.task_loading import TaskSpec, _declared, _declared_problem, no_options
from oracles.task_model import TaskError, sampling
from oracles.task_pack import PUBLIC_SEED, families, items
from oracles.tasks import TaskItem, collect, read_items, share_out

Answer = Callable[[TaskItem], str]


def plan_with(**changes: object) -> Plan:
    data = {
        "model": "m",
        "tokenizer": "/nowhere",
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "profiles": [{"name": "chat-steady", "concurrency": [1, 4], "request_count": 12}],
        "tier": "smoke",
        "tasks": [{"name": "offline-pack", "limit": 70}],
        "pairs": [5, 8],
    }
    return make_plan(data | changes, source="test", folder=Path("/"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    plan = plan_with()
    write_tasks(plan, make_cells(plan), root, lambda *_: None)
    return root


def came(item: TaskItem, text: str, **changes: Any) -> dict[str, Any]:
    row = {
        "pair": 1, "line": item.doc, "cell": "c", "item": item.item, "status": "ok", "finish_reason": "stop",
        "output_tokens": 3, "usage_completion_tokens": 3, "retokenised_tokens": 3, "text": text, "reasoning": "",
    }  # fmt: skip
    return row | changes


def graded(root: Path, answer: Answer, **changes: Any) -> list[dict[str, Any]]:
    found = read_items(root / "tasks/items.parquet")
    rows = [came(item, answer(item), **changes) for item in found]
    return grade(specs_of(plan_with()), found, rows, chat=True, pack=root / "tasks/pack")


# --- the pack -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", list(families()))
def test_the_public_split_is_the_same_everywhere_and_a_sealed_one_is_another(task: str) -> None:
    public, again = (items(task, "public", PUBLIC_SEED, 60) for _ in range(2))
    sealed = items(task, "sealed", 12345, 60)
    assert public == again
    assert len({row["question"] for row in public}) == 60
    assert len({row["question"] for row in public} & {row["question"] for row in sealed}) < 15
    assert {row["cluster"] for row in public}.isdisjoint(row["cluster"] for row in sealed)


def test_right_answers_to_the_pack_are_graded_right_and_wrong_ones_wrong(run: Path) -> None:
    rows = graded(run, lambda item: item.target)
    assert len(rows) == 70 and {row["score"] for row in rows} == {1.0}, [r for r in rows if r["score"] < 1][:2]
    assert {row["score"] for row in graded(run, lambda item: "no idea")} == {0.0}


def test_answers_in_words_are_understood(run: Path) -> None:
    worded = {
        "pack_arithmetic": "That makes {} of them.", "pack_facts": "It is {}.", "pack_key_value": "It is {}.",
        "pack_json": "Here it is: {}\n", "pack_copy_edit": '"{}"', "pack_code_output": "{}", "pack_needles": "Code {}!",
    }  # fmt: skip
    rows = graded(run, lambda item: worded[item.task].replace("{}", item.target, 1))
    assert [row["answer"] for row in rows if row["score"] < 1] == []


# --- in the stream --------------------------------------------------------------------------------------------------


def test_items_are_dealt_once_evenly_and_with_every_task(run: Path) -> None:
    plan = plan_with()
    cells, found = make_cells(plan), read_items(run / "tasks/items.parquet")
    pairs = [deal(plan, cells, pair, found) for pair in range(1, 9)]
    names = [item.item for dealt in pairs for cell in dealt.values() for item in cell]
    assert sorted(names) == sorted(item.item for item in found), "each item once"
    sizes = [sum(map(len, dealt.values())) for dealt in pairs]
    assert sizes[:5] == [14] * 5 and sizes[5:] == [0] * 3, "the first look has them all"
    for dealt in pairs[:5]:
        assert {item.task for cell in dealt.values() for item in cell} == set(families())
        assert all(len(dealt[cell.name]) <= capacity(plan, cell) for cell in cells)


def test_the_share_bounds_what_a_cell_takes(run: Path) -> None:
    plan = plan_with(task_share=0.25)
    cells, found = make_cells(plan), read_items(run / "tasks/items.parquet")
    assert [capacity(plan, cell) for cell in cells] == [4, 4]
    sizes = [sum(map(len, deal(plan, cells, pair, found).values())) for pair in range(1, 9)]
    assert sizes == [8] * 8, "the second look has more items"
    profile = [{"name": "chat-steady", "concurrency": [4], "task_share": 0}]
    with pytest.raises(UsageError, match="task_share"):
        none = plan_with(profiles=profile)
        check_tasks(none, make_cells(none))


def test_a_quick_run_asks_public_items_and_a_full_one_half_sealed(run: Path, tmp_path: Path) -> None:
    splits = [item.split for item in read_items(run / "tasks/items.parquet")]
    assert splits.count("sealed") == splits.count("public") == 35
    plan = plan_with(pairs=[2])
    write_tasks(plan, make_cells(plan), tmp_path, lambda *_: None)
    assert {item.split for item in read_items(tmp_path / "tasks/items.parquet")} == {"public"}


def test_the_plans_own_secret_draws_the_sealed_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASK_SECRET", "not for the engine's author")
    plan = plan_with(task_secret="env:TASK_SECRET", tasks=[{"name": "pack_key_value", "limit": 8}])
    write_tasks(plan, make_cells(plan), tmp_path, lambda *_: None)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"engine's author" not in everything
    about = json.loads((tmp_path / "tasks/tasks.json").read_text())
    assert about["sealed"]["source"].startswith("secret ") and about["tasks"][0]["metric"] == "exact_match"


def test_a_dry_run_says_what_the_items_can_decide() -> None:
    few, many = (equal_engine_passes(n, -1.0, 0.02, draws=60) for n in (200, 4000))
    assert few < 0.5 and many > 0.9
    assert items_needed(-1.0, 0.05) == 4282 and half_width_pt(1319, 0.05) == pytest.approx(1.01, abs=0.01)
    plan = plan_with()
    planned = planned_items(plan, make_cells(plan))
    assert sum(planned.values()) == 70 and set(planned) == set(families())
    lines = task_forecast(planned, 14, plan.pairs, -1.0)
    assert "after 5 pairs: 70 items" in "\n".join(lines) and "identical engine passes" in lines[-2]


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 200))
def test_a_limit_is_shared_out_as_evenly_as_the_tasks_allow(sizes: dict, limit: int) -> None:
    counts = share_out(sizes, limit)
    assert sum(counts.values()) == min(limit, sum(sizes.values()))
    for name, count in counts.items():
        assert count == sizes[name] or count >= max(counts.values()) - 1


# --- what came ------------------------------------------------------------------------------------------------------


def test_failures_are_wrong_answers_each_with_its_name(run: Path) -> None:
    for status, fate in (("http_error", "refused"), ("timeout", "timeout"), ("truncated", "error"), ("empty", "empty")):
        rows = graded(run, lambda item: item.target, status=status)
        assert {(row["fate"], row["score"]) for row in rows} == {(fate, 0.0)}
    rows = graded(run, lambda item: item.target, usage_completion_tokens=500)
    assert {(row["fate"], row["score"]) for row in rows} == {("over-limit", 0.0)}


def test_what_runs_past_a_stop_string_is_cut_and_counted(run: Path) -> None:
    item = next(one for one in read_items(run / "tasks/items.parquet") if one.task == "pack_arithmetic")
    answer = read_answer(item, came(item, f"It is {item.target}.\nNo, 99."))
    assert answer.answer == f"It is {item.target}." and answer.stop_kept
    five = replace(item, stop=("a", "b", "c", "d", "x"))
    answer = read_answer(five, came(five, "42x7"))
    assert five.sent_stops == ("a", "b", "c", "d") and answer.answer == "42" and not answer.stop_kept


def test_thinking_is_kept_apart_and_an_unfinished_thought_is_no_answer() -> None:
    assert split_thinking("<think>two and two</think>\n4", "") == ("4", "two and two")
    assert split_thinking("two and two</think>4", "") == ("4", "two and two")
    assert split_thinking("4", "two and two") == ("4", "two and two")
    assert split_thinking("<think>two and", "") == (None, "two and")


def test_the_prompt_that_is_graded_is_the_prompt_that_was_sent(run: Path) -> None:
    found = [replace(item, prompt_sha256="0" * 64) for item in read_items(run / "tasks/items.parquet")]
    rows = [came(item, item.target) for item in found]
    with pytest.raises(TaskError, match="another prompt than was sent"):
        grade(specs_of(plan_with()), found, rows, chat=True, pack=run / "tasks/pack")


def test_repeats_are_graded_one_by_one(run: Path) -> None:
    spec = TaskSpec("pack_arithmetic", repeats=2)
    found, _ = collect(spec, chat=True, seed=1, pack=run / "tasks/pack")
    rows = [came(found[0], found[0].target), came(found[0], "wrong", pair=2), came(found[1], found[1].target)]
    scores = [
        (r["item"], r["repeat"], r["score"]) for r in grade([spec], found, rows, chat=True, pack=run / "tasks/pack")
    ]
    first, second = found[0].item, found[1].item
    assert sorted(scores) == sorted([(first, 0, 1.0), (first, 1, 0.0), (second, 0, 1.0)])


# --- lm-eval tasks of one's own, and those that cannot be asked -----------------------------------------------------


def own_task(folder: Path, **changes: object) -> str:
    import yaml

    rows = [{"q": f"{n} plus 1?", "a": f"#### {n + 1}", "passage": n // 3} for n in range(12)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "own.jsonl")}},
        "test_split": "test", "fewshot_split": "test", "num_fewshot": 2, "output_type": "generate_until",
        "doc_to_text": "Question: {{q}}\nAnswer:", "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["Question:"], "do_sample": False, "temperature": 0.0},
        "filter_list": [
            {"name": name, "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}
            for name, pattern in (("strict", "#### (\\d+)"), ("flexible", "(\\d+)"))
        ],
        "metric_list": [{"metric": "exact_match", "regexes_to_ignore": ["#### "], "higher_is_better": True}],
    } | changes  # fmt: skip
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    return str(folder / "own.yaml")


def test_a_task_keeps_its_few_shot_examples_limits_filters_and_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    spec = TaskSpec(own_task(tmp_path), limit=6, metric="exact_match,flexible", cluster="passage", max_gen_toks=9)
    found, (about,) = collect(spec, chat=True, seed=3)
    assert (about.num_fewshot, about.documents, about.items, about.filter) == (2, 12, 6, "flexible")
    roles = [message["role"] for message in json.loads(found[0].messages)]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert found[0].stop == ("Question:",) and found[0].max_tokens == 9
    assert [item.doc for item in found] == sorted(item.doc for item in found) != list(range(6)), "drawn, not the first"
    rows = [came(item, f"I say {item.target.removeprefix('#### ')}") for item in found[:3]]
    scores = grade([spec], found, rows, chat=True, pack=None)
    assert [row["score"] for row in scores] == [1.0] * 3, "few-shot prompts come out the same when only some were asked"
    assert json.loads(scores[0]["metrics"]) == {"exact_match,strict": 0.0, "exact_match,flexible": 1.0}
    assert grade([replace(spec, metric=None)], found, rows, chat=True, pack=None)[0]["fate"] == "unparsed"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"output_type": "multiple_choice", "doc_to_choice": ["a", "b"], "doc_to_target": 0}, "log-probabilities"),
        ({"unsafe_code": True}, "runs code that the model wrote"),
        ({"repeats": 8}, "single-sample variant"),
        ({"gen_prefix": "The answer is"}, "api: completions"),
        ({"generation_kwargs": {"until": [], "repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"metric_list": [{"metric": "bleu", "higher_is_better": True}]}, "score for each item"),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, sentence: str
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TaskError, match=sentence):
        collect(TaskSpec(own_task(tmp_path, **changes)), chat=True, seed=1)


def test_option_tasks_name_their_generative_sibling() -> None:
    assert "mmlu_generative" in no_options("mmlu_astronomy")
    assert "Choose a task that generates" in no_options("hellaswag")


def test_sampling_keeps_what_a_task_asks_for() -> None:
    assert sampling("t", {"until": "X"}).stop == ("X",) and sampling("t", {}).max_tokens == 256
    hot = sampling("t", {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 5})
    assert (hot.temperature, hot.top_p, hot.max_tokens) == (0.7, 0.9, 5)
    assert sampling("t", {"temperature": 0.7, "do_sample": False, "top_k": 5}).temperature == 0.0


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"suite": {"task": ["part"]}, "part": {"output_type": "multiple_choice"}}, "part compares log-probabilities"),
        ({"suite": {"task": [{"task": "part"}]}, "part": {"unsafe_code": True}}, "part runs code"),
        ({"suite": None, "part": {"output_type": "loglikelihood"}}, "part compares log-probabilities"),
    ],
)
def test_a_group_is_refused_for_its_parts_before_data_is_fetched(names: dict, sentence: str) -> None:
    class Entry:
        def __init__(self, cfg: dict | None) -> None:
            self.cfg, self.tags = cfg, {"part"} if cfg is None else set()

    manager = SimpleNamespace(task_index={name: Entry(cfg) for name, cfg in names.items()})
    problems = [_declared_problem(*one) for one in _declared(manager, "suite")]
    assert problems and sentence in (problems[0] or "")

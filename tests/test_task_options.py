"""Multiple choice over HTTP: what plain lm-eval scores silently wrong is refused here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tokenizers import Tokenizer

from harness import option_tasks
from harness.errors import UsageError
from harness.option_grading import grade_option_tasks, option_scores
from harness.option_tasks import ITEMS, OPTIONS, refuse_without_rows, write_option_tasks
from harness.plan import Plan, make_plan
from harness.probes import Capability, Support
from harness.progress import silent
from harness.run_store import RunStore, read_json, write_json
from oracles.logprob_rows import prompt_rows
from oracles.reference import OracleError
from oracles.task_loading import TaskSpec
from oracles.task_model import TaskError
from oracles.task_options import ask_options, collect_options, grade_options, read_options
from oracles.tasks import read_items
from tests.tiny_model import tiny_folder, tiny_reference
from tests.tiny_server import Server, legacy

PROMPT = [11, 12, 13]  # context
OPTION = [21, 22]  # its tokens have log-probabilities -2 and -3
LOGPROBS = [None, -1.0, -1.5, -2.0, -3.0]
EXTRA = (31, -0.1)  # the one generated token


def answer(ids: list[int], logprobs: list[float | None]) -> dict[str, Any]:
    """A legacy completions answer with one row a token."""
    tokens = [f"token_id:{i}" for i in ids]
    tops = [None if p is None else {t: p} for t, p in zip(tokens, logprobs, strict=True)]
    block = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
    return {"choices": [{"index": 0, "text": "", "logprobs": block, "finish_reason": "length"}]}


def lm_evals_own(reply: dict[str, Any]) -> tuple[float, bool]:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    (score,) = LocalCompletionsAPI.parse_logprobs([reply], ctxlens=[len(PROMPT)])
    return score


def option_sum(reply: dict[str, Any]) -> float:
    rows = prompt_rows(reply, PROMPT + OPTION)
    return sum(row.logprob for row in rows[len(PROMPT) - 1 :])


def test_a_whole_echo_is_read_by_both() -> None:
    whole = answer([*PROMPT, *OPTION, EXTRA[0]], [*LOGPROBS, EXTRA[1]])
    assert lm_evals_own(whole) == (-5.0, True) and option_sum(whole) == -5.0


def test_a_server_that_ignores_echo_is_refused() -> None:
    ignored = answer([EXTRA[0]], [EXTRA[1]])
    assert lm_evals_own(ignored) == (0, True), "every option is certain and greedy: the first one wins"
    with pytest.raises(OracleError):
        option_sum(ignored)


def test_an_echo_without_the_extra_token_keeps_the_options_last_token() -> None:
    short = answer([*PROMPT, *OPTION], LOGPROBS)
    assert lm_evals_own(short) == (-2.0, True), "the last token of every option is dropped"
    assert option_sum(short) == -5.0


def test_an_echo_that_lost_a_token_is_refused() -> None:
    with pytest.raises(OracleError):
        option_sum(answer([*PROMPT, OPTION[0]], LOGPROBS[:-1]))


# --- a whole task through an endpoint -------------------------------------------------------------------------------

WORDS = ["reference", "margin", "token", "probability"]


def words_task(folder: Path) -> TaskSpec:
    """Twelve questions with four options of different lengths each."""
    rows = [
        {
            "q": f"The {n}th word of what the reference scores is",
            "options": [w * (1 + n % 3) for w in WORDS],
            "a": n % 4,
        }
        for n in range(12)
    ]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "task": "words", "output_type": "multiple_choice", "test_split": "test", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "words.jsonl")}}, "doc_to_text": "{{q}}",
        "doc_to_choice": "{{options}}", "doc_to_target": "{{a}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }  # fmt: skip
    (folder / "words.yaml").write_text(yaml.safe_dump(config))
    return TaskSpec(str(folder / "words.yaml"), options=True)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskSpec:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return words_task(tmp_path)


def encode(text: str) -> list[int]:
    return list(Tokenizer.from_file(str(tiny_folder() / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


def likeliest(question: str, options: list[str]) -> int:
    """What the tiny model itself would choose, computed the plain way."""
    sums = []
    for option in options:
        context, ids = encode(question), encode(f"{question} {option}")
        with torch.inference_mode():
            table = tiny_reference().model(torch.tensor([ids])).logits[0].log_softmax(-1)
        sums.append(sum(float(table[i - 1][ids[i]]) for i in range(len(context), len(ids))))
    return max(range(len(options)), key=sums.__getitem__)


def echoing(extra: bool) -> Server:
    """A server with `echo` and no `prompt_logprobs`; without `extra` the one generated token is not in the rows."""

    class Echo(Server):
        def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            if "prompt_logprobs" in body:
                return {"choices": [{"text": "x"}]}
            ids = list(body["prompt"])
            table = self.logprobs(ids, "prefill")
            sent = [*ids, int(table[-1].argmax())] if extra else ids
            values = [None, *(float(table[i - 1][sent[i]]) for i in range(1, len(sent)))]
            tops = [None, *({f"token_id:{int(row.argmax())}": float(row.max())} for row in table[: len(sent) - 1])]
            return legacy([f"token_id:{i}" for i in sent], values, tops)

    return Echo()


def graded(spec: TaskSpec, server: Any, folder: Path) -> list[dict[str, Any]]:
    items, options, _ = collect_options(spec, encode, seed=1)
    said = pq.read_table(ask_options(server, "m", options, folder / "rows.parquet")).to_pylist()
    return grade_options([spec], items, said, encode)


@pytest.mark.parametrize("server", [Server(), echoing(extra=True), echoing(extra=False)], ids=["rows", "echo", "short"])
def test_every_true_route_gives_the_models_own_choice(task: TaskSpec, tmp_path: Path, server: Server) -> None:
    rows = graded(task, server, tmp_path)
    assert [row["fate"] for row in rows] == ["graded"] * 12
    for n, row in enumerate(rows):
        options = [word * (1 + n % 3) for word in WORDS]
        choice = likeliest(f"The {n}th word of what the reference scores is", options)
        assert row["score"] == float(choice == n % 4) and row["answer"].strip() == options[choice]
    assert 0 < sum(row["score"] for row in rows) < 12, "a test that cannot fail"


def test_a_server_that_ignores_echo_scores_nothing(task: TaskSpec, tmp_path: Path) -> None:
    def ignores(_path: str, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"choices": [{"logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-0.1], "top_logprobs": [None]}}]}

    rows = graded(task, ignores, tmp_path)
    assert {(row["fate"], row["score"]) for row in rows} == {("refused", 0.0)}
    assert "1 rows of log-probabilities came for a prompt" in rows[0]["text"]


class Killed(Exception):  # noqa: N818 - what happened, not a fault
    pass


def test_an_interrupted_asking_goes_on_with_what_is_left(
    task: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oracles.task_options.IN_FLIGHT", 1)
    _, options, _ = collect_options(task, encode, seed=1)
    whole = pq.read_table(ask_options(Server(), "m", options, tmp_path / "whole.parquet"))
    server, path = Server(), tmp_path / "run" / "rows.parquet"

    def killed(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(server.asked) == 9:
            raise Killed
        return server(path, body)

    with pytest.raises(Killed):
        ask_options(killed, "m", options, path)
    with path.with_name("rows.parquet.partial").open("a") as torn:
        torn.write('{"item": "task/wor')
    assert pq.read_table(ask_options(server, "m", options, path)).equals(whole)
    assert len(server.asked) == len(options) == len({tuple(body["prompt"]) for body in server.asked})
    assert [one.name for one in path.parent.iterdir()] == ["rows.parquet"]


def test_what_is_graded_is_what_was_asked(task: TaskSpec, tmp_path: Path) -> None:
    items, options, (about,) = collect_options(replace(task, limit=5), encode, seed=1)
    assert len(items) == 5 and len(options) == 20 and (about.metric, about.items) == ("acc", 5)
    assert all(encode(option.text) for option in options) and [o.option for o in options[:4]] == [0, 1, 2, 3]
    with pytest.raises(TaskError, match="asks other options"):
        grade_options([task], [replace(items[0], prompt_sha256="another"), *items[1:]], [], encode)
    (spaced, *_), _, _ = collect_options(replace(task, metric="acc_norm"), encode, seed=1)
    assert spaced.task == "words"


# --- in a run -------------------------------------------------------------------------------------------------------


def plan_of(task: TaskSpec, **changes: object) -> Plan:
    data = {
        "model": "m", "reference": {"path": str(tiny_folder())}, "profiles": ["smoke"],
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "tasks": [{"name": task.name, "options": True}],
    } | changes  # fmt: skip
    return make_plan(data, source="test", folder=Path("/"))


def written(plan: Plan, root: Path) -> Path:
    root.mkdir()
    (root / "tokenizer.json").write_bytes((tiny_folder() / "tokenizer.json").read_bytes())
    write_option_tasks(plan, root, silent)
    options = read_options(root / OPTIONS)
    worse = Server(lambda logits, _phase: -logits)
    for arm, server in (("baseline", Server()), ("candidate", worse)):
        ask_options(server, "m", options, root / "options" / arm / "rows.parquet")
    return root


def test_options_are_scored_where_the_reference_proved_the_rows(task: TaskSpec, tmp_path: Path) -> None:
    plan = plan_of(task)
    root = written(plan, tmp_path / "run")
    grade_option_tasks(plan, root, silent)
    result = read_json(root / "oracles/candidate/options.json")
    assert result["status"] == "unscored" and "baseline's prompt log-probabilities were not proved" in result["reason"]
    assert option_scores(root) is None

    proved = {"metrics": {"kld@prefill": {}}, "notes": ()}
    for arm in ("baseline", "candidate"):
        write_json(root / "oracles" / arm / "logits.json", proved)
    grade_option_tasks(plan, root, silent)
    scores = option_scores(root)
    assert scores is not None and len(scores.item) == len(read_items(root / ITEMS)) == 12
    assert (scores.baseline != scores.candidate).any()
    result = read_json(root / "oracles/candidate/options.json")
    assert result["oracle"] == "options" and result["metrics"]["difference"]["n"] == 12 and not result["findings"]


def test_a_baseline_that_stops_answering_helps_nobody(task: TaskSpec, tmp_path: Path) -> None:
    plan = plan_of(task)
    root = written(plan, tmp_path / "run")
    for arm in ("baseline", "candidate"):
        write_json(root / "oracles" / arm / "logits.json", {"metrics": {"kld@prefill": {}}, "notes": ()})

    def gone(_path: str, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise OracleError("connection refused")

    ask_options(gone, "m", read_options(root / OPTIONS), root / "options/baseline/rows.parquet")
    grade_option_tasks(plan, root, silent)
    result = read_json(root / "oracles/candidate/options.json")
    assert result["status"] == "unscored" and option_scores(root) is None
    assert "The baseline gave no log-probabilities for 48 of 48 options" in result["reason"]
    assert "connection refused" in result["reason"]


def test_an_endpoint_without_true_rows_is_refused_before_anything_is_timed(
    task: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacks(_target: object) -> Capability:
        return Capability(name="echo", support=Support.IGNORED, detail="the prompt is not in the text")

    monkeypatch.setattr(option_tasks, "logprobs", SimpleNamespace(prompt_logprobs=lacks, echo=lacks))
    store = RunStore.create(tmp_path / "run")
    with pytest.raises(UsageError, match=r"candidate does not \(echo ignored: the prompt is not in the text"):
        refuse_without_rows(plan_of(task), "candidate", store, silent)
    refuse_without_rows(plan_of(task, tasks=[]), "candidate", store, silent)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reference": None, "tokenizer": "/t"}, "need a reference"),
        ({"logit_documents": 0}, "need a reference, and logit_documents"),
        ({"tasks": [{"name": "hellaswag", "options": True, "repeats": 2}]}, "repeats is of generated answers"),
    ],
)
def test_a_plan_that_could_not_prove_its_options_is_refused(task: TaskSpec, changes: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan_of(task, **changes)


def test_a_task_that_generates_is_not_taken_for_one_that_compares() -> None:
    with pytest.raises(TaskError, match="take `options` away"):
        collect_options(TaskSpec("offline-pack", options=True), encode, seed=1)

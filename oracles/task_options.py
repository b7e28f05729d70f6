"""Option-scoring tasks (hellaswag, mmlu, arc): how likely an engine finds each given option, read off the prompt.

No stream returns the log-probabilities of its prompt, so these items are asked apart from the timed one: a prompt of
token ids for every option, its rows by `prompt_logprobs` or `echo`. lm-eval builds and splits the prompts and grades
the sums; `oracles.logprob_rows` refuses every answer that plain lm-eval would score wrong without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oracles.atomic import write_table
from oracles.logits import Ask, ask_prompt
from oracles.reference import OracleError
from oracles.scoring import Progress
from oracles.task_answers import TaskAnswer
from oracles.task_grades import graded_row
from oracles.task_loading import TaskSpec, load
from oracles.task_model import TaskError, run_tasks
from oracles.tasks import TaskAbout, TaskItem, about_task, by_document, choose, item_name, score_key

IN_FLIGHT = 4
OPTIONS = pa.schema(
    [
        ("item", pa.string()),
        ("option", pa.int32()),
        ("ids", pa.list_(pa.int32())),
        ("first", pa.int32()),
        ("text", pa.string()),
    ]
)
ROWS = pa.schema(
    [
        ("item", pa.string()),
        ("option", pa.int32()),
        ("logprobs", pa.list_(pa.float32())),
        ("greedy", pa.bool_()),
        ("problem", pa.string()),
    ]
)
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Option:
    """One prompt: `ids` from `first` on are the option's own; `text` is the option's."""

    item: str
    option: int
    ids: Sequence[int]
    first: int
    text: str


@dataclass(frozen=True)
class _Asked:
    """One request of lm-eval's; `doc` counts within the chosen documents."""

    task: str
    doc: int
    option: int
    context: str
    text: str
    ids: Sequence[int]
    first: int


def collect_options(
    spec: TaskSpec, encode: Encode, *, seed: int
) -> tuple[list[TaskItem], list[Option], list[TaskAbout]]:
    """All items of one entry of the plan's `tasks` that compares options, every option as it will be asked.

    Raises TaskError when the task is unknown, generates its answer, or its data cannot be had.
    """
    tasks = load(spec, None, chat=False)
    chosen = choose(tasks, spec.limit, seed)
    asked: dict[tuple[str, int], list[_Asked]] = defaultdict(list)

    def note(one: _Asked) -> tuple[float, bool]:
        asked[one.task, one.doc].append(one)
        return 0.0, False

    samples = run_tasks(tasks, chosen, chat=False, model=_model(encode, note))
    items: list[TaskItem] = []
    options: list[Option] = []
    about = []
    for name, ids in chosen.items():
        metric, key = score_key(name, samples[name], tasks[name].higher_is_better(), spec.metric)
        first = {sample["doc_id"]: sample for sample in samples[name] if sample["filter"] == key}
        for place, doc in enumerate(ids):
            items.append(_item(spec, name, asked[name, place], first[doc]))
            options += [Option(items[-1].item, o.option, o.ids, o.first, o.text) for o in asked[name, place]]
        about.append(about_task(spec, tasks[name], name, len(ids), metric, key))
    return items, options, about


def ask_options(ask: Ask, model: str, options: Sequence[Option], path: Path, progress: Progress | None = None) -> Path:
    """Ask an endpoint about every option and write what it said; what it refused is a row with its problem.

    Answers are kept beside `path` as they come, so one that was killed goes on and asks nothing again that was told.
    """

    def one(option: Option) -> dict[str, Any]:
        told: dict[str, Any] = {"item": option.item, "option": option.option}
        try:
            rows = ask_prompt(ask, model, option.ids, 1)[option.first - 1 :]
        except OracleError as error:
            return told | {"logprobs": [], "greedy": False, "problem": str(error)[:500]}
        best = [max(row.others.values(), default=row.logprob) for row in rows]
        greedy = all(row.logprob >= other for row, other in zip(rows, best, strict=True))
        return told | {"logprobs": [row.logprob for row in rows], "greedy": greedy, "problem": ""}

    partial = path.with_name(f"{path.name}.partial")
    done = _kept(partial)
    told = {(row["item"], row["option"]) for row in done}
    left = [option for option in options if (option.item, option.option) not in told]
    with partial.open("a", encoding="utf-8") as kept, ThreadPoolExecutor(IN_FLIGHT) as pool:
        for row in pool.map(one, left):
            kept.write(json.dumps(row) + "\n")
            kept.flush()
            done.append(row)
            if progress:
                progress(len(done), len(options))
    write_table(path, pa.Table.from_pylist(done, schema=ROWS))
    partial.unlink()
    return path


def _kept(partial: Path) -> list[dict[str, Any]]:
    """What an interrupted asking has kept; a line without its end is dropped."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.touch()
    data = partial.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    os.truncate(partial, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def grade_options(
    specs: Sequence[TaskSpec], items: Sequence[TaskItem], said: Sequence[Mapping[str, Any]], encode: Encode
) -> list[dict[str, Any]]:
    """Grade what one endpoint said (rows of ROWS): one row of `oracles.task_grades.GRADES` an item.

    An item with an option that the endpoint gave no number for is `refused` and wrong. Raises TaskError when lm-eval
    now asks something else than was asked.
    """
    by_item: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in said:
        by_item[row["item"]][row["option"]] = row
    graded: list[dict[str, Any]] = []
    for spec in specs:
        tasks = load(spec, None, chat=False)
        mine = [item for item in items if item.task in tasks]
        graded += _grade_entry(spec, tasks, mine, by_item, encode)
    return [row | {"line": line} for line, row in enumerate(graded)]


def write_options(options: Sequence[Option], path: Path) -> None:
    """Write the options' table."""
    write_table(path, pa.Table.from_pylist([asdict(option) for option in options], schema=OPTIONS))


def read_options(path: Path) -> list[Option]:
    """Read the options' table."""
    return [Option(**row) for row in pq.read_table(path, schema=OPTIONS).to_pylist()]


def _grade_entry(
    spec: TaskSpec,
    tasks: Mapping[str, Any],
    items: Sequence[TaskItem],
    said: Mapping[str, Mapping[int, Mapping[str, Any]]],
    encode: Encode,
) -> list[dict[str, Any]]:
    chosen, at = by_document(items)
    asked: dict[str, list[_Asked]] = defaultdict(list)

    def replay(one: _Asked) -> tuple[float, bool]:
        item = at[one.task, chosen[one.task][one.doc]]
        asked[item.item].append(one)
        row = said.get(item.item, {}).get(one.option)
        return (0.0, False) if row is None or row["problem"] else (float(np.sum(row["logprobs"])), row["greedy"])

    rows = []
    for task, samples in run_tasks(tasks, chosen, chat=False, model=_model(encode, replay)).items():
        metric, key = score_key(task, samples, tasks[task].higher_is_better(), spec.metric)
        for sample in (one for one in samples if one["filter"] == key):
            item = at[task, sample["doc_id"]]
            if _digest(asked[item.item]) != item.prompt_sha256:
                raise TaskError(
                    f"{item.item}: lm-eval now asks other options than were asked. Was it updated, or its data? Grade "
                    "with the versions in tasks/tasks.json."
                )
            rows.append(_row(item, asked[item.item], said.get(item.item, {}), sample, metric))
    return rows


def _row(
    item: TaskItem,
    asked: Sequence[_Asked],
    said: Mapping[int, Mapping[str, Any]],
    sample: Mapping[str, Any],
    metric: str,
) -> dict[str, Any]:
    problem = next((row["problem"] for o in asked if (row := said.get(o.option)) and row["problem"]), "")
    whole = not problem and all(o.option in said for o in asked)
    sums = {o.text: float(np.sum(said[o.option]["logprobs"])) for o in asked} if whole else {}
    best = max(sums, key=sums.__getitem__, default="")
    text = "\n".join(f"{value:.3f} {option}" for option, value in sums.items()) if whole else problem
    request = {"pair": 0, "line": 0, "cell": "", "status": "ok" if whole else "error", "finish_reason": None}
    request |= {"output_tokens": None, "text": text}
    answer = TaskAnswer(best, "", "graded" if whole else "refused", at_limit=False, stop_kept=False)
    return graded_row(item, request, answer, 0, {**sample, "filtered_resps": [best]}, metric, [sample])


def _item(spec: TaskSpec, name: str, asked: Sequence[_Asked], sample: Mapping[str, Any]) -> TaskItem:
    item = item_name(name, sample["doc_id"])
    cluster = sample["doc"].get(spec.cluster or "cluster")
    return TaskItem(
        item=item,
        task=name,
        doc=sample["doc_id"],
        split="public",
        cluster=item if cluster is None else f"{name}/{cluster}",
        repeats=1,
        keep_thinking=False,
        max_tokens=1,
        temperature=0.0,
        top_p=None,
        stop=(),
        target=str(sample["target"])[:1000],
        messages=json.dumps([{"role": "user", "content": asked[0].context}]),
        prompt_sha256=_digest(asked),
    )


def _digest(asked: Sequence[_Asked]) -> str:
    told = [(o.option, list(o.ids), o.first) for o in asked]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _model(encode: Encode, answer: Callable[[_Asked], tuple[float, bool]]) -> Any:
    """An lm-eval model whose log-probabilities are recorded ones; lm-eval itself splits prompt from option."""
    from lm_eval.api.model import TemplateLM

    class Replay(TemplateLM):  # type: ignore[misc]
        tokenizer_name = "the-plan's-own"

        @property
        def eot_token_id(self) -> int:
            raise TaskError("This task asks for whole texts, with nothing before them to start a prompt with.")

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return encode(string)

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            self.requests = requests
            found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
            return found

        def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            return [
                answer(_Asked(r.task_name, r.doc_id, r.idx, texts[0], texts[1], [*context, *option], len(context)))
                for r, (texts, context, option) in zip(self.requests, requests, strict=True)
            ]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            raise TaskError(f"{requests[0].task_name} asks for the log-probability of whole texts.")

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            raise TaskError(f"{requests[0].task_name} generates its answer.")

    return Replay()

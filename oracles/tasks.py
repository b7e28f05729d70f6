"""The task oracle, asking half: lm-eval's own requests as rows that lie unmarked in the timed stream.

lm-eval builds every prompt (its version, few-shot examples, stop strings and limits), AIPerf sends them among the load,
and `oracles.task_grades` hands the timed answers back to lm-eval for filtering and grading. Nothing is asked twice.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oracles.atomic import write_table
from oracles.task_loading import TaskSpec, load
from oracles.task_model import MOST_STOPS, Question, TaskError, replay_model, run_tasks, sampling

ITEMS = pa.schema(
    [
        ("item", pa.string()),
        ("task", pa.string()),
        ("doc", pa.int32()),
        ("split", pa.string()),
        ("cluster", pa.string()),
        ("repeats", pa.int32()),
        ("keep_thinking", pa.bool_()),
        ("max_tokens", pa.int32()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("stop", pa.list_(pa.string())),
        ("target", pa.string()),
        ("messages", pa.string()),
        ("prompt_sha256", pa.string()),
    ]
)


@dataclass(frozen=True)
class TaskItem:
    """One document of one task, as it is asked. `stop` is all that the task wants; the API takes `sent_stops` of it."""

    item: str
    task: str
    doc: int
    split: str
    cluster: str
    repeats: int
    keep_thinking: bool
    max_tokens: int
    temperature: float
    top_p: float | None
    stop: tuple[str, ...]
    target: str
    messages: str
    prompt_sha256: str

    @property
    def sent_stops(self) -> tuple[str, ...]:
        """The stop strings that go into the request; the others are cut when the answer is graded."""
        return self.stop[:MOST_STOPS]


@dataclass(frozen=True)
class TaskAbout:
    """What is known of one task before it is asked: written to tasks/tasks.json and shown in reports."""

    task: str
    version: str
    num_fewshot: int
    documents: int
    items: int
    repeats: int
    metric: str
    filter: str
    dataset: str
    lm_eval: str


def collect(
    spec: TaskSpec, *, chat: bool, seed: int, pack: Path | None = None
) -> tuple[list[TaskItem], list[TaskAbout]]:
    """All items of one entry of the plan's `tasks`, drawn from `seed` where it has a limit.

    Args:
        spec: the entry.
        chat: the endpoints take chat messages rather than plain text.
        seed: of the choice of documents.
        pack: folder with the offline pack's items.

    Raises:
        TaskError: the task is unknown, its data cannot be had, or it cannot be asked in a timed stream.
    """
    tasks = load(spec, pack, chat=chat)
    chosen = choose(tasks, spec.limit, seed)
    asked: dict[tuple[str, int], Question] = {}

    def note(question: Question) -> str:
        asked[question.task, question.doc] = question
        return ""

    samples = run_tasks(tasks, chosen, chat=chat, model=replay_model(note))
    items, about = [], []
    for name, ids in chosen.items():
        scale, key = score_key(name, samples[name], tasks[name].higher_is_better(), spec.metric)
        first = {sample["doc_id"]: sample for sample in samples[name] if sample["filter"] == key}
        items += [_item(spec, asked[name, place], first[doc], chat) for place, doc in enumerate(ids)]
        about.append(about_task(spec, tasks[name], name, len(ids), scale, key))
    return items, about


def choose(tasks: Mapping[str, Any], limit: int | None, seed: int) -> dict[str, list[int]]:
    """Documents of each task, ascending; a limit is drawn at random from all of them, never the first ones."""
    counts = share_out({name: len(task.eval_docs) for name, task in tasks.items()}, limit)
    return {
        name: sorted(random.Random(f"{seed}/{name}").sample(range(len(tasks[name].eval_docs)), count))
        for name, count in counts.items()
        if count
    }


def share_out(sizes: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How many items each task of a group gets of `limit`: equally many, what a small one lacks goes to the others."""
    left = sum(sizes.values()) if limit is None else limit
    counts = {}
    for done, name in enumerate(sorted(sizes, key=lambda n: (sizes[n], n))):
        counts[name] = min(sizes[name], -(-left // (len(sizes) - done)))
        left -= counts[name]
    return {name: counts[name] for name in sizes}


def score_key(
    task: str, samples: Sequence[Mapping[str, Any]], higher: Mapping[str, bool], wanted: str | None
) -> tuple[str, str]:
    """(metric, filter) whose value is an item's score: the plan's, else the task's first that is one number an item.

    `wanted` is `metric` or `metric,filter`. Raises TaskError when nothing fits.
    """
    filters = list(dict.fromkeys(sample["filter"] for sample in samples))
    metrics = list(dict.fromkeys(name for sample in samples for name in sample["metrics"]))
    usable = [m for m in metrics if higher.get(m, True) and all(_is_score(s[m]) for s in samples if m in s)]
    metric, _, key = (wanted or "").partition(",")
    if metric and metric not in usable:
        raise TaskError(f"{task} has no metric {metric} that is one number an item; it has {', '.join(usable)}.")
    if key and key not in filters:
        raise TaskError(f"{task} has no filter {key}; it has {', '.join(filters)}.")
    if not usable:
        raise TaskError(
            f"{task} scores only whole sets ({', '.join(metrics)}); a paired comparison needs a score for each item."
        )
    return metric or usable[0], key or filters[0]


def write_items(items: Sequence[TaskItem], path: Path) -> None:
    """Write the items' table."""
    write_table(path, pa.Table.from_pylist([asdict(item) for item in items], schema=ITEMS))


def read_items(path: Path) -> list[TaskItem]:
    """Read the items' table. TaskError when it cannot be read."""
    try:
        rows = pq.read_table(path, schema=ITEMS).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise TaskError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    return [TaskItem(**row | {"stop": tuple(row["stop"])}) for row in rows]


def by_document(items: Sequence[TaskItem]) -> tuple[dict[str, list[int]], dict[tuple[str, int], TaskItem]]:
    """(task -> its documents as the items have them, (task, document) -> item): what grading finds its items by."""
    chosen: dict[str, list[int]] = {}
    for item in items:
        chosen.setdefault(item.task, []).append(item.doc)
    return chosen, {(item.task, item.doc): item for item in items}


def item_name(task: str, doc: int) -> str:
    """What an item is called everywhere in a run."""
    return f"task/{task}/{doc}"


def sha256_of(text: str) -> str:
    """Hex SHA-256 of a prompt."""
    return hashlib.sha256(text.encode()).hexdigest()


def _item(spec: TaskSpec, question: Question, sample: Mapping[str, Any], chat: bool) -> TaskItem:
    doc = sample["doc"]
    asked = sampling(question.task, question.generation, spec.max_gen_toks)
    messages = question.prompt if chat else json.dumps([{"role": "user", "content": question.prompt}])
    name = item_name(question.task, sample["doc_id"])
    cluster = doc.get(spec.cluster or "cluster")
    if spec.cluster and cluster is None:
        raise TaskError(f"{question.task} has no field {spec.cluster} to cluster by; it has {', '.join(doc)}.")
    return TaskItem(
        item=name,
        task=question.task,
        doc=sample["doc_id"],
        split=str(doc.get("split", "public")),
        cluster=name if cluster is None else f"{question.task}/{cluster}",
        repeats=spec.repeats,
        keep_thinking=spec.keep_thinking,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        stop=asked.stop,
        target=str(sample["target"])[:1000],
        messages=messages,
        prompt_sha256=sha256_of(question.prompt),
    )


def about_task(spec: TaskSpec, task: Any, name: str, items: int, metric: str, key: str) -> TaskAbout:
    """What is known of one loaded task."""
    return TaskAbout(
        task=name,
        version=str(task.VERSION),
        num_fewshot=int(task.get_config("num_fewshot") or 0),
        documents=len(task.eval_docs),
        items=items,
        repeats=spec.repeats,
        metric=metric,
        filter=key,
        dataset=str(task.get_config("dataset_path")),
        lm_eval=metadata.version("lm_eval"),
    )


def _is_score(value: Any) -> bool:
    return isinstance(value, bool | int | float) and 0 <= float(value) <= 1

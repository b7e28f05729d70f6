"""The task oracle, grading half: the timed answers go back to lm-eval, which filters and grades them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from oracles.atomic import write_table
from oracles.task_answers import TaskAnswer, read_answer
from oracles.task_loading import TaskSpec, load
from oracles.task_model import Question, TaskError, replay_model, run_tasks
from oracles.tasks import TaskItem, by_document, score_key, sha256_of

INVALID = "[invalid]"  # what lm-eval's own filters leave when nothing could be extracted

GRADES = pa.schema(
    [
        ("pair", pa.int32()),
        ("line", pa.int32()),
        ("cell", pa.string()),
        ("item", pa.string()),
        ("task", pa.string()),
        ("split", pa.string()),
        ("cluster", pa.string()),
        ("repeat", pa.int32()),
        ("fate", pa.string()),
        ("status", pa.string()),
        ("score", pa.float64()),
        ("extracted", pa.string()),
        ("target", pa.string()),
        ("question", pa.string()),
        ("text", pa.string()),
        ("answer", pa.string()),
        ("thinking", pa.string()),
        ("finish_reason", pa.string()),
        ("output_tokens", pa.int32()),
        ("at_limit", pa.bool_()),
        ("stop_kept", pa.bool_()),
        ("metrics", pa.string()),
    ]
)


def grade(
    specs: Sequence[TaskSpec],
    items: Sequence[TaskItem],
    rows: Sequence[Mapping[str, Any]],
    *,
    chat: bool,
    pack: Path | None,
) -> list[dict[str, Any]]:
    """Grade one arm's timed answers: one row (GRADES) for every request of kind `task`.

    Args:
        specs: the plan's tasks.
        items: what was made of them.
        rows: requests.parquet's rows of kind `task`, with `pair`; any order.
        chat: as when the items were collected.
        pack: folder with the offline pack's items.

    Raises:
        TaskError: a task can no longer be loaded, or lm-eval now asks something else than was sent.
    """
    asked = _in_repeats(rows)
    known = {item.item: item for item in items}
    strange = next((name for name in asked if name not in known), None)
    if strange:
        raise TaskError(f"{strange} was asked but is not among the run's task items; the run's files do not agree.")
    graded: list[dict[str, Any]] = []
    for spec in specs:
        tasks = load(spec, pack, chat=chat)
        mine = [item for item in items if item.task in tasks]
        for repeat in range(max((len(asked.get(item.item, ())) for item in mine), default=0)):
            graded += _grade_repeat(spec, tasks, mine, asked, repeat, chat)
    return sorted(graded, key=lambda row: (row["pair"], row["line"]))


def write_grades(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write tasks.parquet."""
    write_table(path, pa.Table.from_pylist(list(rows), schema=GRADES))


def _in_repeats(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Requests by item in the order they were sent: the k-th is repeat k."""
    asked: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["pair"], row["line"])):
        asked[row["item"]].append(row)
    return asked


def _grade_repeat(
    spec: TaskSpec,
    tasks: Mapping[str, Any],
    items: Sequence[TaskItem],
    asked: Mapping[str, Sequence[Mapping[str, Any]]],
    repeat: int,
    chat: bool,
) -> list[dict[str, Any]]:
    """All items of one entry with their `repeat`-th answers; items without one are graded as "" and left out."""
    chosen, at = by_document(items)
    answers: dict[str, TaskAnswer] = {}

    def replay(question: Question) -> str:
        item = at[question.task, chosen[question.task][question.doc]]
        if sha256_of(question.prompt) != item.prompt_sha256:
            raise TaskError(
                f"{item.item}: lm-eval now asks another prompt than was sent. Was it updated, or its data? Grade with "
                "the versions in tasks/tasks.json."
            )
        came = asked.get(item.item, ())
        if repeat >= len(came):
            return ""
        answers[item.item] = read_answer(item, came[repeat])
        return answers[item.item].answer

    rows = []
    for task, samples in run_tasks(tasks, chosen, chat=chat, model=replay_model(replay)).items():
        metric, key = score_key(task, samples, tasks[task].higher_is_better(), spec.metric)
        by_doc: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for sample in samples:
            by_doc[sample["doc_id"]].append(sample)
        for doc, found in by_doc.items():
            item = at[task, doc]
            if item.item in answers:
                sample = next(one for one in found if one["filter"] == key)
                request = asked[item.item][repeat]
                rows.append(graded_row(item, request, answers[item.item], repeat, sample, metric, found))
    return rows


def graded_row(
    item: TaskItem,
    request: Mapping[str, Any],
    answer: TaskAnswer,
    repeat: int,
    sample: Mapping[str, Any],
    metric: str,
    found: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """One row of GRADES.

    Args:
        item: what was asked.
        request: pair, line, cell, status, finish_reason, output_tokens and text of the request.
        answer: what was handed to lm-eval.
        repeat: which asking of the item, from 0.
        sample: lm-eval's logged sample whose `metric` is the score.
        metric: its name.
        found: all samples of the item, one a filter.
    """
    extracted = _text(sample["filtered_resps"][0])
    fate = "unparsed" if answer.fate == "graded" and extracted == INVALID else answer.fate
    score = float(sample[metric]) if fate in ("graded", "unparsed") else 0.0
    told = {f"{m},{one['filter']}": one[m] for one in found for m in one["metrics"]}
    return {
        **{key: request[key] for key in ("pair", "line", "cell", "status", "finish_reason", "output_tokens")},
        **{key: value for key, value in asdict(item).items() if key in ("item", "task", "split", "cluster", "target")},
        "repeat": repeat,
        "fate": fate,
        "score": score,
        "extracted": extracted,
        "question": _question(item.messages),
        "text": request["text"] or "",
        "answer": answer.answer,
        "thinking": answer.thinking,
        "at_limit": answer.at_limit,
        "stop_kept": answer.stop_kept,
        "metrics": json.dumps(told, default=str),
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return str(value)[:2000]


def _question(messages: str) -> str:
    """The end of what was asked last: enough to recognise the question by."""
    last = json.loads(messages)[-1]["content"]
    return str(last)[-1000:]

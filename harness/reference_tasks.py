"""The reference's own task scores, for context: its server is asked every item once, apart from the timed stream.

Nothing is judged by them. They say what the model itself can do, so that a candidate's loss and a task's difficulty are
not taken for one another, and how long the reference's answers and thinking are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.logits import reference_ask
from harness.plan import Plan
from harness.progress import Progress, counting
from harness.run_store import RunStore, sha256, write_json
from harness.task_stream import FOLDER, ITEMS, PACK, is_chat, specs_of
from oracles.atomic import write_table
from oracles.logits import Ask
from oracles.reference import OracleError
from oracles.task_grades import grade, write_grades
from oracles.task_summary import read_grades, summarise
from oracles.tasks import TaskItem, read_items

IN_FLIGHT = 8
ROWS = f"{FOLDER}/reference.parquet"


def collect_reference_tasks(plan: Plan, store: RunStore, progress: Progress) -> None:
    """Ask the reference server every timed item once in a run, when the plan wants it."""
    step = "reference-tasks"
    if plan.reference is None or not plan.reference.tasks or not plan.timed_tasks or store.finished(step):
        return
    items = read_items(store.root / FOLDER / ITEMS)
    ask, model = reference_ask(plan.reference), plan.reference.model or plan.model
    say = counting("asking the reference server the task items", "items", progress)
    rows = []
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for line, row in enumerate(pool.map(lambda item: _answer(ask, model, item, chat=is_chat(plan)), items)):
            rows.append(row | {"line": line})
            say(len(rows), len(items))
    write_table(store.root / ROWS, pa.Table.from_pylist(rows))
    store.record(step, [store.root / ROWS])


def grade_reference_tasks(plan: Plan, root: Path) -> None:
    """Write oracles/reference/tasks.*, when the reference was asked."""
    if not (root / ROWS).is_file():
        return
    items, rows = read_items(root / FOLDER / ITEMS), pq.read_table(root / ROWS).to_pylist()
    out = root / "oracles" / "reference"
    graded = grade(specs_of(plan), items, rows, chat=is_chat(plan), pack=root / FOLDER / PACK)
    write_grades(graded, out / "tasks.parquet")
    (grades,) = read_grades([out / "tasks.parquet"])
    inputs = {name: sha256(root / name) for name in (f"{FOLDER}/{ITEMS}", ROWS)}
    alone = grades.assign(thinking="")  # there is no other arm to compare its thinking with
    write_json(out / "tasks.json", summarise("reference", grades, alone, inputs))


def _answer(ask: Ask, model: str, item: TaskItem, *, chat: bool) -> dict[str, Any]:
    """A row as requests.parquet has them; what the server refused is a failed one."""
    messages = json.loads(item.messages)
    asked = {"messages": messages} if chat else {"prompt": messages[-1]["content"]}
    body = {"model": model, "max_tokens": item.max_tokens, "temperature": item.temperature, "seed": 0, **asked}
    body |= {"stop": list(item.sent_stops)} if item.sent_stops else {}
    body |= {} if item.top_p is None else {"top_p": item.top_p}
    row: dict[str, Any] = {
        "pair": 0, "cell": "", "item": item.item, "status": "error", "finish_reason": None, "output_tokens": None,
        "usage_completion_tokens": None, "retokenised_tokens": None, "text": "", "reasoning": "",
    }  # fmt: skip
    try:
        reply = ask("/v1/chat/completions" if chat else "/v1/completions", body)
    except OracleError as error:
        return row | {"text": str(error)[:500]}
    choice: Mapping[str, Any] = (reply.get("choices") or [{}])[0]
    said: Mapping[str, Any] = choice.get("message") or {} if chat else choice
    tokens = (reply.get("usage") or {}).get("completion_tokens")
    text = said.get("content" if chat else "text") or ""
    reasoning = said.get("reasoning_content") or said.get("reasoning") or ""
    told = {"status": "ok" if text or reasoning else "empty", "finish_reason": choice.get("finish_reason")}
    return row | told | {
        "output_tokens": tokens, "usage_completion_tokens": tokens, "text": text, "reasoning": reasoning,
    }  # fmt: skip

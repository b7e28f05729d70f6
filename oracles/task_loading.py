"""A task by name, by file or out of the offline pack, or one sentence that says why it cannot be asked."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from oracles.task_model import TaskError, quiet
from oracles.task_pack import families, task_config

PACK = "offline-pack"
COMPARED = ("multiple_choice", "loglikelihood")
# Option-scoring tasks with a sibling that generates its answer. Anything else: `lm-eval ls tasks`.
GENERATIVE = {
    "mmlu": "mmlu_generative",
    "mmlu_pro": "mmlu_pro",
    "arc_challenge": "arc_challenge_chat",
    "arc_easy": "arc_challenge_chat",
    "gpqa_main_zeroshot": "gpqa_main_cot_zeroshot",
    "gpqa_diamond_zeroshot": "gpqa_diamond_cot_zeroshot",
    "gpqa_extended_zeroshot": "gpqa_extended_cot_zeroshot",
    "gpqa_main_n_shot": "gpqa_main_cot_n_shot",
    "gpqa_diamond_n_shot": "gpqa_diamond_cot_n_shot",
    "truthfulqa_mc1": "truthfulqa_gen",
    "truthfulqa_mc2": "truthfulqa_gen",
}


@dataclass(frozen=True)
class TaskSpec:
    """What a plan asks for. `limit` counts items, over all sub-tasks of a group."""

    name: str
    limit: int | None = None
    num_fewshot: int | None = None
    max_gen_toks: int | None = None
    metric: str | None = None
    cluster: str | None = None
    repeats: int = 1
    keep_thinking: bool = False
    options: bool = False  # compares log-probabilities of given options (oracles.task_options)


def is_pack(name: str) -> bool:
    """True for the pack and for one of its tasks."""
    return name == PACK or name in families()


def load(spec: TaskSpec, pack: Path | None, *, chat: bool) -> dict[str, Any]:
    """lm-eval's task objects by name, the plan's changes applied. TaskError when one cannot be asked honestly."""
    if spec.options and is_pack(spec.name):
        raise TaskError(_generates(spec.name))
    tasks = _pack(spec.name, pack) if is_pack(spec.name) else dict(_stock(spec.name, spec.options))
    for name, task in tasks.items():
        problem = _problem(name, task, chat, spec.options)
        if problem:
            raise TaskError(problem)
        if spec.num_fewshot is not None and task.get_config("num_fewshot") != 0:
            task.set_config(key="num_fewshot", value=spec.num_fewshot)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return tasks


def _pack(name: str, folder: Path | None) -> dict[str, Any]:
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    if folder is None:
        raise TaskError("The offline pack was not written yet.")
    tasks = {}
    for task in families() if name == PACK else (name,):
        path = folder / f"{task}.jsonl"
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, json.JSONDecodeError) as error:
            raise TaskError(f"{path}, the items of {task}, cannot be read: {error}.") from None
        if not rows:
            continue
        data = {"test": Dataset.from_list(rows)}
        with quiet():
            # Straight from the rows: sealed items must not end up in a shared data set cache.
            tasks[task] = ConfigurableTask(config=task_config(task) | {"custom_dataset": lambda d=data, **_: d})
    return tasks


@cache
def _stock(name: str, options: bool) -> tuple[tuple[str, Any], ...]:
    """One of lm-eval's own tasks, groups or tags, or a YAML file."""
    from lm_eval.tasks import TaskManager

    is_file = name.endswith((".yaml", ".yml"))
    manager = TaskManager(include_defaults=not is_file)
    if not is_file and name not in manager.all_tasks:
        near = difflib.get_close_matches(name, [PACK, *manager.all_tasks], n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise TaskError(f"lm-eval has no task {name}.{meant} (`lm-eval ls tasks` lists them; {PACK} needs no data.)")
    refused = next(filter(None, (_declared_problem(*one, options) for one in _declared(manager, name))), None)
    if refused:
        raise TaskError(refused)
    try:
        with quiet():
            return tuple(manager.load([name])["tasks"].items())
    except Exception as error:  # each data set fails in a way of its own
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise TaskError(
            f"The data of task {name} cannot be had here: {said}. Fetch it once where a hub or mirror can be reached "
            f"(`lm-eval run --model dummy --tasks {name} --limit 1` fills the cache), or use {PACK}, which needs none."
        ) from None


def _declared(manager: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(task, configuration) of a name and of all that it groups, as written: before any data is fetched."""
    entry = manager.task_index.get(name)
    config = (entry.cfg if entry else None) or {}
    children = config.get("task")
    if entry is not None and entry.cfg is None and entry.tags:  # a tag, not a file
        children = sorted(entry.tags)
    if not isinstance(children, list):
        yield name, config
        return
    for child in children:
        child_name = child.get("task") if isinstance(child, Mapping) else child
        if isinstance(child_name, str) and child_name != name:
            yield from _declared(manager, child_name)


def _declared_problem(name: str, config: Mapping[str, Any], options: bool = False) -> str | None:
    if config.get("unsafe_code"):
        return f"{name} runs code that the model wrote; the gate never does. Run it by itself in a sandbox."
    declared = config.get("output_type")  # a file's is known when it is loaded
    return _other_kind(name, declared, options) if declared else None


def _other_kind(name: str, output_type: str, options: bool) -> str | None:
    """Why a task of this output type is not asked in the way that the plan wants."""
    if output_type == "generate_until":
        return _generates(name) if options else None
    if not options:
        return no_options(name)
    return None if output_type in COMPARED else f"{name} measures whole texts ({output_type}) and has no score an item."


def _generates(name: str) -> str:
    return f"{name} generates its answer; take `options` away and it is asked inside the timed stream."


def _problem(name: str, task: Any, chat: bool, options: bool) -> str | None:
    if getattr(task, "UNSAFE_CODE", False):
        return _declared_problem(name, {"unsafe_code": True})
    if getattr(task, "MULTIMODAL", False):
        return f"{name} asks about pictures or sound, which this stream does not carry."
    other = _other_kind(name, task.OUTPUT_TYPE, options)
    if other or options:
        return other
    if (task.get_config("repeats") or 1) > 1:
        return (
            f"{name} votes over {task.get_config('repeats')} samples of each question; use its single-sample variant."
        )
    if chat and task.get_config("gen_prefix"):
        return (
            f"{name} begins the answer itself ({task.get_config('gen_prefix')!r}), which a chat request cannot carry; "
            "give the endpoints `api: completions`."
        )
    return None


def no_options(name: str) -> str:
    """Why an option-scoring task is not asked in the stream, and what to ask for it."""
    parent = next((known for known in GENERATIVE if name == known or name.startswith(f"{known}_")), None)
    instead = f" Use {GENERATIVE[parent]}, which asks for the answer in words." if parent else ""
    return (
        f"{name} compares log-probabilities of given options, and no streamed chat or completion returns those of its "
        f"prompt, so it cannot be part of the timed stream.{instead or ' Choose a task that generates its answer.'} Or "
        "give it `options: true`: asked apart, where both endpoints return true prompt log-probabilities."
    )

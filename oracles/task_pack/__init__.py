"""The offline pack: seven small lm-eval tasks whose items are written here, by templates, from a seed.

Nothing is downloaded and nothing is anybody's: every item is made by the code in this folder. The public split is the
same for everybody and serves the inner loop; the sealed split is drawn from a seed that the engine's author does not
have. Difficulty is spread so that a 135M model and a large one both land between floor and ceiling (docs/tasks.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from oracles.task_pack.draw import Draw

VERSION = 1
PUBLIC_SEED = 20261202


@dataclass(frozen=True)
class Item:
    """One question. Items of one `cluster` share a template or a text, so their scores move together."""

    question: str
    target: str
    cluster: str
    level: str


def families() -> dict[str, Callable[[Draw, int], Item]]:
    """Task name -> what writes item number `index`."""
    from oracles.task_pack import editing, facts, retrieval, word_problems

    return {
        "pack_arithmetic": word_problems.arithmetic,
        "pack_code_output": word_problems.code_output,
        "pack_key_value": retrieval.key_value,
        "pack_needles": retrieval.needles,
        "pack_json": editing.json_record,
        "pack_copy_edit": editing.copy_edit,
        "pack_facts": facts.minimal_pairs,
    }


def items(task: str, split: str, seed: int, count: int) -> list[dict[str, str]]:
    """`count` items of one task as JSON rows: question, target, cluster, level, split. No question comes twice."""
    write, rows, seen = families()[task], [], set()
    for index in range(20 * count):
        item = write(Draw(seed, task, index // 2 if task == "pack_facts" else index), index)
        if item.question in seen:
            continue
        seen.add(item.question)
        rows.append(asdict(item) | {"cluster": f"{task}/{split}/{item.cluster}", "split": split})
        if len(rows) == count:
            return rows
    raise ValueError(f"{task} has only {len(rows)} different questions, {count} were asked for")


def write_pack(folder: Path, *, public: int, sealed: int = 0, sealed_seed: int = 0) -> list[Path]:
    """Write the pack as lm-eval tasks with local data, so that `lm_eval --include_path FOLDER` runs them as well.

    Args:
        folder: where the YAML and JSONL files go.
        public: items of the public split in each task.
        sealed: items of the sealed split in each task, drawn from `sealed_seed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for task in families():
        rows = items(task, "public", PUBLIC_SEED, public) if public else []
        rows += items(task, "sealed", sealed_seed, sealed) if sealed else []
        data, config = folder / f"{task}.jsonl", folder / f"{task}.yaml"
        data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        task_file = task_config(task) | {"dataset_kwargs": {"data_files": {"test": str(data.resolve())}}}
        config.write_text(yaml.safe_dump(task_file, sort_keys=False, allow_unicode=True), encoding="utf-8")
        paths += [data, config]
    return paths


def task_config(task: str) -> dict[str, Any]:
    """The lm-eval configuration of one task, without its data: what all share, then its own."""
    folder = resources.files(__name__)
    common = yaml.safe_load((folder / "common.yaml").read_text(encoding="utf-8"))
    own = yaml.safe_load((folder / f"{task}.yaml").read_text(encoding="utf-8"))
    return {"task": task, **common, **own, "generation_kwargs": common["generation_kwargs"] | own["generation_kwargs"]}

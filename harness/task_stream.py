"""Task items in the stream: written once for the run, then dealt out evenly over pairs and cells."""

from __future__ import annotations

import hashlib
import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from harness.cells import Cell
from harness.errors import UsageError
from harness.option_tasks import write_option_tasks
from harness.plan import Plan, TaskUse
from harness.progress import Progress
from harness.run_store import write_json
from harness.sealed import fingerprint, read_secret, sealed_seed
from harness.workload import Insert, InsertSource, seed_for
from oracles.task_loading import PACK as OFFLINE
from oracles.task_loading import TaskSpec, is_pack, load
from oracles.task_model import TaskError
from oracles.task_pack import families, write_pack
from oracles.tasks import TaskItem, choose, collect, read_items, share_out, write_items
from traffic_profiles.requests import RequestSpec

FOLDER, ITEMS, ABOUT, PACK = "tasks", "items.parquet", "tasks.json", "pack"


def capacity(plan: Plan, cell: Cell) -> int:
    """Task requests that one visit has room for in this cell, beside its load."""
    share = plan.task_share if cell.task_share is None else cell.task_share
    return round(share / (1 - share) * cell.request_count) if plan.timed_tasks else 0


def check_tasks(plan: Plan, cells: Sequence[Cell]) -> None:
    """UsageError, before anything runs, for a task that cannot be asked, or for tasks without room in any cell."""
    if not plan.tasks:
        return
    if plan.timed_tasks and not sum(capacity(plan, cell) for cell in cells):
        raise UsageError(
            "tasks: no cell has room for a task item; raise task_share (of all requests in a cell), or the requests."
        )
    if plan.task_secret:
        read_secret(plan.task_secret)
    try:
        for use in plan.tasks:
            if use.options or not is_pack(use.name):
                load(spec_of(use), None, chat=is_chat(plan))
    except TaskError as error:
        raise UsageError(f"tasks: {error}") from None


def write_tasks(plan: Plan, cells: Sequence[Cell], root: Path, progress: Progress) -> list[Path]:
    """Write tasks/: the offline pack's items, every item as it will be asked, and what is known of each task."""
    folder = root / FOLDER
    # It holds the answers: a launched engine of another user must not read them.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about: dict[str, Any] = {"schema_version": 1, "tasks": []}
    specs = specs_of(plan)
    room = plan.pairs[-1] * sum(capacity(plan, cell) for cell in cells)
    if any(is_pack(spec.name) for spec in specs):
        about["sealed"] = _write_pack(plan, folder / PACK, math.ceil(room / max(len(specs), 1)))
    items: list[TaskItem] = []
    try:
        for spec in specs:
            progress(f"asking lm-eval for {spec.name}")
            found, told = collect(
                spec, chat=is_chat(plan), seed=seed_for(plan, 0, "task documents"), pack=folder / PACK
            )
            items += found
            about["tasks"] += [asdict(one) for one in told]
        about["tasks"] += write_option_tasks(plan, root, progress)
    except TaskError as error:
        raise UsageError(f"tasks: {error}") from None
    names = [item.item for item in items]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"tasks: {twice.split('/')[1]} is asked for twice, by itself and in a group; keep one.")
    write_items(items, folder / ITEMS)
    write_json(folder / ABOUT, about)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def planned_items(plan: Plan, cells: Sequence[Cell]) -> dict[str, int]:
    """Requests that each task will have, over all pairs and repeats; needs the data of tasks outside the pack."""
    room = plan.pairs[-1] * sum(capacity(plan, cell) for cell in cells)
    planned: dict[str, int] = {}
    for use in plan.timed_tasks:
        if is_pack(use.name):
            names = list(families()) if use.name == OFFLINE else [use.name]
            each = math.ceil((use.limit or math.ceil(room / len(plan.timed_tasks))) / len(names))
            counts = share_out(dict.fromkeys(names, each), use.limit)
            planned |= {name: count * use.repeats for name, count in counts.items()}
            continue
        try:
            tasks = load(spec_of(use), None, chat=is_chat(plan))
        except TaskError as error:
            raise UsageError(f"tasks: {error}") from None
        chosen = choose(tasks, use.limit, seed_for(plan, 0, "task documents"))
        planned |= {name: len(ids) * use.repeats for name, ids in chosen.items()}
    return planned


def task_source(plan: Plan, cells: Sequence[Cell], pair: int, root: Path) -> InsertSource:
    """What the tasks add to each cell of one pair."""
    items = read_items(root / FOLDER / ITEMS)
    dealt = deal(plan, cells, pair, items)

    def source(cell: Cell, _load: Sequence[RequestSpec]) -> list[Insert]:
        draw = random.Random(seed_for(plan, pair, f"task seeds/{cell.name}"))
        return [Insert("task", _request(item, draw.getrandbits(31))) for item in dealt[cell.name]]

    return source


def deal(plan: Plan, cells: Sequence[Cell], pair: int, items: Sequence[TaskItem]) -> dict[str, list[TaskItem]]:
    """cell -> the items asked in it in this pair, an item once for each repeat; no item is in two pairs.

    Every task is spread evenly over the pairs of the first look, or as far as its items go when a pair has no room for
    that many; the pairs after the first look get what is left.
    """
    rate = per_pair(plan, cells, sum(item.repeats for item in items))
    asked: list[TaskItem] = []
    before = 0
    for item in _spread(plan, items):
        if rate and before // rate == pair - 1:
            asked += [item] * item.repeats
        before += item.repeats
    random.Random(seed_for(plan, pair, "task cells")).shuffle(asked)
    room = [capacity(plan, cell) for cell in cells]
    cuts = [round(sum(room[:n]) / max(sum(room), 1) * len(asked)) for n in range(len(cells) + 1)]
    return {cell.name: asked[cuts[n] : cuts[n + 1]] for n, cell in enumerate(cells)}


def per_pair(plan: Plan, cells: Sequence[Cell], requests: int) -> int:
    """Task requests in each pair: what there is, spread over the first look, but no more than there is room for."""
    return min(sum(capacity(plan, cell) for cell in cells), math.ceil(requests / plan.pairs[0]))


def spec_of(use: TaskUse) -> TaskSpec:
    """The oracle's form of one entry of the plan's `tasks`."""
    return TaskSpec(**use.model_dump())


def specs_of(plan: Plan) -> list[TaskSpec]:
    """All that are asked in the stream."""
    return [spec_of(use) for use in plan.timed_tasks]


def _spread(plan: Plan, items: Sequence[TaskItem]) -> list[TaskItem]:
    """All items in a drawn order in which any stretch has every task and split in its due share."""
    draw = random.Random(seed_for(plan, 0, "task order"))
    groups: dict[tuple[str, str], list[TaskItem]] = {}
    for item in items:
        groups.setdefault((item.task, item.split), []).append(item)
    placed: list[tuple[float, str, TaskItem]] = []
    for group in groups.values():
        draw.shuffle(group)
        placed += [((rank + draw.random()) / len(group), item.item, item) for rank, item in enumerate(group)]
    return [item for *_, item in sorted(placed, key=lambda one: one[:2])]


def _request(item: TaskItem, seed: int) -> RequestSpec:
    return RequestSpec(
        item=item.item,
        stratum=item.task,
        messages=tuple(orjson.loads(item.messages)),
        max_tokens=item.max_tokens,
        temperature=item.temperature,
        top_p=item.top_p,
        stop=item.sent_stops,
        seed=seed,
        fixed_length=False,
    )


def _write_pack(plan: Plan, folder: Path, room: int) -> dict[str, Any]:
    """Write the pack's items; half of a full run's are sealed. Returns what may be told about the sealed ones."""
    uses = [use for use in plan.timed_tasks if is_pack(use.name)]
    each = max(math.ceil((use.limit or room) / (len(families()) if use.name == OFFLINE else 1)) for use in uses)
    if plan.mode == "quick":
        write_pack(folder, public=each)
        return {"items_of_each_task": 0, "source": "a quick run asks public items only"}
    sealed = each // 2
    if plan.task_secret:
        secret = read_secret(plan.task_secret)
        digest, attempt = hashlib.sha256(plan.model_dump_json().encode()).hexdigest(), secrets.randbits(31)
        seed, source = sealed_seed(secret, plan=digest, attempt=attempt), f"secret {fingerprint(secret)} #{attempt}"
    else:
        seed, source = secrets.randbits(63), "drawn by the machine when the run began"
    write_pack(folder, public=each - sealed, sealed=sealed, sealed_seed=seed)
    return {"items_of_each_task": sealed, "source": source}


def is_chat(plan: Plan) -> bool:
    """True when prompts are chat messages rather than plain text."""
    return plan.endpoints.baseline.api == "chat"

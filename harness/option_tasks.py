"""Tasks that compare given options, asking half: refused without true rows, written once, asked once."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from harness.endpoint import Engines, authorization
from harness.errors import UsageError
from harness.logits import endpoint_ask
from harness.plan import Plan
from harness.probes import Support, Target, logprobs
from harness.probes.client import HttpClient
from harness.progress import Progress, counting
from harness.run_store import RunStore, write_json
from harness.workload import seed_for
from oracles.task_loading import TaskSpec, load, no_options
from oracles.task_model import TaskError
from oracles.task_options import Option, ask_options, collect_options, read_options, write_options
from oracles.tasks import TaskItem, choose, write_items

ITEMS, OPTIONS = "tasks/option_items.parquet", "tasks/options.parquet"


def write_option_tasks(plan: Plan, root: Path, progress: Progress) -> list[dict[str, Any]]:
    """Write every option as it will be asked; return what is known of each task. Raises TaskError."""
    items: list[TaskItem] = []
    options: list[Option] = []
    about: list[dict[str, Any]] = []
    for spec in option_specs(plan):
        progress(f"asking lm-eval for the options of {spec.name}")
        found, theirs, told = collect_options(spec, encoder(root), seed=seed_for(plan, 0, "task documents"))
        items += found
        options += theirs
        about += [asdict(one) for one in told]
    if items:
        write_items(items, root / ITEMS)
        write_options(options, root / OPTIONS)
    return about


def option_specs(plan: Plan) -> list[TaskSpec]:
    """The oracle's form of the plan's `tasks` that have `options`."""
    return [TaskSpec(**use.model_dump()) for use in plan.option_tasks]


def planned_options(plan: Plan) -> dict[str, int]:
    """Items that each task will have; needs its data."""
    planned: dict[str, int] = {}
    for spec in option_specs(plan):
        try:
            tasks = load(spec, None, chat=False)
        except TaskError as error:
            raise UsageError(f"tasks: {error}") from None
        chosen = choose(tasks, spec.limit, seed_for(plan, 0, "task documents"))
        planned |= {name: len(ids) for name, ids in chosen.items()}
    return planned


def refuse_without_rows(plan: Plan, arm: str, store: RunStore, progress: Progress) -> None:
    """Ask an arm once whether its prompt log-probabilities agree with its own decoding.

    Raises UsageError, before anything is timed, unless they do at every replica.
    """
    step, path = f"preflight/{arm}-options", store.root / "preflight" / f"{arm}-options.json"
    if not plan.option_tasks or store.finished(step):
        return
    progress(f"{arm}: asking for log-probabilities of a prompt")
    told: dict[str, Any] = {}
    for url in plan.endpoint(arm).all_urls:
        target = Target(
            HttpClient(url, authorization(plan.endpoint(arm)), plan.request_timeout_s), plan.served_model(arm)
        )
        found = [asyncio.run(probe(target)) for probe in (logprobs.prompt_logprobs, logprobs.echo)]
        seen = "; ".join(f"{one.name} {one.support.value}: {one.detail}" for one in found)
        if not any(one.support is Support.YES for one in found):
            raise UsageError(f"tasks: {no_options(plan.option_tasks[0].name)} The {arm} does not ({seen}).")
        told[url] = [one.model_dump(mode="json") for one in found]
    write_json(path, {"schema_version": 1, "replicas": told})
    store.record(step, [path])


def collect_option_rows(plan: Plan, store: RunStore, engines: Engines, progress: Progress) -> None:
    """Ask both arms about every option, once in a run."""
    for arm in plan.arms if plan.option_tasks else ():
        step, path = f"options/{arm}", store.root / "options" / arm / "rows.parquet"
        if store.finished(step):
            continue
        with engines.serving(arm):
            say = counting(f"asking the {arm} about options", "options", progress)
            options = read_options(store.root / OPTIONS)
            store.record(step, [ask_options(endpoint_ask(plan, arm), plan.served_model(arm), options, path, say)])


def encoder(root: Path) -> Any:
    """What turns text into ids by the run's own tokenizer, without special tokens."""
    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids

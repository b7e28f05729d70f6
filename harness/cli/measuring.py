"""`enginegate doctor` and `enginegate sweep`: commands that measure and pass no verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import RUNS, TIERS, progress_bar, sentences, table_console
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.checkup import Checkup
    from harness.sweep_plan import SweepPlan
    from harness.sweep_results import Row


@click.command()
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME=URL", help="Server to examine; repeatable.")
@click.option("--model", "-m", help="Model name that the endpoints serve.")
@click.option("--reference", type=click.Path(path_type=Path), help="Local BF16 folder that checks prompt logprobs.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="Folder with tokenizer.json (default: the reference)."
)
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the key.")
@click.option(
    "--concurrency",
    default="1,8",
    show_default=True,
    help="Where the client's bias is measured, e.g. 1,8,32. Needs a tokenizer.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="TTFT_MS,TPOT_MS,CONCURRENCY[,TOKENS_PER_EVENT]",
    help="Calibrate the client for an engine of this timing; repeatable, needs no endpoint.",
)
@click.option("--no-calibration", is_flag=True, help="Probe the endpoints only; half a minute less.")
@click.option("--fresh", is_flag=True, help="Measure the client's bias again, whatever is cached.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@sentences
def doctor(endpoints: tuple[str, ...], *, no_calibration: bool, as_json: bool, **flags: Any) -> None:
    """What the endpoints really support, and what this client can really measure.

    Everything is found by effect: parameters are more often ignored than refused. The client's bias is measured by
    AIPerf against a mock that is as fast as the endpoint and knows its own send times; it is cached for this machine.
    """
    from harness.arguments import concurrencies, named_urls, timing
    from harness.checkup import Request, check_up

    if not endpoints and not flags["shapes"]:
        raise UsageError("Give --endpoint NAME=URL with --model, or --shape TTFT_MS,TPOT_MS,CONCURRENCY, or both.")
    if endpoints and not flags["model"]:
        raise UsageError("--model is missing: the name under which the endpoints serve the model.")
    asked = Request(
        urls=named_urls(endpoints),
        model=flags["model"] or "",
        reference=flags["reference"],
        tokenizer=flags["tokenizer"],
        api_key_env=flags["api_key_env"],
        concurrencies=() if no_calibration else concurrencies("--concurrency", flags["concurrency"]),
        shapes=tuple(timing(text) for text in flags["shapes"]),
        fresh=flags["fresh"],
    )
    with progress_bar() as progress:
        found = check_up(asked, progress)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return
    _print(found)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), required=False)
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME=URL", help="Server to drive; repeatable.")
@click.option("--model", "-m", help="Model name that the endpoints serve.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder with tokenizer.json of the model.")
@click.option("--profile", "profiles", multiple=True, help="Traffic profile; repeatable (default: sweep).")
@click.option("--concurrency", help="1,2,4..256 or 1..256x2 (default: the profile's own).")
@click.option("--request-rate", help="Requests per second, e.g. 0.5,1,2, for profiles in open loop.")
@click.option("--request-count", type=click.IntRange(min=1), help="Requests a cell (default: the profile's own rule).")
@click.option("--tier", type=click.Choice(TIERS), help="Size of the profiles (default: gate).")
@click.option("--rounds", type=click.IntRange(1, 100), help="Repeat the whole sweep, with fresh prompts (default: 1).")
@click.option("--seed", type=int, help="Seed of every prompt and every order.")
@click.option("--api", type=click.Choice(("chat", "completions")), help="Which of the two APIs (default: chat).")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the key.")
@click.option(
    "--launch", multiple=True, metavar="NAME=COMMAND", help="Start that endpoint by this command and end it after."
)
@click.option("--no-calibration", is_flag=True, help="Do not measure what this client adds at the endpoints' shapes.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory (default: runs/sweep-<time>).")
@click.option("--resume", is_flag=True, help="Go on with the sweep in --run-dir; only the step in flight is repeated.")
@click.option("--dry-run", is_flag=True, help="Print cells, requests, tokens and expected time; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON instead of the table.")
@sentences
def sweep(plan: Path | None, run_dir: Path | None, *, resume: bool, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Measure endpoints over a range of loads: table, throughput against interactivity, latency curves.

    PLAN is a YAML file with the same keys as the flags (docs/sweep.md). Speed only: whether the answers are right is
    for `enginegate gate`.
    """
    import orjson

    from harness import sweep as sweeping
    from harness.run_store import RunStore

    if resume and run_dir is None:
        raise UsageError("--resume needs --run-dir: the sweep to go on with.")
    root = run_dir or RUNS / time.strftime("sweep-%Y%m%d-%H%M%S")
    resolved = sweeping.stored_sweep(root) if resume else _sweep_plan(plan, flags)
    with progress_bar() as progress:
        if dry_run:
            told = sweeping.dry_run(resolved, progress)
        else:
            sweeping.check(resolved)  # before the directory is made: a refused sweep leaves nothing behind
            store = RunStore.open(root) if resume else RunStore.create(root)
            rows = sweeping.sweep(resolved, store, progress)
    if dry_run:
        click.echo(told)
    elif as_json:
        click.echo(orjson.dumps([row.model_dump() for row in rows], option=orjson.OPT_INDENT_2).decode())
    else:
        _print_sweep(rows, root)


def _sweep_plan(path: Path | None, flags: dict[str, Any]) -> SweepPlan:
    from harness.sweep_plan import check_sweep, load_sweep, make_sweep, sweep_data

    data = sweep_data(flags)
    if path is not None:
        return load_sweep(path, data)
    for key, flag in (("endpoints", "--endpoint NAME=URL"), ("model", "--model"), ("tokenizer", "--tokenizer DIR")):
        if key not in data:
            raise UsageError(f"{flag} is missing; give it, or a PLAN file that says it.")
    data.setdefault("profiles", ["sweep"])
    return check_sweep(make_sweep(data, source="command line", folder=Path.cwd()))


def _print_sweep(rows: tuple[Row, ...], root: Path) -> None:
    from harness.sweep_results import results_table, search_lines

    console = table_console(140)
    console.print(results_table(rows))
    for line in search_lines(root):
        click.echo(line)
    click.echo(f"Report: {root / 'report.html'}; the same as data: sweep.csv, sweep.json, charts/", err=True)


def _print(found: Checkup) -> None:
    from rich.text import Text

    from harness.calibration import calibration_table
    from harness.doctor import doctor_table

    console = table_console(140)
    if found.endpoints:
        console.print(doctor_table(found.endpoints))
    for diagnosis in found.endpoints:
        for sentence in diagnosis.consequences or ("Nothing here limits a gate.",):
            console.print(Text(f"{diagnosis.endpoint}: {sentence}"))
    if found.biases:
        console.print(calibration_table(found.biases))
    for line in found.measurable:
        console.print(Text(line))

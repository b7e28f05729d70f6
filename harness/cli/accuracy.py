"""`enginegate verify`, `floor` and `score`: accuracy and honesty, with no engine's speed in sight."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import RUNS, TIERS, progress_bar, sentences, table_console
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.accuracy_table import AccuracyTable
    from harness.verify_plan import VerifyPlan


@click.command()
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME=URL", help="Server to examine; repeatable.")
@click.option("--model", "-m", help="Model name that the endpoints serve.")
@click.option("--reference", type=click.Path(path_type=Path), help="Local BF16 model folder.")
@click.option("--reference-url", metavar="URL", help="BF16 server with prompt logprobs, in place of a folder.")
@click.option("--device", help="Where the reference runs: auto (default), cpu, cuda, cuda:1.")
@click.option("--ray", metavar="ADDRESS", help="Score on this Ray cluster (extra `ray`); local starts one here.")
@click.option("--tensor-parallel", type=click.IntRange(min=1), metavar="N", help="Cut the reference over N GPUs.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="Folder with tokenizer.json (default: the reference)."
)
@click.option("--profile", help="Traffic profile of the prompts (default: chat-steady).")
@click.option("--tier", type=click.Choice(TIERS), help="Size of the profile (default: smoke).")
@click.option("--requests", type=click.IntRange(min=1), help="Prompts, each asked once (default: 48).")
@click.option("--concurrency", type=click.IntRange(min=1), help="Requests in flight (default: 4).")
@click.option("--logit-documents", type=click.IntRange(min=0), help="Texts asked for log-probabilities (default: 32).")
@click.option("--floor", type=click.Path(path_type=Path), help="Noise floor that `enginegate floor` wrote.")
@click.option("--seed", type=int, help="Seed of every prompt.")
@click.option("--api", type=click.Choice(("chat", "completions")), help="Which of the two APIs (default: chat).")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the key.")
@click.option(
    "--extra-inputs", multiple=True, metavar="KEY:VALUE",
    help="Field of every request; return_token_ids:true (vLLM) or logprobs:true (llama.cpp) has it return its own ids.",
)  # fmt: skip
@click.option(
    "--launch", multiple=True, metavar="NAME=COMMAND", help="Start that endpoint by this command and end it after."
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory (default: runs/verify-<time>).")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir; only the step in flight is repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print accuracy.json instead of the table.")
@sentences
def verify(run_dir: Path | None, *, resume: bool, as_json: bool, **flags: Any) -> None:
    """How right and how honest are these endpoints? Their answers under the BF16 reference; no speed.

    The first endpoint is what the others are set against (token_margin <= 1.05x); give one alone to see where it
    stands beside the noise floor. Exit code: 0, 3 when an endpoint fails, 4 when more prompts would decide, 5 when it
    could not be judged.
    """
    from harness import verify as verifying
    from harness.run_store import RunStore

    if resume and run_dir is None:
        raise UsageError("--resume needs --run-dir: the run to go on with.")
    root = run_dir or RUNS / time.strftime("verify-%Y%m%d-%H%M%S")
    plan = verifying.stored_verify(root) if resume else _verify_plan(flags)
    verifying.check(plan)  # before the directory is made: what is refused leaves nothing behind
    store = RunStore.open(root) if resume else RunStore.create(root)
    with progress_bar() as progress:
        table = verifying.verify(plan, store, progress)
    click.echo(table.model_dump_json(indent=2)) if as_json else _print(table, root)
    sys.exit(int(table.exit_code))


@click.command()
@click.option("--reference", type=click.Path(path_type=Path), required=True, help="Local BF16 model folder.")
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("floor"), show_default=True)
@click.option("--tokens", type=click.IntRange(64), default=2048, show_default=True, help="Answered tokens looked at.")
@click.option("--profile", default="chat-steady", show_default=True, help="Traffic profile of the prompts.")
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of every prompt.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option(
    "--dtype", type=click.Choice(("bfloat16", "float32", "float16")), default="bfloat16", show_default=True,
    help="Of the reference; fp32 arithmetic is what BF16 is computed against.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print tokens.json instead of the table.")
@sentences
def floor(reference: Path, output: Path, *, as_json: bool, **flags: Any) -> None:
    """How far the reference is from itself: other batch sizes, attention, precision. A plan names it by `floor:`.

    The reference answers prompts greedily, then is computed again in other ways on the same positions.
    """
    from harness.floor import run_floor
    from harness.traffic_plan import check_model_folder

    check_model_folder(reference, "--reference")
    if output.exists() and any(output.iterdir()):
        raise UsageError(f"{output} is not empty; name another folder with -o, or remove it.")
    with progress_bar() as progress:
        measured = run_floor(reference, output, progress, **flags)
    if as_json:
        click.echo(measured.result.model_dump_json(indent=2))
        return
    for name, metric in measured.result.metrics.items():
        if name.startswith(("margin.", "kld.", "top1", "tie_width")) and metric.value is not None:
            click.echo(f"{name:<20}{metric.value:>12.5f} {metric.unit:<12} n={metric.n}")
    click.echo(f"Floor: {output}; in a plan: `floor: {output}`", err=True)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--reference", type=click.Path(path_type=Path), help="BF16 model folder on this machine.")
@click.option("--device", help="Where the reference runs: auto (default), cpu, cuda, cuda:1.")
@click.option("--ray", metavar="ADDRESS", help="Score on this Ray cluster (extra `ray`); local starts one here.")
@click.option("--tensor-parallel", type=click.IntRange(min=1), metavar="N", help="Cut the reference over N GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the line.")
@sentences
def score(run: Path, reference: Path | None, *, as_json: bool, **where: Any) -> None:
    """Score and judge a RUN whose engines were driven elsewhere (`gate --collect-only`). Needs no engine.

    Collect on the serving box, copy the run directory, score where the GPU is.
    """
    from harness import pipeline
    from harness.cli.gating import say_verdict
    from harness.late_scoring import score_run

    with progress_bar() as progress:
        verdict = score_run(run, reference, progress, **where)
    say_verdict(verdict, run, as_json=as_json)
    sys.exit(pipeline.exit_code(verdict))


def _verify_plan(flags: dict[str, Any]) -> VerifyPlan:
    from harness.verify_plan import check_verify, make_verify, verify_data

    for key, flag in (("endpoints", "--endpoint NAME=URL"), ("model", "--model")):
        if not flags[key]:
            raise UsageError(f"{flag} is missing.")
    return check_verify(make_verify(verify_data(flags), source="command line", folder=Path.cwd()))


def _print(table: AccuracyTable, root: Path) -> None:
    from harness.accuracy_table import as_tables

    console = table_console(150)
    for one in as_tables(table):
        console.print(one)
    for endpoint in table.endpoints:
        click.echo(f"{endpoint.name}: {endpoint.status} {endpoint.reason}")
        for sentence in (*endpoint.broken, *endpoint.notes):
            click.echo(f"  {sentence}", err=True)
    click.echo(f"Run: {root}; the same as data: {root / 'accuracy.json'}", err=True)

"""`enginegate doctor`: commands that measure and pass no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import progress_bar, sentences
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.checkup import Checkup


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


def _print(found: Checkup) -> None:
    from rich.console import Console
    from rich.text import Text

    from harness.calibration import calibration_table
    from harness.doctor import doctor_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    if found.endpoints:
        console.print(doctor_table(found.endpoints))
    for diagnosis in found.endpoints:
        for sentence in diagnosis.consequences or ("Nothing here limits a gate.",):
            console.print(Text(f"{diagnosis.endpoint}: {sentence}"))
    if found.biases:
        console.print(calibration_table(found.biases))
    for line in found.measurable:
        console.print(Text(line))

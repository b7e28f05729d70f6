"""`enginegate recheck` and `enginegate report`: commands that only read run directories."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.cli.console import progress_bar, sentences
from harness.errors import UsageError


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@sentences
def recheck(run: Path, *, as_json: bool) -> None:
    """Re-derive the verdict of RUN from its raw files; name every file that is not what it was. Needs no engine.

    Exit code: that of the verdict when everything agrees, 5 when anything differs.
    """
    import orjson

    from harness.recheck import recheck_run

    with progress_bar() as progress:
        found = recheck_run(run, progress)
    click.echo(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2).decode() if as_json else found.sentence)
    sys.exit(found.exit_code)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@sentences
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Write one self-contained HTML page for one RUN, or a comparison of several."""
    from reports.html import write_report

    for run in runs:
        if not (run / "plan.yaml").is_file():
            raise UsageError(f"{run} is no run directory: it holds no plan.yaml.")
    click.echo(write_report(runs, output))

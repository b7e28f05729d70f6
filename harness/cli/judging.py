"""`enginegate recheck` and `enginegate report`: commands that only read run directories."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.cli.console import RUNS, progress_bar, sentences
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
@click.argument("runs", type=click.Path(path_type=Path), default=RUNS)
@click.option("--json", "as_json", is_flag=True, help="Print every line of the history as JSON.")
@sentences
def history(runs: Path, *, as_json: bool) -> None:
    """Every attempt in RUNS (a folder of runs, or a history.jsonl): what came of it, and that none is missing.

    Exit code 5 when the chain is broken, its end was cut off, or a verdict is not the one that was recorded.
    """
    import orjson

    from harness.attempts import verified
    from harness.history import table, trend

    attempts = verified(runs)
    if as_json:
        lines = [one.model_dump(mode="json") for one in attempts]
        click.echo(orjson.dumps(lines, option=orjson.OPT_INDENT_2).decode())
        return
    rows = [("#", "time (UTC)", "mode", "verdict", "passed", "", "first in the way", "run"), *table(attempts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo(trend(attempts), err=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Also write every chart as a PNG into this folder.")
@click.option("--csv", type=click.Path(path_type=Path), help="Also write every table as a CSV into this folder.")
@click.option(
    "--markdown", type=click.Path(path_type=Path), help="Also write the first screen as Markdown to this file."
)
@sentences
def report(runs: tuple[Path, ...], output: Path, png: Path | None, csv: Path | None, markdown: Path | None) -> None:
    """Write one self-contained HTML page for one RUN, or a comparison of several.

    Example: enginegate report runs/a runs/b -o compared.html --csv tables
    """
    from reports.export import write_csv, write_png
    from reports.html import write_report
    from reports.markdown import comparison, summary

    try:
        click.echo(write_report(runs, output))
        for path in write_png(runs, png) if png else ():
            click.echo(path, err=True)
        for path in write_csv(runs, csv) if csv else ():
            click.echo(path, err=True)
        if markdown:
            text = summary(runs[0]) if len(runs) == 1 else comparison(runs)
            markdown.write_text(text, encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(_why(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written ({error.strerror}); name another place.") from None


def _why(error: FileNotFoundError) -> str:
    if error.filename is None:  # the report's own sentence on a folder that holds no run
        return f"{error} A run directory is what enginegate gate wrote, by default under runs/."
    return f"{error.filename}: its folder does not exist; make it first or name another place."

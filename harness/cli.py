"""The command line. The only module that knows click, prints, or turns an error into an exit code."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from harness import __version__
from harness.errors import EnginegateError, UsageError
from harness.progress import Progress

RUNS = Path("runs")
PLAIN_PROGRESS_S = 10
TIERS = ("smoke", "gate", "nightly")
P = ParamSpec("P")
R = TypeVar("R")


class _Failure(click.ClickException):
    """An error for a person: its sentences on stderr, its own exit code, no traceback."""

    def __init__(self, error: EnginegateError) -> None:
        super().__init__(str(error))
        self.exit_code = int(error.exit_code)  # type: ignore[misc]  # click declares it on the class


def _sentences(command: Callable[P, R]) -> Callable[P, R]:
    """Turn enginegate's own errors into sentences; anything else stays a traceback, because it is a bug."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except EnginegateError as error:
            raise _Failure(error) from None

    return wrapped


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="enginegate")
def main() -> None:
    """Judge whether an LLM inference engine is really better: the bytes that are timed are the bytes that are graded.

    Exit codes: 0 PASS, 1 a bug here, 2 bad arguments or plan, 3 FAIL, 4 INCONCLUSIVE, 5 INVALID.
    """
    # A CI job is ended by SIGTERM: engines and AIPerf must go down with it, as they do on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@main.command()
@click.argument("plan", type=click.Path(path_type=Path), required=False)
@click.option("--baseline", metavar="URL", help="Baseline endpoint, instead of a plan file.")
@click.option("--candidate", metavar="URL", help="Candidate endpoint, instead of a plan file.")
@click.option("--model", "-m", help="Model name that both endpoints serve.")
@click.option("--reference", type=click.Path(path_type=Path), help="Local BF16 model folder.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="Folder with tokenizer.json (default: the reference)."
)
@click.option(
    "--profile", "profiles", multiple=True, help="Traffic profile; repeatable (see: enginegate profiles list)."
)
@click.option("--concurrency", help="Concurrencies, e.g. 1,8,32 (default: the profile's own).")
@click.option("--policy", help="beat-by-20, no-regression, or a file of criteria.")
@click.option("--criterion", "criteria", multiple=True, help='Extra criterion, e.g. "ttft.p95 <= 200ms"; repeatable.')
@click.option("--pairs", help="Pairs of visits: one look (6) or two (6,12). Fewer than 5 make a quick run.")
@click.option("--seed", type=int, help="Seed of every prompt and every order.")
@click.option("--quick", is_flag=True, help="2 pairs of the smoke tier: minutes, PROVISIONAL, refused by CI.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory (default: runs/<time>).")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir; only the step in flight is repeated.")
@click.option("--dry-run", is_flag=True, help="Print the resolved plan, cells, requests and tokens; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the line.")
@_sentences
def gate(plan: Path | None, run_dir: Path | None, *, resume: bool, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Gate a candidate engine against a baseline: faster, as right, honest, or the reason why not.

    PLAN is a YAML file (README, "A plan"); without one, give --baseline, --candidate, --model, --reference, --profile.
    """
    from harness import pipeline
    from harness.plan import check_files
    from harness.run_store import RunStore

    if resume and run_dir is None:
        raise UsageError("--resume needs --run-dir: the run to go on with.")
    resolved = _plan_from(plan, flags) if not resume or plan else None
    if dry_run:
        click.echo(pipeline.dry_run(resolved or pipeline.stored_plan(run_dir or RUNS)))
        return
    root = run_dir or RUNS / time.strftime("%Y%m%d-%H%M%S")
    if resolved:
        pipeline.check(resolved)  # before the directory is made: a refused plan leaves nothing behind
    store = RunStore.open(root) if resume else RunStore.create(root)
    with _progress() as progress:
        verdict = pipeline.gate(resolved or check_files(pipeline.stored_plan(root)), store, progress)
    _say(verdict, root, as_json=as_json)
    sys.exit(pipeline.exit_code(verdict))


@main.command()
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the three runs go (default: runs/demo-<time>).")
@click.option("--resume", is_flag=True, help="Go on with the demo in --run-dir.")
@click.option("--json", "as_json", is_flag=True, help="Print the three verdicts as JSON.")
@_sentences
def demo(run_dir: Path | None, *, resume: bool, as_json: bool) -> None:
    """Gate three engines on this machine: an honest one, a fast but wrong one, and one that says "a".

    Needs the `demo` extra; no GPU, no network. A real 135M model, real llama.cpp, real AIPerf.
    """
    import orjson

    from harness.demo import explain, run_demo

    root = run_dir or RUNS / time.strftime("demo-%Y%m%d-%H%M%S")
    with _progress() as progress:
        outcome = run_demo(root, progress, resume=resume)
    click.echo(orjson.dumps(outcome.as_json(), option=orjson.OPT_INDENT_2).decode() if as_json else explain(outcome))


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@_sentences
def recheck(run: Path, *, as_json: bool) -> None:
    """Re-derive the verdict of RUN from its raw files; name every file that is not what it was. Needs no engine.

    Exit code: that of the verdict when everything agrees, 5 when anything differs.
    """
    import orjson

    from harness.recheck import recheck_run

    with _progress() as progress:
        found = recheck_run(run, progress)
    click.echo(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2).decode() if as_json else found.sentence)
    sys.exit(found.exit_code)


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@_sentences
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Write one self-contained HTML page for one RUN, or a comparison of several."""
    from reports.html import write_report

    for run in runs:
        if not (run / "plan.yaml").is_file():
            raise UsageError(f"{run} is no run directory: it holds no plan.yaml.")
    click.echo(write_report(runs, output))


@main.group()
def profiles() -> None:
    """Traffic profiles: what can be driven, and why it is shaped so."""


@profiles.command("list")
@click.option("--tier", type=click.Choice(TIERS), default="gate", show_default=True)
@_sentences
def list_(tier: str) -> None:
    """Every built-in profile with its purpose."""
    from traffic_profiles.describe import catalogue

    rows = catalogue(tier)
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['purpose']}")


@profiles.command()
@click.argument("name")
@click.option("--tier", type=click.Choice(TIERS), default="gate", show_default=True)
@_sentences
def show(name: str, tier: str) -> None:
    """One profile (a name or a file), resolved for a tier."""
    from traffic_profiles import describe

    click.echo(_profile_sentence(describe.show, name, tier))


@profiles.command()
@click.argument("file", type=click.Path(path_type=Path))
@_sentences
def check(file: Path) -> None:
    """Read a profile FILE as a gate would and say what is wrong with it, or that nothing is."""
    from traffic_profiles import describe

    for line in _profile_sentence(describe.check, file):
        click.echo(line)


def _profile_sentence(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    from traffic_profiles.profile import ProfileError

    try:
        return function(*args, **kwargs)
    except ProfileError as error:
        raise UsageError(str(error)) from None


def _plan_from(path: Path | None, flags: dict[str, Any]) -> Any:
    from harness.plan import check_files, load_plan, make_plan, plan_data

    changes = _plan_changes(flags)
    if path is not None:
        return load_plan(path, changes) if changes else load_plan(path)
    needed = [name for name in ("baseline", "candidate", "model", "profiles") if not flags[name]]
    if needed:
        names = ", ".join("--" + name.removesuffix("s") for name in needed)
        raise UsageError(f"Give a PLAN file, or {names} as well.")
    return check_files(make_plan(plan_data(flags) | changes, source="command line", folder=Path.cwd()))


def _plan_changes(flags: dict[str, Any]) -> dict[str, Any]:
    """What flags change about a plan, in the plan's own keys."""
    changes: dict[str, Any] = {}
    for key in ("policy", "seed"):
        if flags[key] is not None:
            changes[key] = flags[key]
    if flags["criteria"]:
        changes["criteria"] = list(flags["criteria"])
    if flags["quick"]:
        changes |= {"pairs": [2], "tier": "smoke"}
    if flags["pairs"]:
        changes["pairs"] = _integers("--pairs", flags["pairs"])
    return changes


def _integers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag}: {text!r} is no list of whole numbers such as 6,12.") from None


def _say(verdict: Any, root: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(verdict.model_dump_json(indent=2))
        return
    click.echo(verdict.line.replace(f"run={root.name}", f"run={root}"))
    click.echo(verdict.sentence, err=True)
    if verdict.next_step:
        click.echo(f"Next: {verdict.next_step}", err=True)
    click.echo(f"Report: {root / 'report.html'}", err=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress on stderr: a live bar in a terminal, a line now and then in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_progress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def draw(doing: str, share: float | None = None) -> None:
            bar.update(task, description=doing, total=None if share is None else 1.0, completed=share or 0.0)

        yield draw


def _plain_progress() -> Progress:
    began = time.monotonic()
    last_at, last_stage = -float(PLAIN_PROGRESS_S), ""

    def draw(doing: str, share: float | None = None) -> None:
        nonlocal last_at, last_stage
        now, stage = time.monotonic() - began, doing.partition(":")[0]
        if stage == last_stage and now - last_at < PLAIN_PROGRESS_S:
            return
        last_at, last_stage = now, stage
        click.echo(f"[{now:6.1f} s] {doing}" + ("" if share is None else f" ({share:.0%})"), err=True)

    return draw

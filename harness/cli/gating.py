"""`enginegate gate` and `enginegate demo`: commands that run engines and end in a verdict."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from harness.cli.console import RUNS, progress_bar, sentences
from harness.errors import UsageError


@click.command()
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
@click.option("--concurrency", help="1,2,4..256 or 1..256x2 (default: the profile's own).")
@click.option("--policy", help="beat-by-20, no-regression, or a file of criteria.")
@click.option("--tasks", help="lm-eval tasks inside the timed stream, e.g. offline-pack,gsm8k (docs/tasks.md).")
@click.option("--criterion", "criteria", multiple=True, help='Extra criterion, e.g. "ttft.p95 <= 200ms"; repeatable.')
@click.option("--pairs", help="Pairs of visits: one look (6) or two (6,12). Fewer than 5 make a quick run.")
@click.option("--seed", type=int, help="Seed of every prompt and every order.")
@click.option("--quick", is_flag=True, help="3 pairs of the smoke tier: minutes, PROVISIONAL, refused by CI.")
@click.option("--full", is_flag=True, help="Refuse (exit 2) to start a run that would be quick.")
@click.option(
    "--ci/--no-ci", default=None, help="Whether this is a CI job, which refuses a quick run (default: the CI variable)."
)
@click.option(
    "--on-inconclusive",
    type=click.Choice(["fail", "neutral", "pass"]),
    default="fail",
    show_default=True,
    help="INCONCLUSIVE exits 4 (fail), or 0 with a warning (neutral), or 0 (pass). The verdict stays what it is.",
)
@click.option(
    "--aa",
    is_flag=True,
    help="Baseline against itself, at the plan's first look: how noisy is this machine, can it be trusted?",
)
@click.option("--collect-only", is_flag=True, help="Drive the engines and score nothing (see: enginegate score).")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory (default: runs/<time>).")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir; only the step in flight is repeated.")
@click.option("--dry-run", is_flag=True, help="Print the resolved plan, cells, requests and tokens; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the line.")
@sentences
def gate(
    plan: Path | None, run_dir: Path | None, *, aa: bool, resume: bool, dry_run: bool, as_json: bool, **flags: Any
) -> None:
    """Gate a candidate engine against a baseline: faster, as right, honest, or the reason why not.

    PLAN is a YAML file (README, "A plan"); without one, give --baseline, --candidate, --model, --reference, --profile.
    """
    from harness import modes, pipeline
    from harness.forecast import forecast
    from harness.resuming import resumed_plan

    if flags["quick"] and flags["full"]:
        raise UsageError("--quick and --full contradict each other; give one of them.")
    if resume and run_dir is None:
        raise UsageError("--resume needs --run-dir: the run to go on with.")
    resolved: Any = _resolved(plan, flags, aa=aa) if plan or not resume else None
    if dry_run:
        runs = run_dir.parent if run_dir else RUNS
        click.echo(forecast(resolved or pipeline.stored_plan(run_dir or RUNS), runs))
        return
    root = run_dir or RUNS / time.strftime("%Y%m%d-%H%M%S")
    if resume:
        resolved = resumed_plan(root, resolved)
    modes.refuse_quick(resolved, full=flags["full"], ci=modes.in_ci(flags["ci"]))
    pipeline.check(resolved)  # before the directory is made: a refused plan leaves nothing behind
    drive = _gate_aa if resolved.aa else _collect if flags["collect_only"] else _gate_attempt
    drive(resolved, root, resume=resume, as_json=as_json, on_inconclusive=flags["on_inconclusive"])


def _resolved(path: Path | None, flags: dict[str, Any], *, aa: bool) -> Any:
    """The plan that was asked for, made quick or into an A/A run."""
    from harness import modes
    from harness.aa_run import as_aa

    plan = _plan_from(path, flags)
    plan = as_aa(plan) if aa else plan
    if not flags["quick"]:
        return plan
    plan, dropped = modes.quick(plan)
    for criterion in dropped:
        click.echo(f"A quick run is too small to judge {criterion}; the full run will.", err=True)
    return plan


def _gate_attempt(plan: Any, root: Path, *, resume: bool, as_json: bool, on_inconclusive: str) -> None:
    """Drive a gate as an attempt of its history, say its verdict, end the process with its exit code."""
    from harness import attempts, pipeline

    secret = attempts.secret_of(plan)
    if not resume and (earlier := attempts.standing(plan, root)):
        _say_standing(earlier, root, as_json=as_json)
    store = _store(root, resume=resume)
    pipeline.prepare(plan, store)
    attempt = attempts.start(plan, store, secret)
    with progress_bar() as progress:
        verdict = pipeline.gate(plan, store, progress, attempts.prompt_seed(attempt, secret))
    attempts.finish(attempt, store, verdict)
    for note in (note for note in verdict.notes if note.startswith("Isolation: ")):
        click.echo(f"warning: {note}", err=True)
    say_verdict(verdict, root, as_json=as_json)
    sys.exit(_exit_code(verdict, on_inconclusive))


def _store(root: Path, *, resume: bool) -> Any:
    from harness.run_store import RunStore

    return RunStore.open(root) if resume else RunStore.create(root)


def _say_standing(earlier: Any, root: Path, *, as_json: bool) -> None:
    """A build whose looks are spent gets no other: say which verdict stands and end with its exit code."""
    from harness.errors import ExitCode

    line = f"VERDICT {earlier.status} {earlier.passed}/{earlier.judged} worst={earlier.worst or '-'} run={earlier.run}"
    click.echo(earlier.model_dump_json(indent=2) if as_json else line)
    click.echo(
        f"Attempt {earlier.attempt} judged this build under this plan with {earlier.pairs} pairs, and its verdict "
        f"stands: a repeat gets no further look. Nothing was run, {root} was not made. Change the build or the plan.",
        err=True,
    )
    sys.exit(int(ExitCode[earlier.status.name]))


def _collect(plan: Any, root: Path, *, resume: bool, **_: Any) -> None:
    """Drive the first look as an attempt of its history and leave the scoring to `enginegate score`."""
    from harness import attempts, pipeline
    from harness.late_scoring import collect_run

    secret, store = attempts.secret_of(plan), _store(root, resume=resume)
    pipeline.prepare(plan, store)
    seed = attempts.prompt_seed(attempts.start(plan, store, secret), secret)
    with progress_bar() as progress:
        pairs = collect_run(plan, store, progress, seed)
    click.echo(f"COLLECTED {pairs} pairs run={root}")
    click.echo(f"Score it where the reference is: enginegate score {root} --reference DIR", err=True)


def _exit_code(verdict: Any, on_inconclusive: str) -> int:
    from harness import pipeline
    from harness.verdict import Status

    if verdict.status is not Status.INCONCLUSIVE or on_inconclusive == "fail":
        return pipeline.exit_code(verdict)
    if on_inconclusive == "neutral":
        sentence = "The gate is INCONCLUSIVE, and --on-inconclusive neutral lets the job go on."
        click.echo(f"::warning title=enginegate::{sentence}" if _on_github() else sentence, err=True)
    return 0


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _gate_aa(plan: Any, root: Path, *, resume: bool, as_json: bool, **_: Any) -> None:
    """Drive an A/A run, say what it found, end the process with its exit code."""
    from harness.aa_run import run_aa
    from harness.errors import ExitCode

    with progress_bar() as progress:
        result = run_aa(plan, _store(root, resume=resume), progress)
    click.echo(result.model_dump_json(indent=2) if as_json else f"{result.line} run={root}")
    click.echo(result.sentence, err=True)
    click.echo(f"Report: {root / 'report.html'}", err=True)
    sys.exit(int(ExitCode[result.status.name]))


@click.command()
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the three runs go (default: runs/demo-<time>).")
@click.option("--resume", is_flag=True, help="Go on with the demo in --run-dir.")
@click.option("--json", "as_json", is_flag=True, help="Print the three verdicts as JSON.")
@sentences
def demo(run_dir: Path | None, *, resume: bool, as_json: bool) -> None:
    """Gate three engines on this machine: an honest one, a fast but wrong one, and one that says "a".

    Needs the `demo` extra; no GPU, no network. A real 135M model, real llama.cpp, real AIPerf.
    """
    import orjson

    from harness.demo import explain, run_demo

    root = run_dir or RUNS / time.strftime("demo-%Y%m%d-%H%M%S")
    with progress_bar() as progress:
        outcome = run_demo(root, progress, resume=resume)
    click.echo(orjson.dumps(outcome.as_json(), option=orjson.OPT_INDENT_2).decode() if as_json else explain(outcome))


_INSTEAD = ("baseline", "candidate", "model", "reference", "tokenizer", "profiles", "concurrency")


def _plan_from(path: Path | None, flags: dict[str, Any]) -> Any:
    from harness.plan import check_files, load_plan, make_plan, plan_data

    changes = _plan_changes(flags)
    if path is not None:
        unused = [name for name in _INSTEAD if flags[name]]
        if unused:
            flag = "--" + unused[0].removesuffix("s")
            raise UsageError(f"{flag} is for a gate without a PLAN file; {path} says this: change it there.")
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
    if flags["tasks"]:
        changes["tasks"] = [name.strip() for name in flags["tasks"].split(",")]
    if flags["pairs"]:
        changes["pairs"] = _integers("--pairs", flags["pairs"])
    return changes


def _integers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag}: {text!r} is no list of whole numbers such as 6,12.") from None


def say_verdict(verdict: Any, root: Path, *, as_json: bool) -> None:
    """The line on stdout, what to do next on stderr."""
    if as_json:
        click.echo(verdict.model_dump_json(indent=2))
        return
    if _on_github():
        from reports.annotations import github_annotations

        for command in github_annotations(root):
            click.echo(command, err=True)
    click.echo(verdict.line.replace(f"run={root.name}", f"run={root}"))
    click.echo(verdict.sentence, err=True)
    if verdict.next_step:
        click.echo(f"Next: {verdict.next_step}", err=True)
    click.echo(f"Report: {root / 'report.html'}", err=True)

"""What every command shares: errors as sentences with an exit code, and progress on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from harness.errors import EnginegateError
from harness.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

RUNS = Path("runs")
TIERS = ("smoke", "gate", "nightly")
PLAIN_PROGRESS_S = 10
P = ParamSpec("P")
R = TypeVar("R")


class _Failure(click.ClickException):
    """An error for a person: its sentences on stderr, its own exit code, no traceback."""

    def __init__(self, error: EnginegateError) -> None:
        super().__init__(str(error))
        self.exit_code = int(error.exit_code)  # type: ignore[misc]  # click declares it on the class


def sentences(command: Callable[P, R]) -> Callable[P, R]:
    """Turn enginegate's own errors into sentences; anything else stays a traceback, because it is a bug."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except EnginegateError as error:
            raise _Failure(error) from None

    return wrapped


def table_console(width: int) -> Console:
    """Where tables go: the terminal as wide as it is, so many columns in a log."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=width)


@contextmanager
def progress_bar() -> Iterator[Progress]:
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

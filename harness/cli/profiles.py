"""`enginegate profiles`: what can be driven, and why it is shaped so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from harness.cli.console import TIERS, sentences
from harness.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


@click.group()
def profiles() -> None:
    """Traffic profiles: what can be driven, and why it is shaped so."""


@profiles.command("list")
@click.option("--tier", type=click.Choice(TIERS), default="gate", show_default=True)
@sentences
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
@sentences
def show(name: str, tier: str) -> None:
    """One profile (a name or a file), resolved for a tier."""
    from traffic_profiles import describe

    click.echo(_profile_sentence(describe.show, name, tier))


@profiles.command()
@click.argument("file", type=click.Path(path_type=Path))
@sentences
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

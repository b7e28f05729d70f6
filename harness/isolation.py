"""What an engine under test could reach of its judge: secrets, environment, run directory.

An engine started by the judge gets the judge's environment without the secrets that the plan names. Whether the rest
of the wall stands is the operator's business; what can be seen from here is said in the verdict (docs/threat-model.md).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.processes import session
from harness.run_store import read_json
from harness.traffic_plan import TrafficPlan


def without_secrets(plan: TrafficPlan, own: str | None) -> dict[str, str]:
    """This process's environment without the variables that the plan names as keys and secrets.

    own: the endpoint's own key variable, which its engine and its load generator may have.
    """
    hidden = set(_secret_variables(plan.model_dump())) - {own}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _secret_variables(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if str(key).endswith("api_key_env") and isinstance(value, str):
                yield value
            elif str(key).endswith("secret") and isinstance(value, str) and value.startswith("env:"):
                yield value.removeprefix("env:")
            else:
                yield from _secret_variables(value)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _secret_variables(item)


def exposures(sid: int, run: Path) -> tuple[str, ...]:
    """Sentences on what a launched engine could reach, for each process of its session that started no other.

    sid: session id of the engine. An engine behind a container client runs elsewhere and is not seen here.
    """
    found: dict[str, None] = {}
    for process in _leaves(sid):
        with suppress(psutil.Error, OSError):
            found |= dict.fromkeys(_exposures_of(process, run))
    return tuple(found)


def _leaves(sid: int) -> list[psutil.Process]:
    members = session(sid)
    parents = set()
    for process in members:
        with suppress(psutil.Error):
            parents.add(process.ppid())
    return [process for process in members if process.pid not in parents]


def _exposures_of(process: psutil.Process, run: Path) -> Iterator[str]:
    user, groups = process.uids().effective, {process.gids().effective}
    if _same_namespace(process.pid, "mnt") and writable(run, user, groups):
        yield "it can write the run directory, so it could change what it is judged by"
    if user in (os.geteuid(), 0) and _same_namespace(process.pid, "pid"):
        yield "it runs as the judge's own user, so it could read the judge's environment and memory"


def writable(folder: Path, user: int, groups: set[int]) -> bool:
    """May this user create and replace files in the folder?"""
    about = folder.stat()
    if user == 0:
        return True
    if about.st_uid == user:
        return bool(about.st_mode & stat.S_IWUSR)
    return bool(about.st_mode & (stat.S_IWGRP if about.st_gid in groups else stat.S_IWOTH))


def _same_namespace(pid: int, kind: str) -> bool:
    """True unless the process is known to live in another namespace of this kind."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()
    except OSError:
        return True


def isolation_notes(root: Path) -> tuple[str, ...]:
    """What the engines of a run could reach, for its verdict."""
    notes = []
    for file in sorted(root.glob("engines/*.json")):
        for sentence in read_json(file).get("exposures") or ():
            notes.append(f"Isolation: the {file.stem} was started on this machine and {str(sentence)[:200]}.")
    return tuple(notes)

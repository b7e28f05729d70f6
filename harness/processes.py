"""Processes enginegate owns: started in their own session, recorded on disk, ended as a whole, even after a kill -9.

A launched engine and AIPerf both start children. Each gets its own session, so everything it starts can be found by
session id. A record in the user's state folder outlives enginegate itself: the next start ends what a killed one left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import platformdirs
import psutil


def _records() -> Path:
    return platformdirs.user_state_path("enginegate") / "processes"


@dataclass(frozen=True)
class OwnedProcess:
    """A running session leader and its record."""

    popen: subprocess.Popen[bytes]
    record: Path
    log: Path

    @property
    def pid(self) -> int:
        """Process id, which is also the session and group id."""
        return self.popen.pid

    def running(self) -> bool:
        """True until the leader has exited."""
        return self.popen.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """True as soon as the leader has exited, False after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=seconds)
        return not self.running()

    def stop(self, grace_s: float = 10) -> None:
        """End the whole session: SIGTERM, then SIGKILL after `grace_s`; the record goes last."""
        _end_session(self.pid, grace_s, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=5)
        self.record.unlink(missing_ok=True)

    def interrupt(self, wait_s: float) -> bool:
        """Ask with SIGINT, as a person would; True when the leader left within `wait_s`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGINT)
        return self.ends_within(wait_s)


def start(
    command: Sequence[str] | str, *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> OwnedProcess:
    """Start `command` (a string goes to the shell) in its own session with both outputs appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        popen = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    record = _records() / f"{popen.pid}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    owner = psutil.Process()
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(popen.pid).create_time()
        entry = {"pid": popen.pid, "created": started, "owner": owner.pid, "owner_created": owner.create_time()}
        record.write_bytes(orjson.dumps(entry))
    return OwnedProcess(popen, record, log)


def leave_on_sigterm() -> None:
    """A CI job is ended by SIGTERM: engines and AIPerf must go down with this process, as they do on Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def end_orphans() -> int:
    """End every recorded session whose enginegate is gone; return how many were still alive."""
    ended = 0
    for record in _records().glob("*.json"):
        try:
            entry = orjson.loads(record.read_bytes())
            owner_alive = _is_same(entry["owner"], entry["owner_created"])
        except (orjson.JSONDecodeError, KeyError, OSError):
            record.unlink(missing_ok=True)
            continue
        if owner_alive:
            continue
        # A reused pid is somebody else's session; children of a dead leader still carry its session id, and the
        # kernel does not hand out a pid that is in use as a session id.
        if _is_same(entry["pid"], entry["created"]) or not psutil.pid_exists(entry["pid"]):
            ended += _end_session(entry["pid"], 5, signal.SIGTERM)
        record.unlink(missing_ok=True)
    return ended


def _is_same(pid: int, created: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - created) < 1 and psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def session(sid: int) -> list[psutil.Process]:
    """Every living process of a session."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(process.pid) == sid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _end_session(sid: int, grace_s: float, first: signal.Signals) -> int:
    members = session(sid)
    for process in members:
        with suppress(psutil.Error):
            process.send_signal(first)
    deadline = time.monotonic() + grace_s
    while session(sid) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in session(sid):
        with suppress(psutil.Error):
            process.kill()
    return len(members)

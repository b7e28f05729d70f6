"""What enginegate starts, it ends: whole sessions, and after a kill -9 at the next start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness import processes

# A leader that starts a child in its own process group: ending one group would leave the child behind.
FAMILY = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import os, time; os.setpgid(0, 0); time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def _own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _child_pid(log: Path) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().strip():
            return int(log.read_text())
        time.sleep(0.01)
    raise AssertionError("the child did not start")


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_stop_ends_children_in_other_groups(tmp_path: Path) -> None:
    process = processes.start([sys.executable, "-c", FAMILY], log=tmp_path / "log")
    child = _child_pid(tmp_path / "log")
    process.stop(grace_s=5)
    assert not process.running() and _gone(child)
    assert not process.record.exists()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0, flush=True); time.sleep(60)"
    )
    process = processes.start([sys.executable, "-c", stubborn], log=tmp_path / "log")
    _child_pid(tmp_path / "log")
    process.stop(grace_s=0.2)
    assert not process.running()


def test_the_next_start_ends_what_a_killed_enginegate_left(tmp_path: Path) -> None:
    owner = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom harness import processes\n"
        f"processes.start([sys.executable, '-c', {FAMILY!r}], log=Path({str(tmp_path / 'log')!r}))\n"
        "import time\nwhile not Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", owner, str(tmp_path / "go")], env=dict(os.environ))
    child = _child_pid(tmp_path / "log")
    assert processes.end_orphans() == 0, "its owner lives: hands off"
    assert not _gone(child)
    (tmp_path / "go").touch()
    running.wait(timeout=10)
    assert processes.end_orphans() == 2
    assert _gone(child)
    assert processes.end_orphans() == 0

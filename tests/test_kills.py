"""A gate that is killed leaves nothing behind and goes on where it stopped. Slow: `make acceptance`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from harness.demo import MODEL_NAME, candidates, free_ports, llama_server
from harness.demo_models import prepare_models

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

ENGINEGATE = str(Path(sys.executable).with_name("enginegate"))
# What standard error says when the gate is: starting an engine, in the middle of a visit, scoring.
MOMENTS = ("candidate: waiting for the engine", "candidate: ", "scoring the baseline")


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(
        [ENGINEGATE, "gate", *arguments, "--run-dir", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _plan(folder: Path) -> Path:
    models, ports = prepare_models(), free_ports(2)
    plan = {
        "model": MODEL_NAME,
        "reference": {"path": str(models.reference)},
        "endpoints": {
            "baseline": {
                "url": f"http://127.0.0.1:{ports[0]}",
                "launch": llama_server(models.gguf["Q4_1"], ports[0], threads=1),
            },
            "candidate": {"url": f"http://127.0.0.1:{ports[1]}", "launch": candidates(models, ports[1])[-1].launch},
        },
        "profiles": ["smoke"],
        "pairs": [2],
        "floor_tokens": 64,
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def _wait_for(process: subprocess.Popen[str], moment: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if moment in line and (moment != "candidate: " or " requests" in line):
            return
    raise AssertionError(f"the gate ended with {process.wait()} before: {moment}")


def _ours(folder: Path) -> list[str]:
    """Engines and AIPerf processes of this test that are alive: everything a gate starts inherits its environment."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        with suppress(psutil.Error):
            ours = process.environ().get("XDG_STATE_HOME") == str(folder / "state")
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or [])[:100])
    return found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_gate_leaves_nothing_and_goes_on(tmp_path: Path, moment: str, how: signal.Signals) -> None:
    process = _start(tmp_path, str(_plan(tmp_path)))
    _wait_for(process, moment)
    process.send_signal(how)
    process.communicate(timeout=60)
    if how is not signal.SIGKILL:
        deadline = time.monotonic() + 20
        while _ours(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _ours(tmp_path) == [], "what can be caught ends everything at once"
    unfinished = subprocess.run(
        [ENGINEGATE, "recheck", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert unfinished.returncode == 5 and "never finished" in unfinished.stderr
    finished_before = _steps(tmp_path)

    process = _start(tmp_path, "--resume")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 3 and "VERDICT PROVISIONAL FAIL" in out, err
    assert _ours(tmp_path) == []
    steps = _steps(tmp_path)
    assert steps[: len(finished_before)] == finished_before, "nothing that was finished is done again"
    assert len(steps) == len(set(steps))
    again = subprocess.run([ENGINEGATE, "recheck", str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert again.returncode == 3, again.stdout + again.stderr


def _steps(folder: Path) -> list[str]:
    lines = (folder / "run" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines if line.strip()]

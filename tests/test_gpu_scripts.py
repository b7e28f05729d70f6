"""The scripts for a GPU machine: what can be tried without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts" / "gpu"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_an_unknown_server_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPTS / "serve.sh"), "compiled", "no-such"],
        env={"EG": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such" in done.stderr
    assert not list((tmp_path / "servers").glob("*.pid"))


def test_every_plan_names_a_server_that_is_started() -> None:
    started = set(re.findall(r"echo (81\d\d)", (SCRIPTS / "serve.sh").read_text()))
    for path in (ROOT / "examples" / "gpu").glob("*.yaml"):
        endpoints = yaml.safe_load(path.read_text())["endpoints"]
        assert {arm["url"].rpartition(":")[2] for arm in endpoints.values()} <= started, path.name


def test_requirements_are_exact() -> None:
    lines = [line for line in (SCRIPTS / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines)
    assert "aiperf==0.13.0" in lines


def test_where_the_time_went(tmp_path: Path) -> None:
    steps = [("prepare", 0), ("workload/01", 2), ("visit/01/baseline", 32), ("oracles/01", 40)]
    journal = [{"step": name, "finished_at": f"2026-01-01T00:00:{second:02d}Z"} for name, second in steps]
    (tmp_path / "journal.jsonl").write_text("\n".join(map(json.dumps, journal)))
    visit = tmp_path / "pairs" / "01" / "baseline"
    (visit / "aiperf").mkdir(parents=True)
    (visit / "visit.json").write_text(json.dumps({"started_at": 100.0, "ended_at": 130.0}))
    record = {"metadata": {"request_start_ns": 105_000_000_000, "request_end_ns": 129_000_000_000}}
    (visit / "aiperf" / "profile_export.jsonl").write_text(json.dumps(record))
    command = [sys.executable, str(SCRIPTS / "where_time_went.py"), str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split(" s ")[0].split()[-1] for line in said] == ["24.0", "6.0", "8.0", "2.0", "40.0"]

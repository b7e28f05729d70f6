"""Engine and judge apart: no secret reaches an engine, and what an engine could reach is said in the verdict."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from harness import processes
from harness.endpoint import serving
from harness.errors import InvalidRun
from harness.isolation import exposures, isolation_notes, without_secrets, writable
from harness.plan import Plan, make_plan
from harness.run_store import write_json
from harness.traffic import Visit, _environment

SECRETS = {"CANDIDATE_KEY": "k-candidate", "BASELINE_KEY": "k-baseline", "REF_KEY": "k-ref", "SEALED": "s" * 32}


def _plan(launch: str) -> Plan:
    data = {
        "model": "m",
        "tokenizer": "/nowhere",
        "reference": {"url": "http://127.0.0.1:9", "api_key_env": "REF_KEY"},
        "endpoints": {
            "baseline": {"url": "http://127.0.0.1:9", "api_key_env": "BASELINE_KEY"},
            "candidate": {"url": "http://127.0.0.1:9", "api_key_env": "CANDIDATE_KEY", "launch": launch},
        },
        "profiles": ["smoke"],
        "tasks": ["offline-pack"],
        "task_secret": "env:SEALED",
        "seed": 4242424242,
    }
    return make_plan(data, source="test", folder=Path("/"))


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HARMLESS", "yes")


def test_a_launched_engine_has_its_own_key_and_no_other_secret(tmp_path: Path) -> None:
    log = tmp_path / "engines" / "candidate.log"
    plan = _plan("env; tr '\\0' ' ' < /proc/$$/cmdline; exit 3")
    with pytest.raises(InvalidRun, match="code 3"), serving(plan, "candidate", log):
        pass
    told = log.read_text()
    assert "k-candidate" in told and "HARMLESS=yes" in told
    for secret in ("k-baseline", "k-ref", SECRETS["SEALED"], str(plan.seed)):
        assert secret not in told


def test_the_load_generator_has_the_key_of_whom_it_asks(tmp_path: Path) -> None:
    environment = _environment(Visit(_plan("true"), "baseline", 1, 0, (), tmp_path))
    assert environment["BASELINE_KEY"] == "k-baseline"
    assert not {"CANDIDATE_KEY", "REF_KEY", "SEALED"} & environment.keys()


def test_only_named_variables_are_taken_away() -> None:
    assert os.environ.keys() - without_secrets(_plan("true"), None).keys() == set(SECRETS)


def test_an_engine_of_the_judges_own_user_is_told_of(tmp_path: Path) -> None:
    engine = processes.start("sleep 60 & wait", log=tmp_path / "log")
    try:
        found = exposures(engine.pid, tmp_path)
    finally:
        engine.stop()
    assert len(found) == 2 and "write the run directory" in found[0] and "own user" in found[1]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to become another user")
def test_an_engine_of_another_user_is_not(tmp_path: Path) -> None:
    engine = processes.start("exec setpriv --reuid 65534 --regid 65534 --clear-groups sleep 60", log=tmp_path / "log")
    try:
        while (user := _user_of(engine.pid)) == 0:
            pass
        found = exposures(engine.pid, tmp_path)
    finally:
        engine.stop()
    assert user == 65534 and found == ()


def _user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.parametrize(
    ("mode", "user", "groups", "may"),
    [(0o700, 12345, {12345}, False), (0o702, 12345, {12345}, True), (0o500, 0, {0}, True)],
)
def test_who_may_write_a_folder(tmp_path: Path, mode: int, user: int, groups: set[int], *, may: bool) -> None:
    tmp_path.chmod(mode)
    assert writable(tmp_path, user, groups) is may


def test_what_was_found_is_in_the_verdicts_notes(tmp_path: Path) -> None:
    write_json(tmp_path / "engines" / "candidate.json", {"exposures": ["it can write the run directory"]})
    write_json(tmp_path / "engines" / "baseline.json", {"role": "baseline"})
    (note,) = isolation_notes(tmp_path)
    assert note == "Isolation: the candidate was started on this machine and it can write the run directory."

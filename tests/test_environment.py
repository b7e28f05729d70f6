"""What a run says of the code that judged it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.environment import git_revision
from reports.page import _judge


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("harness", "oracles", "reports", "traffic_profiles"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "-m", "Start")
    return tmp_path


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_commit_names_the_code_that_is_in_it(checkout: Path) -> None:
    (checkout / "notes.txt").touch()  # beside the code
    assert git_revision(checkout) == {"git_revision": _git(checkout, "rev-parse", "HEAD"), "git_dirty": False}


@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_changed_code_is_not_the_commits(checkout: Path, name: str) -> None:
    (checkout / "oracles" / name).write_text("changed = True\n")
    assert git_revision(checkout)["git_dirty"] is True


def test_a_repository_around_an_installed_copy_says_nothing_of_it(checkout: Path) -> None:
    assert git_revision(checkout / "harness") == {"git_revision": None, "git_dirty": None}


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        (
            {"git_revision": "d662a59661a0", "git_dirty": False},
            "enginegate 0.1.0 · revision d662a59661 · code 4428cc9f0d",
        ),
        (
            {"git_revision": "d662a59661a0", "git_dirty": True},
            "enginegate 0.1.0 · revision unknown (changed since d662a59661) · code 4428cc9f0d",
        ),
        ({"git_revision": None, "git_dirty": None}, "enginegate 0.1.0 · revision unknown · code 4428cc9f0d"),
    ],
)
def test_the_identity_strip_names_a_revision_only_where_it_is_the_code(environment: dict[str, Any], shown: str) -> None:
    assert _judge({"enginegate": "0.1.0", "code_sha256": "4428cc9f0d487a7f", **environment}) == shown

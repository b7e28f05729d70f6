"""Scoring on a Ray cluster: the same numbers, and a worker that dies loses nothing. Skipped without Ray."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from oracles.ray_reference import RayReference, open_ray
from oracles.reference import OracleError
from oracles.scoring import ScoreRequest, score
from tests.tiny_model import tiny_folder, tiny_reference


def requests(count: int = 12) -> list[ScoreRequest]:
    rng = np.random.default_rng(3)
    return [ScoreRequest(rng.integers(3, 512, 8).tolist(), rng.integers(3, 512, 10 + n).tolist()) for n in range(count)]


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(OracleError, match=r"--ray needs the extra `ray`.*pip install 'enginegate\[ray\]'"):
        open_ray(tiny_folder(), "local")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match=r"has no config\.json"):
        open_ray(tmp_path, "local")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def reference(cluster: Any) -> RayReference:
    return open_ray(tiny_folder(), "local", dtype="float32")


def test_it_knows_what_the_local_reference_knows(reference: RayReference) -> None:
    ours, local = reference, tiny_reference()
    assert (ours.revision, ours.vocab_size, ours.context_length) == (
        local.revision,
        local.vocab_size,
        local.context_length,
    )
    assert ours.end_token_ids == local.end_token_ids
    with pytest.raises(ValueError, match="outside 0"):
        ours.score([ScoreRequest([1], [9999])])


@pytest.mark.timeout(900)  # Ray starts a worker in seconds on an idle machine, in minutes on a busy one
def test_two_workers_give_what_one_process_gives(reference: RayReference) -> None:
    seen: list[tuple[int, int]] = []
    found = reference.score(requests(), top_k=5, batch_tokens=60, progress=lambda *now: seen.append(now))
    alone = score(tiny_reference(), requests(), top_k=5, batch_tokens=60)
    for ours, theirs in zip(found, alone, strict=True):
        for name in ("logprobs", "ranks", "margins", "entropies", "lse", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert seen[-1] == (sum(map(len, requests())),) * 2


@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_loses_nothing(reference: RayReference) -> None:
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        for child in psutil.Process().children(recursive=True) if not killed else ():
            with contextlib.suppress(psutil.Error):
                if "_Scorer" in " ".join(child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)
                    return

    found = reference.score(requests(40), batch_tokens=40, progress=kill_one)
    assert killed
    alone = score(tiny_reference(), requests(40), batch_tokens=40)
    for ours, theirs in zip(found, alone, strict=True):
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)

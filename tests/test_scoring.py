"""Scoring equals the plain computation, whatever the batch, and never holds [tokens x vocab]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import batching, scoring, token_statistics
from oracles.batching import BATCH_TOKENS_GPU, memory_tokens, padded, shared_prefix
from oracles.scoring import ScoreRequest, TokenScores, batches, score
from oracles.token_statistics import BANNED, Scratch, _one_pass, row_statistics
from tests.tiny_model import tiny_reference

END = 2


def some_requests(lengths: tuple[int, ...] = (9, 40, 3, 17, 40, 1), prompt: int = 6) -> list[ScoreRequest]:
    rng = np.random.default_rng(1)
    return [
        ScoreRequest(rng.integers(3, 512, prompt + i).tolist(), rng.integers(3, 512, n).tolist())
        for i, n in enumerate(lengths)
    ]


def plain(request: ScoreRequest, k: int) -> dict[str, Any]:
    """The textbook computation: full logits, log-softmax, sort."""
    model = tiny_reference().model
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.prompt, *request.output]])).logits[0].double()
    logits = logits[len(request.prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)
    token = torch.tensor(list(request.output))[:, None]
    top = logprobs.topk(k, -1)
    return {
        "logprobs": logprobs.gather(1, token)[:, 0],
        "ranks": (logits > logits.gather(1, token)).sum(-1),
        "margins": logits.max(-1).values - logits.gather(1, token)[:, 0],
        "entropies": -(logprobs.exp() * logprobs).sum(-1),
        "lse": logits.logsumexp(-1),
        "top_ids": top.indices,
        "top_logprobs": top.values,
    }


def test_scores_equal_the_textbook() -> None:
    requests = some_requests()
    for request, scores in zip(requests, score(tiny_reference(), requests, top_k=5), strict=True):
        for name, expected in plain(request, 5).items():
            np.testing.assert_allclose(getattr(scores, name), expected.numpy(), atol=2e-4, err_msg=name)
        kept = np.exp(scores.top_logprobs.astype(float)).sum(-1)
        np.testing.assert_allclose(scores.tail_mass(), 1 - kept, atol=1e-6)


def same(a: list[TokenScores], b: list[TokenScores], atol: float) -> None:
    for x, y in zip(a, b, strict=True):
        for name in ("logprobs", "margins", "entropies", "lse"):
            np.testing.assert_allclose(getattr(x, name), getattr(y, name), atol=atol, err_msg=name)


@pytest.mark.parametrize("tokens", [1, 50, 100_000])
def test_any_batch_gives_the_same_scores(tokens: int) -> None:
    requests = some_requests()
    same(score(tiny_reference(), requests), score(tiny_reference(), requests, batch_tokens=tokens), 1e-4)
    # bf16: one unit in the last place of a logit in [8, 16) is 0.0625
    coarse = tiny_reference("bfloat16")
    same(score(coarse, requests), score(coarse, requests, batch_tokens=tokens), 0.13)


def test_a_cached_prompt_gives_the_same_scores() -> None:
    requests = some_requests()
    same(score(tiny_reference(), requests), score(tiny_reference(), requests, cached=True), 1e-4)


def shared(requests: list[ScoreRequest]) -> int:
    rows = padded([np.array([*r.prompt, *r.output]) for r in requests])
    return shared_prefix(rows, np.array([len(r.prompt) for r in requests]))


def test_a_prefix_that_all_prompts_share_is_computed_once_and_changes_nothing() -> None:
    house = list(range(10, 90))
    requests = [ScoreRequest([*house, 300 + i, 5], list(range(100, 110 + i))) for i in range(6)]
    assert shared(requests) == 80
    assert shared([*requests, ScoreRequest([7, *house], [1])]) == 0
    assert shared(requests[:1]) == 0
    alone = [score(tiny_reference(), [request], top_k=3)[0] for request in requests]
    together = score(tiny_reference(), requests, top_k=3)
    same(alone, together, 1e-4)
    for x, y in zip(alone, together, strict=True):
        np.testing.assert_array_equal(x.top_ids, y.top_ids)


@pytest.mark.parametrize("padded", [False, True])
def test_padding_does_not_leak_into_a_shorter_neighbour(padded: bool) -> None:
    short, long = ScoreRequest([5, 6], [7, 8, 9]), ScoreRequest(list(range(3, 63)), list(range(100, 200)))
    alone = score(tiny_reference(), [short])[0]
    together = score(tiny_reference(), [short, long] if padded else [short, short])[0]
    np.testing.assert_allclose(alone.logprobs, together.logprobs, atol=1e-4)


def test_progress_ends_at_the_total_and_batches_are_of_like_length() -> None:
    seen: list[tuple[int, int]] = []
    requests = some_requests()
    score(tiny_reference(), requests, batch_tokens=60, progress=lambda done, total: seen.append((done, total)))
    total = sum(map(len, requests))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    made = batches(tiny_reference(), requests, 60)
    assert sorted(i for batch in made for i in batch) == list(range(len(requests)))
    lengths = [len(requests[i]) for batch in made for i in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or len(batch) * len(requests[batch[0]]) <= 60 for batch in made)


def test_a_full_batch_is_hardly_padding() -> None:
    lengths = [64] * 32 + [256] * 16 + [1024] * 8 + [2000] * 4
    requests = [ScoreRequest([5], [7] * (n - 1)) for n in lengths]
    made = batches(tiny_reference(), requests, 8192)
    padded = sum(len(batch) * len(requests[batch[0]]) for batch in made)
    assert sum(lengths) / padded > 0.95
    assert sorted(i for batch in made for i in batch) == list(range(len(requests)))


def gpu_model(**config: int) -> Any:
    text = SimpleNamespace(hidden_size=4096, intermediate_size=14336, **config)
    config_of = SimpleNamespace(get_text_config=lambda: text)
    return SimpleNamespace(config=config_of, dtype=torch.bfloat16, device=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("free_gb", "tokens"),
    [(120, BATCH_TOKENS_GPU), (6, 12_200), (3, 1_700), (1, 1)],
    ids=["H200", "6 GB", "3 GB", "1 GB"],
)
def test_a_gpu_batch_follows_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch, free_gb: int, tokens: int
) -> None:
    monkeypatch.setattr(batching, "free_bytes", lambda _: free_gb << 30)
    assert memory_tokens(gpu_model()) == pytest.approx(tokens, rel=0.05)
    work = [ScoreRequest([5], [7] * 99)] * 500
    made = batches(SimpleNamespace(model=gpu_model()), work)  # type: ignore[arg-type]
    assert max(map(len, made)) == max(1, memory_tokens(gpu_model()) // 100)


def test_a_mixture_takes_memory_for_every_expert_that_a_token_goes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "free_bytes", lambda _: 4 << 30)
    mixture = gpu_model(moe_intermediate_size=1024, num_experts_per_tok=8)
    assert memory_tokens(mixture) < memory_tokens(gpu_model()) / 1.5


def test_free_memory_is_that_of_the_fullest_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free, held, used = {0: 50, 1: 20}, {0: 0, 1: 15}, {0: 0, 1: 5}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device.index], 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held[device.index])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: used[device.index])
    places = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=place) for place in places])
    assert batching.free_bytes(model) == 30


def test_memory_running_out_halves_the_batch_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, reference = some_requests(), tiny_reference()
    expected = score(reference, requests)
    forward = scoring._forward

    def short_of_memory(reference: Any, batch: Any, top_k: int, cached: bool) -> list[Any]:
        if len(batch) > 1:
            raise torch.OutOfMemoryError("no")
        return forward(reference, batch, top_k, cached)

    monkeypatch.setattr(scoring, "_forward", short_of_memory)
    reference.notes.clear()
    same(expected, score(reference, requests), 1e-4)
    assert reference.notes[-1] == "memory ran out: scoring went on with 1 sequences at once"
    reference.notes.clear()


def test_a_sequence_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> list[TokenScores]:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(scoring, "_forward", never)
    with pytest.raises(MemoryError, match="does not fit"):
        score(tiny_reference(), some_requests())
    tiny_reference().notes.clear()


def test_another_runtime_error_is_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[TokenScores]:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(scoring, "_forward", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        score(tiny_reference(), some_requests())


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ScoreRequest([], [3]), "at least one token"),
        (ScoreRequest([3], []), "at least one token"),
        (ScoreRequest([3], [512]), "outside 0..511"),
        (ScoreRequest([3], [-1]), "outside 0..511"),
        (ScoreRequest([3], [4, 5], targets=[4]), "1 targets for an answer of 2"),
        (ScoreRequest([3], [4], targets=[600]), "outside 0..511"),
        (ScoreRequest([3] * 2000, [3] * 49), "context of 2048"),
    ],
)
def test_what_cannot_be_scored_is_refused_whole(request_: ScoreRequest, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        score(tiny_reference(), [*some_requests(), request_])


def test_targets_are_scored_in_place_of_the_answer() -> None:
    request = some_requests()[1]
    best = score(tiny_reference(), [request], top_k=1)[0].top_ids[:, 0]
    scores = score(tiny_reference(), [ScoreRequest(request.prompt, request.output, targets=best.tolist())])[0]
    assert (scores.ranks == 0).all()
    assert (scores.margins == 0).all()


def test_forbidden_end_tokens_leave_the_distribution_but_not_their_own_rows() -> None:
    request = ScoreRequest([1, 5, 9, 14], [END, 77, 78])
    free, barred = (
        score(tiny_reference(), [ScoreRequest(request.prompt, request.output, no_end=flag)], top_k=511)[0]
        for flag in (False, True)
    )
    assert free.logprobs[0] == pytest.approx(barred.logprobs[0])  # the end token itself is a target here
    lost = np.exp(free.top_logprobs[1][free.top_ids[1] == END])
    assert barred.logprobs[1] == pytest.approx(free.logprobs[1] - np.log1p(-lost[0]), abs=1e-4)
    assert END not in barred.top_ids[1][:510]
    assert np.isfinite(barred.entropies).all()


class Largest(TorchDispatchMode):
    """Elements of the largest tensor any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_no_tensor_grows_with_tokens_times_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_statistics, "LOGIT_BYTES_CPU", 512 * 4 * 16)
    reference = tiny_reference()
    request = ScoreRequest([3], np.random.default_rng(0).integers(3, 512, 1500).tolist())
    with Largest() as seen:
        score(reference, [request], top_k=20)
    assert seen.elements < 1501 * 512  # the backbone's own activations are 1501 x 256


logit_rows = st.integers(1, 5).flatmap(
    lambda rows: st.tuples(st.integers(0, 2**31), st.just(rows), st.sampled_from([9, 64, 70, 640, 1000, 2048]))
)


@settings(max_examples=60)
@given(shape=logit_rows, k=st.integers(0, 12), ties=st.booleans())
def test_row_statistics_are_exact(shape: tuple[int, int, int], k: int, ties: bool) -> None:
    seed, rows, vocab = shape
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, vocab), generator=generator) * 6
    if ties:
        logits = logits.round()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    exact = logits.double()
    logprobs, token = exact.log_softmax(-1), exact.gather(1, targets[:, None])
    k = min(k, vocab)
    expected = [
        logprobs.gather(1, targets[:, None])[:, 0],
        (exact > token).sum(-1),
        exact.max(-1).values - token[:, 0],
        -(logprobs.exp() * logprobs).sum(-1),
        exact.logsumexp(-1),
    ]
    for compute in (
        lambda: row_statistics(logits, targets, k, Scratch(rows + 1, vocab, "cpu")),
        lambda: _one_pass(logits, targets, k),
    ):
        *numbers, top_ids, top_logprobs = compute()
        for got, wanted in zip(numbers, expected, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted.numpy(), atol=1e-4)
        assert top_ids.shape == (rows, k)
        np.testing.assert_allclose(top_logprobs.numpy(), logprobs.topk(k).values.numpy(), atol=1e-4)
        np.testing.assert_allclose(logprobs.gather(1, top_ids).numpy(), top_logprobs.numpy(), atol=1e-4)
        assert all(len(set(row.tolist())) == k for row in top_ids)


@pytest.mark.parametrize("chosen", [3, 8])
def test_of_two_equal_logits_either_is_the_references_choice(chosen: int) -> None:
    """vllm#7627: engines break exact ties differently, and none of them is wrong."""
    logits = torch.linspace(-1, 1, 70)[None, :].clone()
    logits[0, [3, 8]] = 5.0
    _, ranks, margins, *_ = row_statistics(logits, torch.tensor([chosen]), 2, Scratch(2, 70, "cpu"))
    assert (ranks.item(), margins.item()) == (0, 0.0)


def test_scratch_is_reused_without_leaking_the_last_chunk() -> None:
    scratch = Scratch(4, 70, "cpu")
    first, second = torch.randn(4, 70) + 50, torch.randn(2, 70)
    row_statistics(first, torch.zeros(4, dtype=torch.long), 3, scratch)
    again = row_statistics(second, torch.zeros(2, dtype=torch.long), 3, scratch)
    fresh = row_statistics(second, torch.zeros(2, dtype=torch.long), 3, Scratch(4, 70, "cpu"))
    for a, b in zip(again, fresh, strict=True):
        assert torch.equal(a, b)
    assert BANNED < -1e20

"""Answers sampled with a known seed: which convention their log-probabilities follow, and who drew each token.

A sampler at temperature T picks argmax_v(l_v + T G_v) with Gumbel noise G. Where the noise follows from the seed by a
rule that is known (the sampling contract), R's logits and the engine's own noise say which token R would have drawn,
and the margin of the one that came is as sharp as it is at T = 0 (Token-DiFR, arXiv 2511.20621). Noise is put on
unscaled logits, so a margin is in nats of a logit whatever T is. No server announces its rule: those that are known
are tried, and one counts as the engine's when it explains the tokens far better than chance does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from oracles.kl_metrics import document_mean
from oracles.logits import TOP_K, Document
from oracles.reference import LocalReference, OracleError, Reference
from oracles.result import Metric
from oracles.scoring import ScoreRequest, answer_logits

TEMPERATURE = 0.5  # raw and scaled log-probabilities differ by a factor of two
Convention = Literal["raw", "scaled"]
Values = npt.NDArray[np.float64]
Noise = Callable[[int, int, int, int], Values]
TRIED = 2  # documents on which every contract is tried


def sampled_metrics(documents: Sequence[Document], reference: Reference) -> tuple[dict[str, Metric], str]:
    """What seeded answers at TEMPERATURE say: metrics and a sentence. Raises OracleError when nothing can be said."""
    kind, stretch, positions = convention(documents, reference, TEMPERATURE)
    about = {"raw": "the model's own (raw)", "scaled": "the sampler's (divided by T)"}[kind]
    told = f"Log-probabilities are {about}."
    metrics = {"logprob_stretch": Metric(value=stretch, unit="x", n=positions)}
    if not isinstance(reference, LocalReference):
        return metrics, f"{told} Seeds were not followed: that needs a local reference."
    found, sentence = seeded_margins(documents, reference, TEMPERATURE)
    return metrics | found, f"{told} {sentence}"


# --- which convention ----------------------------------------------------------------------------------------------


def convention(
    documents: Sequence[Document], reference: Reference, temperature: float
) -> tuple[Convention, float, int]:
    """Are log-probabilities those of the model (raw) or of the sampler at `temperature` (scaled)?

    Distances between log-probabilities of one position stretch by 1/T in the scaled convention; their median stretch
    against the reference's tells.

    Returns:
        the convention, the stretch, and the positions it was read off.

    Raises:
        OracleError: it fits neither, or `temperature` is too near 1.
    """
    if not 0 < temperature <= 0.75 and not temperature >= 1.5:
        raise OracleError(f"A temperature of {temperature} cannot tell raw from scaled log-probabilities: use 0.5.")
    scores = reference.score([ScoreRequest(d.context, d.ids) for d in documents], top_k=TOP_K)
    found: list[float] = []
    for document, seen in zip(documents, scores, strict=True):
        for row, ids, values in zip(document.rows, seen.top_ids, seen.top_logprobs.astype(float), strict=True):
            found += _stretch(row.known, dict(zip(ids.tolist(), values.tolist(), strict=True)))
    if len(found) < 4:
        raise OracleError("Too few positions came with two known tokens: ask for more tokens and more logprobs.")
    middle = float(np.median(found))
    distance = {"raw": abs(np.log(max(middle, 1e-9))), "scaled": abs(np.log(max(middle * temperature, 1e-9)))}
    kind: Convention = "raw" if distance["raw"] < distance["scaled"] else "scaled"
    if distance[kind] > abs(np.log(temperature)) / 2:
        raise OracleError(
            f"Log-probabilities stretch {middle:.2f} times the reference's: neither raw nor scaled by 1/T."
        )
    return kind, middle, len(found)


def _stretch(theirs: Mapping[int, float], ours: Mapping[int, float]) -> list[float]:
    """One position's stretch, between the most and the least likely token that both know; none when they are near."""
    shared = [token for token in ours if token in theirs]
    gap = ours[shared[0]] - ours[shared[-1]] if len(shared) >= 2 else 0.0
    return [(theirs[shared[0]] - theirs[shared[-1]]) / gap] if gap > 1 else []


# --- which token the reference would have drawn ---------------------------------------------------------------------


def seeded_margins(
    documents: Sequence[Document], reference: LocalReference, temperature: float
) -> tuple[dict[str, Metric], str]:
    """Margins of the tokens under R's logits and the noise that the engine drew them by.

    Returns:
        `seed_match` and `seed_margin` of the contract that explains the tokens, none when none is the engine's; and a
        sentence.
    """
    rows = [answer_logits(reference, ScoreRequest(d.context, d.ids)) for d in documents]
    tried = {name: _margins(documents[:TRIED], rows, noise, temperature) for name, noise in CONTRACTS.items()}
    shares = {name: float((np.concatenate(margins) == 0).mean()) for name, margins in tried.items()}
    best, luck = max(shares, key=shares.__getitem__), _luck(rows, temperature)
    # Half way from chance to always: a wrong rule matches by chance, the right one at all but near-ties.
    if shares[best] < (1 + luck) / 2:
        return {}, (
            f"Seeds follow no contract that is known here: {best} explains {shares[best]:.1%} of the first tokens, "
            f"chance {luck:.1%}."
        )
    margins = _margins(documents, rows, CONTRACTS[best], temperature)
    values, number = np.concatenate(margins), np.repeat(np.arange(len(margins)), [len(each) for each in margins])
    match = document_mean((values == 0).astype(float), number, "share")
    sentence = f"Seeds follow {best}: {match.value:.1%} of {match.n} tokens are R's own draw (chance {luck:.1%})."
    return {"seed_match": match, "seed_margin": document_mean(values, number, "nats/token")}, sentence


def _margins(documents: Sequence[Document], rows: Sequence[Values], noise: Noise, temperature: float) -> list[Values]:
    """max_v(l_v + T G_v) less the same of the token that came, for every token of every document."""
    found = []
    for document, logits in zip(documents, rows, strict=False):
        count, vocab = logits.shape
        noisy = logits + temperature * noise(document.seed or 0, len(document.context) - 1, count, vocab)
        found.append(noisy.max(-1) - noisy[np.arange(count), np.asarray(document.ids)])
    return found


def _luck(rows: Sequence[Values], temperature: float) -> float:
    """How often two independent draws are the same token."""
    logits = np.concatenate(rows)
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    return float(((weights / weights.sum(-1, keepdims=True)) ** 2).sum(-1).mean())


# --- the known contracts: Gumbel noise [count, vocab] of an answer ---------------------------------------------------
# `start` is the position of the token behind which the answer's first token came.


def torch_exponential(seed: int, start: int, count: int, vocab: int) -> Values:
    """argmax of p/q with q from torch's generator of the request, a row a token: vLLM's older runner, torch itself."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    rows = [torch.empty(vocab).exponential_(generator=generator) for _ in range(count)]
    noise: Values = -np.log(torch.stack(rows).double().numpy())
    return noise


def splitmix64(seed: int, start: int, count: int, vocab: int) -> Values:
    """A seed a token from torch's generator, noise by SplitMix64 of that seed and the token's id: vLLM on a CPU."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    seeds = [int(torch.randint(0, 2**31, (1,), generator=generator)) for _ in range(count)]
    keys = _mixed(np.array(seeds, dtype=np.uint64))[:, None]
    bits = _mixed(keys + np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
    noise: Values = -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-53))
    return noise


def _mixed(state: Any) -> Any:
    """SplitMix64's output function."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def triton_philox(seed: int, start: int, count: int, vocab: int) -> Values:
    """Counters: a seed a position, a number a token's id, both by Triton's Philox: vLLM 0.25's GPU runner."""
    keys = philox(np.uint64(seed), np.arange(start, start + count, dtype=np.uint64))
    drawn = philox(keys[:, None], np.arange(vocab, dtype=np.uint64)[None]).astype(np.uint32).view(np.int32)
    # Triton's own way from 32 bits to [0, 1).
    uniform = np.where(drawn < 0, ~drawn, drawn).astype(np.float32) * np.float32(4.6566127342e-10)
    noise: Values = -np.log(-np.log1p(-np.maximum(uniform, 4.6566127342e-10).astype(np.float64)))
    return noise


def philox(key: Any, counter: Any) -> Any:
    """The first 32 bits of Philox 4x32-10, as Triton's `randint`, of 64-bit keys and counters."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1 = counter & low, counter >> half
    c2 = c3 = np.zeros_like(c0)
    k0, k1 = key & low, key >> half
    for _ in range(10):
        b, a = c2 * np.uint64(0xCD9E8D57), c0 * np.uint64(0xD2511F53)
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ k0, b & low, (a >> half) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0


CONTRACTS: dict[str, Noise] = {
    "torch's generator": torch_exponential,
    "vLLM's CPU kernel": splitmix64,
    "vLLM's GPU runner (Philox)": triton_philox,
}

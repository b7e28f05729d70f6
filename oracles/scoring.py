"""Teacher forcing: what the reference thinks of every token that an engine produced.

One forward pass of the backbone over right-padded batches of sequences of like length (causal attention never looks at
the padding, so no mask is needed), then the output matrix over the scored positions alone, in chunks of rows, each
reduced to a few numbers at once: [tokens x vocab] never exists. When memory runs out the batch is halved, and said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from oracles.batching import (
    BATCH_TOKENS_CPU,
    Ids,
    memory_tokens,
    padded,
    plan_batches,
    shared_prefix,
    within_memory,
)
from oracles.token_statistics import raw_logits, reduce_rows

if TYPE_CHECKING:
    from oracles.reference import LocalReference

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoreRequest:
    """One answer to score.

    Attributes:
        prompt: ids before the answer; at least one.
        output: ids of the answer, fed to the model.
        targets: ids whose scores are wanted at the answer's positions; the answer's own when None.
        no_end: the request forbade end tokens (ignore_eos): they are taken out of every distribution but where they
            are the target themselves.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    targets: Sequence[int] | None = None
    no_end: bool = False

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True)
class TokenScores:
    """The reference's view of one answer, one entry a token; nats.

    Attributes:
        logprobs: ln p_R(token).
        ranks: logits strictly greater than the token's; 0 is the reference's own choice (ties count as its choice).
        margins: max_v l_v - l_token, never negative.
        entropies: entropy of the reference's distribution.
        lse: log-sum-exp of the raw logits.
        top_ids: [n, top_k] the reference's most likely tokens, most likely first.
        top_logprobs: [n, top_k].
    """

    logprobs: Floats
    ranks: Ints
    margins: Floats
    entropies: Floats
    lse: Floats
    top_ids: Ints
    top_logprobs: Floats

    def tail_mass(self) -> npt.NDArray[np.float64]:
        """Probability outside the top k."""
        kept: npt.NDArray[np.float64] = np.exp(self.top_logprobs.astype(np.float64)).sum(-1)
        return np.clip(1.0 - kept, 0.0, 1.0)


def score(
    reference: LocalReference,
    requests: Sequence[ScoreRequest],
    *,
    top_k: int = 0,
    batch_tokens: int | None = None,
    cached: bool = False,
    progress: Progress | None = None,
) -> list[TokenScores]:
    """Score every request, in the order given; see `score_batches` for the arguments."""
    results: list[TokenScores | None] = [None] * len(requests)
    how: dict[str, Any] = {"top_k": top_k, "batch_tokens": batch_tokens, "cached": cached, "progress": progress}
    for index, scores in score_batches(reference, requests, **how):
        results[index] = scores
    return [scores for scores in results if scores is not None]


def score_batches(
    reference: LocalReference,
    requests: Sequence[ScoreRequest],
    *,
    top_k: int = 0,
    batch_tokens: int | None = None,
    cached: bool = False,
    progress: Progress | None = None,
) -> Iterator[tuple[int, TokenScores]]:
    """Score requests, longest first, giving (index, scores) as each batch is done.

    Args:
        reference: the model.
        requests: prompts not empty, ids inside the vocabulary, no longer than the context.
        top_k: ids and log-probabilities kept a position.
        batch_tokens: tokens (padding included) in one forward pass; found by itself when None.
        cached: read each prompt into a key-value cache first and its answer behind it, as an engine does; one
            sequence at a time.
        progress: called with (tokens done, tokens in all), prompt tokens included.

    Raises:
        ValueError: a request breaks the rules above; nothing was scored then.
    """
    rows = check_requests(reference, requests)
    total, done = sum(map(len, rows)), 0
    queue = batches(reference, requests, 1 if cached else batch_tokens)
    work = list(zip(requests, rows, strict=True))
    sent = within_memory(
        queue, lambda batch: _columns(reference, [work[i] for i in batch], top_k, cached), reference.notes
    )
    before: tuple[list[int], list[Any]] | None = None
    # A GPU goes on while this side reads and keeps: a batch is sent off before the last one's numbers are waited for.
    for now in chain(sent, [None]):
        if before:
            batch, columns = before
            yield from zip(batch, _split([requests[i] for i in batch], columns), strict=True)
            done += sum(len(rows[i]) for i in batch)
            if progress:
                progress(done, total)
        before = now


def batches(
    reference: LocalReference, requests: Sequence[ScoreRequest], batch_tokens: int | None = None
) -> list[list[int]]:
    """Indices of requests of like length, longest first, each list within `batch_tokens` with its little padding."""
    on_cpu = reference.model.device.type == "cpu"
    limit = batch_tokens or (BATCH_TOKENS_CPU if on_cpu else memory_tokens(reference.model))
    return plan_batches([len(request) for request in requests], limit)


class Limits(Protocol):
    """What a reference can be asked about."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def context_length(self) -> int:
        """Longest sequence, in tokens."""


def check_requests(limits: Limits, requests: Sequence[ScoreRequest]) -> list[Ids]:
    """The ids of every request, prompt and answer in one row. ValueError when one cannot be scored."""
    return [_checked(limits, request) for request in requests]


def _checked(limits: Limits, request: ScoreRequest) -> Ids:
    if not len(request.prompt) or not len(request.output):
        raise ValueError("a sequence to score needs a prompt and an answer of at least one token each")
    if request.targets is not None and len(request.targets) != len(request.output):
        raise ValueError(f"{len(request.targets)} targets for an answer of {len(request.output)} tokens")
    ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in (request.prompt, request.output)])
    for part in (ids, *([] if request.targets is None else [np.asarray(request.targets)])):
        if part.min() < 0 or part.max() >= limits.vocab_size:
            raise ValueError(f"token id {part.max()} or {part.min()} is outside 0..{limits.vocab_size - 1}")
    if len(ids) > limits.context_length:
        raise ValueError(f"{len(ids)} tokens are more than the reference's context of {limits.context_length}")
    return ids


def _columns(
    reference: LocalReference, batch: Sequence[tuple[ScoreRequest, Ids]], top_k: int, cached: bool
) -> list[Any] | None:
    """Columns of one batch, or None when memory ran out."""
    import torch

    try:
        with torch.inference_mode():
            return _forward(reference, batch, top_k, cached)
    except torch.OutOfMemoryError:
        pass
    except RuntimeError as error:  # the CPU allocator's own kind
        if "not enough memory" not in str(error):
            raise
    torch.cuda.empty_cache()
    return None


def _forward(
    reference: LocalReference, batch: Sequence[tuple[ScoreRequest, Ids]], top_k: int, cached: bool
) -> list[Any]:
    """One column a statistic over the batch's answers, still on the model's device.

    Everything is sent there before the model runs: a copy behind it would wait for it, and the device then for the
    rest of the preparation.
    """
    import torch

    model, device = reference.model, reference.model.device
    rows = padded([ids for _, ids in batch])
    prompts, counts = np.array([(len(r.prompt), len(r.output)) for r, _ in batch]).T
    first = int(prompts[0]) - 1 if cached else shared_prefix(rows, prompts) if device.type == "cpu" else 0
    # The position before a token predicts it.
    starts = np.arange(len(batch)) * (rows.shape[1] - first) + prompts - 1 - first
    positions = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
    targets = np.concatenate([ids[len(r.prompt) :] if r.targets is None else r.targets for r, ids in batch])
    ends = np.array(sorted(reference.end_token_ids), dtype=np.int64)
    # An end token that was produced all the same is scored as it is.
    barred = np.repeat([r.no_end for r, _ in batch], counts) & ~np.isin(targets, ends)
    sent = [torch.from_numpy(array).to(device) for array in (rows, positions, targets.astype(np.int64), barred, ends)]
    wanted = _hidden_behind(model.get_decoder(), sent[0], first).flatten(0, 1)
    wanted = wanted[sent[1].to(wanted.device)]
    return reduce_rows(model, wanted, sent[2], (sent[3], sent[4]) if barred.any() else None, top_k)


def score_batch(reference: LocalReference, requests: Sequence[ScoreRequest], top_k: int) -> list[TokenScores] | None:
    """Requests of like length in one forward pass; None when memory ran out."""
    rows = check_requests(reference, requests)
    columns = _columns(reference, list(zip(requests, rows, strict=True)), top_k, cached=False)
    return None if columns is None else _split(requests, columns)


def answer_logits(reference: LocalReference, request: ScoreRequest) -> npt.NDArray[np.float64]:
    """Raw logits [n, vocab] at a short answer's positions, for what no summary of a row will do."""
    import torch

    ids, start = torch.from_numpy(check_requests(reference, [request])[0]), len(request.prompt) - 1
    with torch.inference_mode():
        hidden = _hidden_behind(reference.model.get_decoder(), ids[None].to(reference.model.device), 0)
        logits: npt.NDArray[np.float64] = raw_logits(reference.model, hidden[0, start:-1]).double().cpu().numpy()
    return logits


def _split(batch: Sequence[ScoreRequest], columns: Sequence[Any]) -> list[TokenScores]:
    """A batch's columns as one TokenScores a request."""
    borders = np.cumsum([len(r.output) for r in batch])[:-1]
    kinds = [np.int32 if name in {"ranks", "top_ids"} else np.float32 for name in TokenScores.__dataclass_fields__]
    arrays = [column.cpu().numpy().astype(kind) for column, kind in zip(columns, kinds, strict=True)]
    parts = [np.split(array, borders) for array in arrays]
    return [TokenScores(*row) for row in zip(*parts, strict=True)]


def _hidden_behind(decoder: Any, ids: Any, first: int) -> Any:
    """Hidden states of columns `first`.. of ids [n, longest]; the columns before are equal and computed once."""
    if not first:
        return decoder(input_ids=ids, use_cache=False).last_hidden_state
    head = decoder(input_ids=ids[:1, :first], use_cache=True)
    name = "cache" if "cache" in head else "past_key_values"  # renamed in transformers 5.24
    if len(ids) > 1:
        head[name].batch_repeat_interleave(len(ids))
    return decoder(input_ids=ids[:, first:], use_cache=True, **{name: head[name]}).last_hidden_state

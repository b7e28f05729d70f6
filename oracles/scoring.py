"""Teacher forcing: what the reference thinks of every token that an engine produced.

One forward pass of the backbone over right-padded batches of sequences of like length (causal attention never looks at
the padding, so no mask is needed), then the output matrix over the scored positions alone, in chunks of rows, each
reduced to a few numbers at once: [tokens x vocab] never exists. When memory runs out the batch is halved, and said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from oracles.token_statistics import BANNED, Scratch, fused_statistics, row_statistics

if TYPE_CHECKING:
    from oracles.reference import LocalReference

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Progress = Callable[[int, int], None]

# Rows of logits made at once (the product likes many) and reduced at once (a CPU's caches like few).
LOGIT_BYTES_CPU, REDUCE_BYTES_CPU = 32 << 20, 4 << 20
LOGIT_BYTES_GPU = 1 << 29
ROW_MULTIPLE = 128
BATCH_TOKENS_CPU = 2048
BATCH_TOKENS_GPU = 16384
PADDING = 0.05  # share of a batch that may be padding once it holds 1/FULL of its tokens: a small batch wastes more
FULL = 4
SHARED = 0.1  # least share of a batch's work that a prefix computed once must spare


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
    check_requests(reference, requests)
    total, done = sum(map(len, requests)), 0
    queue = batches(reference, requests, 1 if cached else batch_tokens)
    while queue:
        batch = queue.pop(0)
        scores = _within_memory(reference, [requests[i] for i in batch], top_k, cached)
        if scores is None:
            queue = _halved([batch, *queue])
            reference.notes.append(f"memory ran out: scoring went on with {len(queue[0])} sequences at once")
            continue
        yield from zip(batch, scores, strict=True)
        done += sum(len(requests[i]) for i in batch)
        if progress:
            progress(done, total)


def batches(
    reference: LocalReference, requests: Sequence[ScoreRequest], batch_tokens: int | None = None
) -> list[list[int]]:
    """Indices of requests of like length, longest first, each list within `batch_tokens` with its little padding."""
    on_cpu = reference.model.device.type == "cpu"
    return plan_batches(requests, batch_tokens or (BATCH_TOKENS_CPU if on_cpu else BATCH_TOKENS_GPU))


def plan_batches(requests: Sequence[ScoreRequest], limit: int) -> list[list[int]]:
    """The same under a given number of tokens."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i]))
    made: list[list[int]] = []
    while order:
        size = _batch_size([len(requests[i]) for i in order], limit)
        made.append(order[:size])
        order = order[size:]
    return made


def _batch_size(lengths: Sequence[int], limit: int) -> int:
    """How many of `lengths` (longest first) go together: within the limit, and a full batch is hardly padding."""
    longest, tokens = lengths[0], 0
    for size, length in enumerate(lengths[: max(1, limit // longest)]):
        tokens += length
        padded = longest * (size + 1)
        if padded - tokens > PADDING * padded and tokens - length > limit // FULL:
            return size
    return min(len(lengths), max(1, limit // longest))


def _halved(queue: list[list[int]]) -> list[list[int]]:
    """Every batch in two. MemoryError when the first is a single sequence."""
    if len(queue[0]) == 1:
        raise MemoryError("one sequence alone does not fit into memory")
    halves = [half for batch in queue for half in (batch[: (len(batch) + 1) // 2], batch[(len(batch) + 1) // 2 :])]
    return [half for half in halves if half]


class Limits(Protocol):
    """What a reference can be asked about."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def context_length(self) -> int:
        """Longest sequence, in tokens."""


def check_requests(limits: Limits, requests: Sequence[ScoreRequest]) -> None:
    """ValueError when a request cannot be scored."""
    for request in requests:
        _check(limits, request)


def _check(reference: Limits, request: ScoreRequest) -> None:
    ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in (request.prompt, request.output)])
    targets = np.asarray(request.output if request.targets is None else request.targets, dtype=np.int64)
    if not len(request.prompt) or not len(request.output):
        raise ValueError("a sequence to score needs a prompt and an answer of at least one token each")
    if len(targets) != len(request.output):
        raise ValueError(f"{len(targets)} targets for an answer of {len(request.output)} tokens")
    for part in (ids, targets):
        if part.min() < 0 or part.max() >= reference.vocab_size:
            raise ValueError(f"token id {part.max()} or {part.min()} is outside 0..{reference.vocab_size - 1}")
    if len(ids) > reference.context_length:
        raise ValueError(f"{len(ids)} tokens are more than the reference's context of {reference.context_length}")


def _within_memory(
    reference: LocalReference, batch: Sequence[ScoreRequest], top_k: int, cached: bool
) -> list[TokenScores] | None:
    """Scores of one batch, or None when memory ran out."""
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


def _forward(reference: LocalReference, batch: Sequence[ScoreRequest], top_k: int, cached: bool) -> list[TokenScores]:
    import torch

    model, device = reference.model, reference.model.device
    longest = max(map(len, batch))
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    for row, request in enumerate(batch):
        ids[row, : len(request)] = torch.tensor([*request.prompt, *request.output])
    first = len(batch[0].prompt) - 1 if cached else shared_prefix(batch) if device.type == "cpu" else 0
    hidden = _hidden_behind(model.get_decoder(), ids.to(device), first)
    # The position before a token predicts it.
    width = longest - first
    spans = [(row * width + len(r.prompt) - 1 - first, len(r.output)) for row, r in enumerate(batch)]
    positions = torch.cat([torch.arange(first, first + count) for first, count in spans])
    wanted = hidden.flatten(0, 1)[positions.to(hidden.device)]
    del hidden
    targets = torch.tensor([t for r in batch for t in (r.output if r.targets is None else r.targets)])
    ends = torch.tensor(sorted(reference.end_token_ids), dtype=torch.long)
    # An end token that was produced all the same is scored as it is.
    barred = torch.tensor([r.no_end for r in batch for _ in r.output]) & ~torch.isin(targets, ends)
    columns = _reduce_rows(model, wanted, targets, (barred, ends) if barred.any() else None, top_k)
    borders = np.cumsum([len(r.output) for r in batch])[:-1]
    parts = [np.split(column, borders) for column in columns]
    return [TokenScores(*row) for row in zip(*parts, strict=True)]


def shared_prefix(batch: Sequence[ScoreRequest]) -> int:
    """Tokens that all prompts of a batch begin with, when computing them once spares a tenth of the work; else 0."""
    shortest = min(len(r.prompt) for r in batch) - 1
    heads = np.array([list(r.prompt[:shortest]) for r in batch])
    same = (heads == heads[0]).all(axis=0)
    count = shortest if same.all() else int(np.argmin(same))
    spared = count * (len(batch) - 1)
    return count if spared > SHARED * len(batch) * max(map(len, batch)) else 0


def _hidden_behind(decoder: Any, ids: Any, first: int) -> Any:
    """Hidden states of columns `first`.. of ids [n, longest]; the columns before are equal and computed once."""
    if not first:
        return decoder(input_ids=ids, use_cache=False).last_hidden_state
    head = decoder(input_ids=ids[:1, :first], use_cache=True)
    name = "cache" if "cache" in head else "past_key_values"  # renamed in transformers 5.24
    if len(ids) > 1:
        head[name].batch_repeat_interleave(len(ids))
    return decoder(input_ids=ids[:, first:], use_cache=True, **{name: head[name]}).last_hidden_state


def _reduce_rows(
    model: Any, hidden: Any, targets: Any, barred: tuple[Any, Any] | None, top_k: int
) -> list[npt.NDArray[Any]]:
    """Chunks of hidden states through the output matrix, each reduced to its statistics at once.

    `barred`: which rows lose which columns.
    """
    import torch

    weight = model.get_output_embeddings().weight
    vocab, device = weight.shape[0], weight.device
    hidden, targets = hidden.to(device), targets.to(device)
    on_gpu = device.type == "cuda"
    rows = (LOGIT_BYTES_GPU if on_gpu else LOGIT_BYTES_CPU) // (vocab * weight.element_size())
    rows = max(rows - rows % ROW_MULTIPLE, ROW_MULTIPLE)
    few = min(rows, REDUCE_BYTES_CPU // (8 * vocab) + 1)
    scratch = None if on_gpu else Scratch(few, vocab, device)
    done: list[tuple[Any, ...]] = []
    for first in range(0, len(hidden), rows):
        part = slice(first, first + rows)
        logits = _logits(model, hidden[part])
        if barred is not None:
            where, columns = (t.to(device) for t in (barred[0][part], barred[1]))
            logits[torch.nonzero(where), columns[None, :]] = BANNED
        if scratch is None:
            done.append(fused_statistics(logits, targets[part], top_k))
        else:
            pieces = zip(logits.split(few), targets[part].split(few), strict=True)
            done.extend(row_statistics(piece, tokens, top_k, scratch) for piece, tokens in pieces)
    return [
        torch.cat(column).cpu().numpy().astype(np.int32 if name in {1, 5} else np.float32)
        for name, column in enumerate(zip(*done, strict=True))
    ]


def _logits(model: Any, hidden: Any) -> Any:
    """The model's own head, with the scaling that some families apply behind it."""
    logits = model.get_output_embeddings()(hidden)
    config = model.config.get_text_config()
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return (logits / cap).tanh() * cap if cap else logits

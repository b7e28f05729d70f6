"""From a chunk of logits to what is kept of each row: log-probability, rank, margin, entropy, top k.

The selection is what costs, so it is done in few passes: the maxima of groups of 64 logits find the top k exactly (the
k largest values lie in the k groups with the largest maxima), and the softmax gives the entropy and the log-sum-exp
(lse = l_max - ln p_max).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

# Rows of logits made at once (the product likes many) and reduced at once (a CPU's caches like few).
LOGIT_BYTES_CPU, REDUCE_BYTES_CPU = 32 << 20, 16 << 20
LOGIT_BYTES_GPU = 1 << 29
ROW_MULTIPLE = 128
GROUP = 64
BANNED = -1e30  # finite: p * l stays 0 where -inf would give NaN


def reduce_rows(model: Any, hidden: Any, targets: Any, barred: tuple[Any, Any] | None, top_k: int) -> list[Any]:
    """Chunks of hidden states through the output matrix, each reduced to its statistics at once.

    Args:
        model: whose output matrix.
        hidden: [n, width].
        targets: [n] see `row_statistics`.
        barred: which rows lose which columns.
        top_k: see `row_statistics`.

    Returns:
        the columns of `row_statistics` over all rows.
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
        logits = raw_logits(model, hidden[part])
        if barred is not None:
            where, columns = (t.to(device) for t in (barred[0][part], barred[1]))
            logits[:, columns] = logits[:, columns].masked_fill(where[:, None], BANNED)
        if scratch is None:
            done.append(fused_statistics(logits, targets[part], top_k))
        else:
            pieces = zip(logits.split(few), targets[part].split(few), strict=True)
            done.extend(row_statistics(piece, tokens, top_k, scratch) for piece, tokens in pieces)
            del logits, pieces  # before the next chunk is made
    return [torch.cat(column) for column in zip(*done, strict=True)]


def raw_logits(model: Any, hidden: Any) -> Any:
    """The model's own head, with the scaling that some families apply behind it."""
    logits = model.get_output_embeddings()(hidden)
    config = model.config.get_text_config()
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return (logits / cap).tanh() * cap if cap else logits


@dataclass
class Scratch:
    """Reused buffers for `rows` x `vocab` logits: small enough for the cache, and fresh ones would cost page faults."""

    rows: int
    vocab: int
    device: Any
    buffers: tuple[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        import torch

        width = -(-self.vocab // GROUP) * GROUP
        shape = (self.rows, width)
        self.buffers = (torch.full(shape, BANNED, device=self.device), torch.empty(shape, device=self.device))


def row_statistics(logits: Any, targets: Any, top_k: int, scratch: Scratch) -> tuple[Any, ...]:
    """Statistics of every row of `logits` [n, vocab] (any float type; n <= scratch.rows).

    Args:
        logits: raw logits; not changed.
        targets: [n] the token whose log-probability, rank and margin are wanted.
        top_k: ids and log-probabilities kept a row; may be 0.
        scratch: buffers.

    Returns:
        logprob, rank, margin, entropy, lse, each [n]; top_ids, top_logprobs, each [n, top_k]. fp32, nats; rank counts
        the logits strictly greater, so an exact tie is rank 0 and margin 0. Among exact ties at the edge of the top k
        which id is kept is not defined.
    """
    import torch

    n, vocab = logits.shape
    values, other = (buffer[:n] for buffer in scratch.buffers)
    values[:, :vocab].copy_(logits)
    k = min(max(top_k, 1), vocab)
    top_values, top_ids = _top(values, k)
    best = top_values[:, 0]
    token = values.gather(1, targets[:, None])[:, 0]
    probabilities = torch.softmax(values, -1, out=other)
    lse = best - probabilities.gather(1, top_ids[:, :1])[:, 0].log()
    expected = torch.mul(probabilities, values, out=probabilities).sum(-1)
    # Counted in fp32, exact to 2**24: summing booleans is many times slower.
    rank = torch.gt(values, token[:, None], out=other).sum(-1)
    return (
        token - lse, rank, best - token, lse - expected, lse, top_ids[:, :top_k], top_values[:, :top_k] - lse[:, None],
    )  # fmt: skip


def _top(values: Any, k: int) -> tuple[Any, Any]:
    """Exact top k of each row, largest first."""
    groups = values.shape[1] // GROUP
    if k >= groups:
        top = values.topk(k, -1)
        return top.values, top.indices
    grouped = values.view(len(values), groups, GROUP)
    chosen = grouped.amax(-1).topk(k, -1, sorted=False).indices
    candidates = grouped.gather(1, chosen[:, :, None].expand(-1, -1, GROUP)).flatten(1)
    top = candidates.topk(k, -1)
    ids = chosen.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP
    return top.values, ids


def fused_statistics(logits: Any, targets: Any, top_k: int) -> tuple[Any, ...]:
    """`row_statistics` without scratch, for GPUs: the compiler fuses every pass over the row into one or two."""
    import torch

    for tensor in (logits, targets):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)  # the last chunk is shorter: one program for all lengths
    return _compiled()(logits, targets, top_k)  # type: ignore[no-any-return]


def compile_in_process() -> None:
    """Keep the compiler from starting worker processes: a handful of kernels, and waiting for the workers to end held
    a finished gate up for minutes (seen on an H200 with torch 2.11).
    """
    from torch._inductor import config

    config.compile_threads = 1


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import torch

    compile_in_process()
    return torch.compile(_one_pass)


def _one_pass(logits: Any, targets: Any, top_k: int) -> tuple[Any, ...]:
    import torch

    values = logits.float()
    k = max(top_k, 1)
    spare = -values.shape[1] % GROUP
    padded = torch.nn.functional.pad(values, (0, spare), value=BANNED) if spare else values
    top_values, top_ids = _top(padded, k)
    best = top_values[:, 0]
    token = values.gather(1, targets[:, None])[:, 0]
    weights = (values - best[:, None]).exp()
    total = weights.sum(-1)
    expected = (weights * values).sum(-1) / total
    lse = best + total.log()
    rank = (values > token[:, None]).sum(-1)
    return (
        token - lse, rank, best - token, lse - expected, lse, top_ids[:, :top_k], top_values[:, :top_k] - lse[:, None],
    )  # fmt: skip

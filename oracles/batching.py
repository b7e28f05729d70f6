"""Which sequences go through the reference together, by their lengths alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Scored = TypeVar("Scored")

BATCH_TOKENS_CPU = 2048
BATCH_TOKENS_GPU = 16384  # at most: the size that was measured on an H200
MEMORY_SHARE = 0.8  # of what is free; the rest is the allocator's gaps
HEAD_BYTES = 2 << 30  # a chunk of logits and what its reduction needs
PADDING = 0.05  # share of a batch that may be padding once it holds 1/FULL of its tokens: a small batch wastes more
FULL = 4
SHARED = 0.1  # least share of a batch's work that a prefix computed once must spare


def memory_tokens(model: Any) -> int:
    """Tokens that one forward pass may hold: from what each takes and what is free on the fullest device."""
    config = model.config.get_text_config()
    hidden = int(config.hidden_size)
    width = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    # A mixture copies each token once for every expert that it goes to.
    inner = int(getattr(config, "moe_intermediate_size", None) or width)
    width = max(width, int(getattr(config, "num_experts_per_tok", None) or 0) * (inner + hidden))
    # In and out, queries, keys, values, norms in fp32; gate, up, their product and what the kernels hold besides.
    token = model.dtype.itemsize * (16 * hidden + 4 * width)
    budget = MEMORY_SHARE * free_bytes(model) - HEAD_BYTES
    return min(BATCH_TOKENS_GPU, max(1, int(budget / token)))


def free_bytes(model: Any) -> int:
    """Memory left on the fullest of the model's GPUs; what the allocator holds unused counts as free."""
    import torch

    def left(device: Any) -> int:
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(spare)

    return min(left(device) for device in {weights.device for weights in model.parameters()} if device.type == "cuda")


def plan_batches(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of sequences of like length, longest first, each list within `limit` tokens with its little padding."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    made: list[list[int]] = []
    while order:
        size = _batch_size([lengths[i] for i in order], limit)
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


def within_memory(
    queue: list[list[int]], run: Callable[[list[int]], Scored | None], notes: list[str]
) -> Iterator[tuple[list[int], Scored]]:
    """Every batch with what `run` makes of it; when memory runs out (None) all that is left is halved, with a note."""
    while queue:
        made = run(queue[0])
        if made is None:
            queue = halved(queue)
            notes.append(f"memory ran out: scoring went on with {len(queue[0])} sequences at once")
            continue
        yield queue[0], made
        queue = queue[1:]


def halved(queue: Sequence[list[int]]) -> list[list[int]]:
    """Every batch in two. MemoryError when the first is a single sequence."""
    if len(queue[0]) == 1:
        raise MemoryError("one sequence alone does not fit into memory")
    halves = [half for batch in queue for half in (batch[: (len(batch) + 1) // 2], batch[(len(batch) + 1) // 2 :])]
    return [half for half in halves if half]


def padded(sequences: Sequence[Ids]) -> Ids:
    """Sequences as rows of one array, zeros behind the shorter ones."""
    rows = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    for row, ids in zip(rows, sequences, strict=True):
        row[: len(ids)] = ids
    return rows


def shared_prefix(rows: Ids, prompts: Ids) -> int:
    """Tokens that all prompts of a batch begin with, when computing them once spares a tenth of the work; else 0.

    Args:
        rows: the batch's sequences, padded.
        prompts: length of each one's prompt.
    """
    shortest = int(prompts.min()) - 1
    same = (rows[:, :shortest] == rows[0, :shortest]).all(axis=0)
    count = shortest if same.all() else int(np.argmin(same))
    return count if count * (len(rows) - 1) > SHARED * rows.size else 0

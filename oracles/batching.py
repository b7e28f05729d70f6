"""Which sequences go through the reference together, by their lengths alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

BATCH_TOKENS_CPU = 2048
BATCH_TOKENS_GPU = 16384
PADDING = 0.05  # share of a batch that may be padding once it holds 1/FULL of its tokens: a small batch wastes more
FULL = 4
SHARED = 0.1  # least share of a batch's work that a prefix computed once must spare


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

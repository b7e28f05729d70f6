"""The row statistics of a GPU's logits in one read: a Triton kernel in place of what the compiler makes of two.

Off unless ENGINEGATE_ROW_KERNEL is set: it was not measured on a GPU since it was written. A row is read once, block by
block: the running maximum, the sum of exponentials and of their products with the logits, the logits above the
token's, and the maximum of every group of 64. The top k then come exactly out of the k groups with the largest maxima.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

BLOCK, GROUP, WARPS = 4096, 64, 8
SWITCH = "ENGINEGATE_ROW_KERNEL"


def wanted() -> bool:
    """Was it asked for, and is Triton there?"""
    return bool(os.environ.get(SWITCH)) and find_spec("triton") is not None


def kernel_statistics(logits: Any, targets: Any, top_k: int) -> tuple[Any, ...]:
    """`token_statistics.row_statistics` of `logits` [n, vocab] and `targets` [n], the same columns."""
    import torch

    count, vocab = logits.shape
    groups = -(-vocab // BLOCK) * (BLOCK // GROUP)
    numbers = torch.empty((5, count), dtype=torch.float32, device=logits.device)
    maxima = torch.empty((count, groups), dtype=torch.float32, device=logits.device)
    _kernel()[(count,)](
        logits,
        targets,
        numbers,
        maxima,
        logits.stride(0),
        count,
        vocab,
        groups,
        block=BLOCK,
        group=GROUP,
        num_warps=WARPS,
    )
    token, best, lse, entropy, rank = numbers
    chosen = maxima.topk(min(max(top_k, 1), groups), -1, sorted=False).indices
    ids = (chosen[:, :, None] * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    found = logits.gather(1, ids.clamp(max=vocab - 1)).float().masked_fill(ids >= vocab, float("-inf"))
    top = found.topk(min(top_k, vocab), -1)
    return token - lse, rank, best - token, entropy, lse, ids.gather(1, top.indices), top.values - lse[:, None]


@lru_cache(maxsize=1)
def _kernel() -> Any:
    import triton
    import triton.language as tl

    # Without annotations: the compiler takes each for a variable of the kernel and finds none.
    def statistics(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
        logits,
        targets,
        numbers,
        maxima,
        stride,
        count,
        vocab,
        groups,
        block: tl.constexpr,
        group: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        line = logits + row * stride
        token = tl.load(line + tl.load(targets + row)).to(tl.float32)
        best, total, expected, rank = token, 0.0, 0.0, 0.0
        for first in range(0, vocab, block):
            columns = first + tl.arange(0, block)
            inside = columns < vocab
            values = tl.load(line + columns, mask=inside, other=float("-inf")).to(tl.float32)
            groups_here = tl.max(tl.reshape(values, (block // group, group)), axis=1)
            places = first // group + tl.arange(0, block // group)
            tl.store(maxima + row * groups + places, groups_here)
            larger = tl.maximum(best, tl.max(groups_here, axis=0))
            weights = tl.exp(values - larger)
            shrink = tl.exp(best - larger)
            total = total * shrink + tl.sum(weights, axis=0)
            expected = expected * shrink + tl.sum(tl.where(inside, weights * values, 0.0), axis=0)
            rank += tl.sum((values > token).to(tl.float32), axis=0)
            best = larger
        lse = best + tl.log(total)
        tl.store(numbers + row, token)
        tl.store(numbers + count + row, best)
        tl.store(numbers + 2 * count + row, lse)
        tl.store(numbers + 3 * count + row, lse - expected / total)
        tl.store(numbers + 4 * count + row, rank)

    return triton.jit(statistics)

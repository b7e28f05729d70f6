"""`tokens.parquet`: one row a scored answer (docs/files.md), and the numbers that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oracles import atomic
from oracles.answers import Answer
from oracles.scoring import TokenScores

FIRST = 64
LONGEST_PERIOD = 16

SCHEMA = pa.schema(
    [
        ("pair", pa.int32()),
        ("line", pa.int32()),
        ("cell", pa.string()),
        ("item", pa.string()),
        ("stratum", pa.string()),
        ("greedy", pa.bool_()),
        ("prompt_tokens", pa.int32()),
        ("tokens", pa.int32()),
        ("margin_sum", pa.float64()),
        ("margin_max", pa.float64()),
        ("margin_first64", pa.float64()),
        ("top1", pa.int32()),
        ("nll_sum", pa.float64()),
        ("entropy_sum", pa.float64()),
        ("flips_inexcusable", pa.int32()),
        ("loop_share", pa.float64()),
        ("loop_entry", pa.int32()),
        ("margins", pa.list_(pa.float32())),
        ("logprobs", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
        ("ranks", pa.list_(pa.int32())),
        ("ids", pa.list_(pa.int32())),
        ("choices", pa.list_(pa.int32())),
        ("ids_source", pa.string()),
    ]
)


def token_row(answer: Answer, scores: TokenScores, tie_width: float | None) -> dict[str, Any]:
    """One answer's row; `tie_width` in nats, None leaves flips_inexcusable null."""
    share, entry = loop(answer.ids)
    margins = scores.margins.astype(np.float64)
    return {
        "pair": answer.pair,
        "line": answer.line,
        "cell": answer.cell,
        "item": answer.item,
        "stratum": answer.stratum,
        "greedy": answer.greedy,
        "prompt_tokens": len(answer.prompt),
        "tokens": len(answer.ids),
        "margin_sum": float(margins.sum()),
        "margin_max": float(margins.max()),
        "margin_first64": float(margins[:FIRST].sum()),
        "top1": int((scores.ranks == 0).sum()),
        "nll_sum": float(-scores.logprobs.astype(np.float64).sum()),
        "entropy_sum": float(scores.entropies.astype(np.float64).sum()),
        "flips_inexcusable": None if tie_width is None else int((margins > tie_width).sum()),
        "loop_share": share,
        "loop_entry": entry,
        "margins": scores.margins,
        "logprobs": scores.logprobs,
        "entropies": scores.entropies,
        "ranks": scores.ranks,
        "ids": np.asarray(answer.ids, dtype=np.int32),
        "choices": scores.top_ids[:, 0] if scores.top_ids.shape[1] else None,
        "ids_source": answer.source,
    }


def loop(ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> tuple[float, int | None]:
    """The longest immediate repetition of a run of 1 to 16 tokens, three times or more.

    Returns:
        the share of the answer it covers, and the index of the first repeated token; (0, None) without one.
    """
    row = np.asarray(ids)
    best, entry = 0, None
    for period in range(1, min(LONGEST_PERIOD, len(row) // 3) + 1):
        breaks = np.flatnonzero(row[period:] != row[:-period])
        edges = np.concatenate(([-1], breaks, [len(row) - period]))
        runs = np.diff(edges) - 1
        longest = int(runs.argmax())
        if runs[longest] >= 2 * period and runs[longest] + period > best:
            best, entry = int(runs[longest]) + period, int(edges[longest]) + 1 + period
    return (best / len(row) if len(row) else 0.0), entry


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows atomically; a row with a non-finite sum is refused with ValueError."""
    for row in rows:
        if not all(np.isfinite(row[name]) for name in ("margin_sum", "nll_sum", "entropy_sum")):
            raise ValueError(
                f"pair {row['pair']} line {row['line']}: the reference gave a number that is not finite; its "
                "weights or its dtype cannot be trusted"
            )
    atomic.write_table(path, pa.Table.from_pylist(list(rows), schema=SCHEMA))

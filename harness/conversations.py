"""Live conversations as an arm saw them: every turn with all that came before it, the engine's own replies included.

AIPerf puts the replies into the history, so each arm's later prompts are its own; whoever grades an answer needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.run_store import write_table
from harness.workload import SCHEMA

Message = Mapping[str, Any]


def write_conversations(workload: Path, requests: Path, out: Path) -> list[Path]:
    """Write the arm's own workload.parquet to `out` when the pair has live conversations; return what was written."""
    if "turn" not in pq.read_schema(workload).names:
        return []
    asked = pq.read_table(workload)
    if not pc.any(pc.greater(asked["turn"], 0)).as_py():
        return []
    replies = {row["line"]: row["text"] or "" for row in pq.read_table(requests, columns=["line", "text"]).to_pylist()}
    table = pa.Table.from_pylist(with_history(asked.to_pylist(), replies), schema=SCHEMA)
    write_table(out, table)
    return [out]


def with_history(rows: Sequence[dict[str, Any]], replies: Mapping[int, str]) -> list[dict[str, Any]]:
    """The rows with whole `messages`; `replies` by line. Rows of one conversation stand together, turns in order."""
    told: list[Message] = []
    whole = []
    for row in rows:
        said: list[Message] = orjson.loads(row["messages"])
        told = [*told, *said] if row["turn"] else said
        whole.append({**row, "messages": orjson.dumps(told).decode()})
        told = [*told, {"role": "assistant", "content": replies.get(row["line"], "")}]
    return whole

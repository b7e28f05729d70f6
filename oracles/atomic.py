"""Files that are whole or not there: a temporary file beside them, fsync, rename."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from oracles.result import OracleResult


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file; the folder is made. Returns the path."""
    return _write(path, lambda stream: stream.write(data))


def write_table(path: Path, table: pa.Table) -> Path:
    """Write a table as Parquet."""
    return _write(path, lambda stream: pq.write_table(table, stream, compression="zstd"))


def write_result(result: OracleResult, out_dir: Path) -> OracleResult:
    """Write `<oracle>.json`; return the result."""
    write_bytes(out_dir / f"{result.oracle}.json", (result.model_dump_json(indent=2) + "\n").encode())
    return result


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as stream:
        fill(stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    return path

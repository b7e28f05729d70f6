"""A content-addressed store of scored positions: what was scored once, under one reference, is never scored again.

    store/
      index.jsonl              one line a shard: its SHA-256, bytes, rows and the keys it holds
      shards/<sha256>.parquet  one row a scored answer

The key of an answer is the SHA-256 of the reference's revision and dtype, top k, the ids before it, its ids, and what
was asked of them, so another model or another prompt never matches. A shard is read back and checked (size, SHA-256,
rows) before the index names it, and checked again whenever it is read; a partial or altered one is refused by name. A
run killed between the two leaves a shard nobody names; its answers are scored again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oracles.reference import OracleError, Reference
from oracles.scoring import ScoreRequest, TokenScores

SHARD_TOKENS = 65536
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("logprobs", pa.list_(pa.float32())),
        ("ranks", pa.list_(pa.int32())),
        ("margins", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
        ("lse", pa.list_(pa.float32())),
        ("top_ids", pa.list_(pa.int32())),
        ("top_logprobs", pa.list_(pa.float32())),
        ("tail_mass", pa.list_(pa.float32())),
    ]
)


class ScoreStore:
    """Scored answers on disk, by key."""

    def __init__(self, root: Path) -> None:
        """Open or begin a store. Raises OracleError when its index is not one."""
        self.root = root
        (root / "shards").mkdir(parents=True, exist_ok=True)
        self._index = root / "index.jsonl"
        self._shards: dict[str, dict[str, Any]] = {}
        self._where: dict[str, str] = {}
        lines = self._index.read_bytes().split(b"\n") if self._index.exists() else [b""]
        if lines.pop():  # a line without its end: the writer was killed, and its shard is not named
            with self._index.open("rb+") as stream:
                stream.truncate(sum(len(line) + 1 for line in lines))
        for number, line in enumerate(lines, 1):
            self._remember(line, number)

    def __contains__(self, key: str) -> bool:
        """Is this answer scored?"""
        return key in self._where

    def add(self, scores: dict[str, TokenScores]) -> None:
        """Write one shard and name it in the index once it was read back whole."""
        if not scores:
            return
        rows = [_row(key, value) for key, value in scores.items()]
        temporary = self.root / "shards" / f".{os.getpid()}.partial"
        with temporary.open("wb") as stream:
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), stream, compression="zstd")
            stream.flush()
            os.fsync(stream.fileno())
        digest = _sha256(temporary)
        record = {"sha256": digest, "bytes": temporary.stat().st_size, "rows": len(rows), "keys": list(scores)}
        temporary.replace(self._path(digest))
        self._read(record)
        with self._index.open("ab") as stream:
            stream.write(json.dumps(record).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._shards[digest] = record
        self._where |= dict.fromkeys(scores, digest)

    def get(self, keys: Sequence[str]) -> dict[str, TokenScores]:
        """Scores of stored answers; keys that are not stored are left out. Raises OracleError on an altered shard."""
        wanted = set(keys) & self._where.keys()
        found: dict[str, TokenScores] = {}
        for digest in {self._where[key] for key in wanted}:
            for row in self._read(self._shards[digest]).to_pylist():
                if row["key"] in wanted:
                    found[row["key"]] = _scores(row)
        return found

    def _path(self, digest: str) -> Path:
        return self.root / "shards" / f"{digest}.parquet"

    def _remember(self, line: bytes, number: int) -> None:
        try:
            record = json.loads(line)
            self._where |= dict.fromkeys(record["keys"], record["sha256"])
            self._shards[record["sha256"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise OracleError(
                f"{self._index}, line {number}: not a line of a score store; remove the store."
            ) from error

    def _read(self, record: dict[str, Any]) -> pa.Table:
        """A shard's rows, after its size, hash and row count were found to be what the index says."""
        path = self._path(record["sha256"])
        remove = f"remove {self.root} to score again"
        try:
            size, digest = path.stat().st_size, _sha256(path)
        except OSError as error:
            raise OracleError(f"{path} is missing: {remove}.") from error
        if size != record["bytes"]:
            raise OracleError(f"{path} has {size} bytes, not {record['bytes']}: it is partial; {remove}.")
        if digest != record["sha256"]:
            raise OracleError(f"{path} was altered: its SHA-256 is {digest}; {remove}.")
        table = pq.read_table(path)
        if len(table) != record["rows"] or table["key"].to_pylist() != record["keys"]:
            raise OracleError(f"{path} holds other answers than the index says; {remove}.")
        return table


def score_stored(
    reference: Reference,
    requests: Sequence[ScoreRequest],
    store: ScoreStore,
    *,
    top_k: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[TokenScores]:
    """Like `reference.score`, but what the store holds is read, and the rest is stored in shards as it is scored."""
    keys = [request_key(reference, request, top_k) for request in requests]
    total = sum(map(len, requests))
    missing = list({key: i for i, key in enumerate(keys) if key not in store}.values())
    done = total - sum(len(requests[i]) for i in missing)
    while missing:
        group, missing = _shard(missing, requests)
        part = [requests[i] for i in group]

        def advanced(now: int, _: int, before: int = done) -> None:
            if progress:
                progress(before + now, total)

        scores = reference.score(part, top_k=top_k, progress=advanced)
        store.add({keys[i]: value for i, value in zip(group, scores, strict=True)})
        done += sum(map(len, part))
    found = store.get(keys)
    if progress:
        progress(total, total)
    return [found[key] for key in keys]


def request_key(reference: Reference, request: ScoreRequest, top_k: int) -> str:
    """SHA-256 of everything a score depends on but the noise of batches."""
    dtype = getattr(reference, "dtype", "")  # a server's own is not known; its name is part of the revision
    digest = hashlib.sha256(f"1|{reference.revision}|{dtype}|{top_k}|{request.no_end}".encode())
    for part in (request.prompt, request.output, request.targets or ()):
        digest.update(f"|{len(part)}|".encode() + np.asarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


def _shard(missing: list[int], requests: Sequence[ScoreRequest]) -> tuple[list[int], list[int]]:
    """The first of the missing whose tokens fill a shard, and the rest."""
    tokens = np.cumsum([len(requests[i]) for i in missing])
    size = max(1, int(np.searchsorted(tokens, SHARD_TOKENS, side="right")))
    return missing[:size], missing[size:]


def _row(key: str, scores: TokenScores) -> dict[str, Any]:
    columns = {name: getattr(scores, name) for name in ("logprobs", "ranks", "margins", "entropies", "lse")}
    flat = {"top_ids": scores.top_ids.ravel(), "top_logprobs": scores.top_logprobs.ravel()}
    return {"key": key, **columns, **flat, "tail_mass": scores.tail_mass().astype(np.float32)}


def _scores(row: dict[str, Any]) -> TokenScores:
    floats = {name: np.array(row[name], dtype=np.float32) for name in ("logprobs", "margins", "entropies", "lse")}
    n = len(row["logprobs"])
    return TokenScores(
        **floats,
        ranks=np.array(row["ranks"], dtype=np.int32),
        top_ids=np.array(row["top_ids"], dtype=np.int32).reshape(n, -1),
        top_logprobs=np.array(row["top_logprobs"], dtype=np.float32).reshape(n, -1),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

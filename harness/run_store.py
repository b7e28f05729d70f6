"""The run directory: atomic writes, the journal that `--resume` reads, the manifest that `recheck` trusts."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from harness.errors import InvalidRun, UsageError

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
# Appended to after the manifest is written (by the journal) or made from everything else (the manifest itself).
# The note is its author's to fill in.
UNLISTED = {MANIFEST, JOURNAL, "note.md"}


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Write so that a reader, or a kill, sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def write_json(path: Path, value: Any) -> None:
    """Write a model or plain data as JSON. NaN and infinity are refused: a missing number is null."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    write_bytes(path, orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file of the run; InvalidRun names the file when it is absent or broken."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidRun(f"{path} is missing; the run is incomplete, resume it with --resume.") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRun(f"{path} is not valid JSON ({error}); the evidence was cut or altered.") from None


@dataclass(frozen=True)
class RunStore:
    """One run directory."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> RunStore:
        """Make a fresh directory; UsageError when it already holds something."""
        if root.exists() and any(root.iterdir()):
            raise UsageError(f"The run directory {root} already exists; go on with it by --resume, or name another.")
        root.mkdir(parents=True, exist_ok=True)
        return cls(root)

    @classmethod
    def open(cls, root: Path) -> RunStore:
        """Open an existing run; UsageError when there is none."""
        if not (root / "plan.yaml").is_file():
            raise UsageError(f"{root} is no run directory: it holds no plan.yaml.")
        return cls(root)

    def record(self, step: str, outputs: list[Path]) -> None:
        """Append one finished step with the SHA-256 of what it wrote; durable when this returns."""
        line = {
            "step": step,
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "outputs": {str(path.relative_to(self.root)): sha256(path) for path in outputs},
        }
        with (self.root / JOURNAL).open("ab") as file:
            # A leading newline ends the line that a kill may have cut short; empty lines mean nothing.
            file.write(b"\n" + orjson.dumps(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def finished(self, step: str) -> bool:
        """True when the journal holds the step and every file it wrote is still what it wrote."""
        outputs = self.steps().get(step)
        return outputs is not None and all(
            (self.root / name).is_file() and sha256(self.root / name) == digest for name, digest in outputs.items()
        )

    def steps(self) -> dict[str, dict[str, str]]:
        """Every finished step in order, with the SHA-256 of each file that it wrote."""
        path = self.root / JOURNAL
        steps: dict[str, dict[str, str]] = {}
        if not path.exists():
            return steps
        for line in path.read_bytes().splitlines():
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # the line a kill cut short: its step was not finished
            steps[entry["step"]] = entry["outputs"]
        return steps

    def replace_directory(self, finished: Path, target: Path) -> None:
        """Move a finished directory to its final name, dropping what a killed attempt left there."""
        if target.exists():
            shutil.rmtree(target)
        finished.replace(target)

    def files(self) -> Iterator[Path]:
        """Every file that counts as evidence, sorted, without half-written ones."""
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root)
            hidden = any(part.endswith(".partial") for part in relative.parts)
            if path.is_file() and not path.is_symlink() and not hidden and str(relative) not in UNLISTED:
                yield path

    def write_manifest(self) -> None:
        """Hash every file of the run into manifest.json."""
        hashes = {str(path.relative_to(self.root)): sha256(path) for path in self.files()}
        write_json(self.root / MANIFEST, {"schema_version": 1, "sha256": hashes})

    def altered(self) -> list[str]:
        """Files that differ from the manifest: changed, missing, or not in it, each with its word."""
        listed: dict[str, str] = read_json(self.root / MANIFEST)["sha256"]
        present = {str(path.relative_to(self.root)): path for path in self.files()}
        changed = [f"{name} (changed)" for name in listed if name in present and sha256(present[name]) != listed[name]]
        missing = [f"{name} (missing)" for name in listed if name not in present]
        added = [f"{name} (not in the manifest)" for name in present if name not in listed]
        return changed + missing + added

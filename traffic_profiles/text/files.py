"""Prompts from a file or a data set that the user has: JSONL rows with messages, prompt, question or text."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from traffic_profiles.shape import ProfileError

MAX_LINE = 8_000_000
MAX_ROWS = 200_000
HUB = "hub:"
_KEYS = ("prompt", "question", "instruction", "text", "input")

Row = tuple[str, tuple[dict[str, str], ...]]


def is_file_source(source: object) -> bool:
    """True for `file.jsonl` and `hub:OWNER/NAME`, which `read_rows` reads."""
    return isinstance(source, str) and (source.endswith(".jsonl") or source.startswith(HUB))


@cache
def read_rows(source: str, profile_path: str) -> tuple[Row, ...]:
    """(stratum, messages) of every row, in file order. ProfileError: missing file, row without a prompt."""
    rows = _hub(source.removeprefix(HUB)) if source.startswith(HUB) else _jsonl(source, profile_path)
    found = tuple(_row(row, f"{source}, row {number}") for number, row in zip(range(1, MAX_ROWS), rows, strict=False))
    if not found:
        raise ProfileError(f"text {source} holds no rows.")
    return found


def _jsonl(source: str, profile_path: str) -> Iterator[Any]:
    path = Path(source).expanduser()
    if not path.is_file() and profile_path:
        path = Path(profile_path).parent / path
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in iter(lambda: file.readline(MAX_LINE), ""):
                if line.strip():
                    yield json.loads(line)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"text {source} cannot be read: {error}.") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"text {source} holds a line that is not JSON: {error}.") from None


def _hub(name: str) -> Iterator[Any]:
    try:
        datasets = importlib.import_module("datasets")  # a second to import, and needed for this source alone
    except ImportError:
        raise ProfileError(f"text {HUB}{name} needs the package datasets; install it, or give a .jsonl file.") from None
    name, _, split = name.partition(":")
    try:
        yield from datasets.load_dataset(name, split=split or "train")
    except Exception as error:
        raise ProfileError(f"text {HUB}{name} cannot be loaded: {error!s:.200}") from None


def _row(row: Any, where: str) -> Row:
    if isinstance(row, dict):
        stratum = str(row.get("stratum") or row.get("category") or "file")[:40]
        messages = row.get("messages")
        if isinstance(messages, list) and messages:
            if all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages):
                return stratum, tuple({"role": str(m.get("role", "user")), "content": m["content"]} for m in messages)
        elif text := next((row[key] for key in _KEYS if isinstance(row.get(key), str) and row[key].strip()), None):
            return stratum, ({"role": "user", "content": text},)
    raise ProfileError(f"text {where} has no messages and none of {', '.join(_KEYS)}.")

"""Arrival times and lengths from a trace file: Mooncake JSONL, BurstGPT CSV, Azure LLM inference CSV.

The formats are the published ones. All three are replayed through AIPerf's mooncake_trace loader, which takes a
timestamp and a whole request body: so the text is ours, real language, with the trace's times, lengths and shared
blocks. (AIPerf's own prompts for a trace are random tokens, and it has no loader for Azure's files.)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from traffic_profiles.shape import ProfileError, Trace

MAX_LINE = 1_000_000
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: when, how long, and which blocks of its prompt others share."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_arrivals(trace: Trace, profile_path: str, count: int) -> tuple[Arrival, ...]:
    """The first `count` requests that pass max_isl, scaled and moved so that the first one is at 0.

    Raises ProfileError: no such file, a line that does not fit the format, fewer than `count` requests.
    """
    path = _find(trace.file, profile_path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            kept = (scaled for scaled in (_scaled(a, trace) for a in _parse(trace, path, file)) if scaled)
            arrivals = sorted(islice(kept, count), key=lambda arrival: arrival.timestamp_ms)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"trace.file {path} cannot be read: {error}.") from None
    if len(arrivals) < count:
        raise ProfileError(f"{path} has {len(arrivals)} requests within max_isl, and {count} are asked for.")
    start = arrivals[0].timestamp_ms
    return tuple(
        Arrival((a.timestamp_ms - start) / trace.speedup_ratio, a.input_length, a.output_length, a.hash_ids)
        for a in arrivals
    )


def requests_per_s(arrivals: tuple[Arrival, ...]) -> float:
    """Mean arrival rate."""
    span_s = (arrivals[-1].timestamp_ms - arrivals[0].timestamp_ms) / 1000
    return (len(arrivals) - 1) / span_s if span_s > 0 else float(len(arrivals))


def _find(name: str, profile_path: str) -> Path:
    path = Path(name).expanduser()
    beside = Path(profile_path).parent / path if profile_path else path
    for candidate in (beside, path, _FOLDER / path):
        if candidate.is_file():
            return candidate
    raise ProfileError(f"trace.file {name} is neither at that path nor beside {profile_path or 'the profile'}.")


def _scaled(arrival: Arrival, trace: Trace) -> Arrival | None:
    if trace.max_isl and arrival.input_length > trace.max_isl:
        return None
    return Arrival(
        arrival.timestamp_ms,
        max(1, round(arrival.input_length * trace.prompt_len_multiplier)),
        min(max(1, round(arrival.output_length * trace.output_len_multiplier)), trace.max_osl or 10**9),
        arrival.hash_ids,
    )


def _parse(trace: Trace, path: Path, file: TextIO) -> Iterator[Arrival]:
    read = {"mooncake_trace": _mooncake, "burst_gpt_trace": _burst_gpt, "azure_trace": _azure}[trace.format]
    rows = read(file)
    number = 1
    while True:
        try:
            arrival = next(rows, None)
        except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
            raise ProfileError(f"{path}, entry {number}: not a {trace.format} entry ({error!s:.120}).") from None
        if arrival is None:
            return
        if not (0 <= arrival.timestamp_ms < 1e15 and arrival.input_length > 0 and arrival.output_length >= 0):
            raise ProfileError(f"{path}, entry {number}: timestamp and lengths must not be negative.")
        yield arrival
        number += 1


def _mooncake(file: TextIO) -> Iterator[Arrival]:
    for line in iter(lambda: file.readline(MAX_LINE), ""):
        if not line.strip():
            continue
        row: dict[str, Any] = json.loads(line)
        yield Arrival(
            float(row["timestamp"]),
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(int(block) for block in row.get("hash_ids", ())),
        )


def _burst_gpt(file: TextIO) -> Iterator[Arrival]:
    for row in csv.DictReader(file):
        yield Arrival(1000 * float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"]))


def _azure(file: TextIO) -> Iterator[Arrival]:
    first: datetime | None = None
    for row in csv.DictReader(file):
        # Seven digits of a second: Python 3.11 reads six.
        moment = datetime.fromisoformat(row["TIMESTAMP"][:26])
        first = first or moment
        seconds = (moment - first).total_seconds()
        yield Arrival(1000 * seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))

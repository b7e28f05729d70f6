"""Which AIPerf process of a visit drives which cells: one data set format a process, a process for each trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import orjson

from traffic_profiles.dataset import dataset_lines

if TYPE_CHECKING:
    from harness.cells import Cell

Format = Literal["raw_payload", "dag_jsonl", "mooncake_trace"]
FORMATS: tuple[Format, ...] = ("raw_payload", "dag_jsonl", "mooncake_trace")
# A schedule has one phase, so the warm-up opens it: a request a second, and a pause before the trace begins.
WARMUP_GAP_MS, WARMUP_PAUSE_MS = 1000.0, 4000.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One AIPerf process; its files carry the number, the first one's do not. `cells` in the order they are driven."""

    number: int
    format: Format
    warmup_lines: int
    warmup_conversations: int
    cells: tuple[Cell, ...]

    @property
    def suffix(self) -> str:
        """As `suffix`."""
        return suffix(self.number)

    @property
    def requests(self) -> int:
        """Requests asked, warm-up included."""
        return self.warmup_lines + sum(cell.request_count for cell in self.cells)


def suffix(part: int) -> str:
    """`""`, `-2`, `-3`: between the stem and the ending of every file of a part."""
    return "" if part == 1 else f"-{part}"


def grouped(cells: Sequence[Cell]) -> list[tuple[Format, list[Cell]]]:
    """Cells by data set format, in the order given; every trace alone, because a schedule is the whole data set."""
    groups: list[tuple[Format, list[Cell]]] = []
    for kind in FORMATS:
        members = [cell for cell in cells if cell.profile.dataset_format == kind]
        if kind == "mooncake_trace":
            groups += [(kind, [cell]) for cell in members]
        elif members:
            groups.append((kind, members))
    return groups


def number_sessions(rows: Sequence[Row], part: int) -> None:
    """Give rows of one part the conversation that AIPerf will know each by: `session`, and `turn` within it.

    Before a cell's first conversation one number is left out after live ones: AIPerf draws the next conversation as
    soon as one has begun, and drops what it drew when the phase ends with a later turn, not with a first one.
    """
    number, last_cell, last_turn = -1, None, 0
    for (cell, _), members in groupby(rows, key=lambda row: (row["cell"], row.pop("conversation") or row["line"])):
        number += 2 if last_turn and cell != last_cell else 1
        for turn, row in enumerate(members):
            row |= {"part": part, "session": session(number), "turn": turn}
            last_cell, last_turn = cell, turn


def session(number: int) -> str:
    """What AIPerf calls the conversation on that line of its data set."""
    return f"session_{number:06d}"


def schedule(rows: Sequence[Row], warmup: str) -> None:
    """Put the warm-up of a trace before it: a request a second, a pause, then the trace at its own times."""
    first = [row for row in rows if row["cell"] == warmup]
    for number, row in enumerate(first):
        row["timestamp_ms"] = number * WARMUP_GAP_MS
    shift = len(first) * WARMUP_GAP_MS + WARMUP_PAUSE_MS if first else 0.0
    for row in rows:
        if row["cell"] != warmup:
            row["timestamp_ms"] += shift


def dataset_bytes(kind: Format, rows: Sequence[Row], body: Callable[[Row], dict[str, Any]]) -> bytes:
    """The lines of AIPerf's data set file for the rows of one part; `body` gives a row's request body."""
    sendable = [
        SimpleNamespace(
            row=row, session=row["session"], timestamp_ms=row["timestamp_ms"], delay_ms=row["delay_ms"] or 0.0
        )
        for row in rows
    ]
    lines = dataset_lines(kind, sendable, lambda one: body(one.row))
    whole = _with_dropped(lines) if kind == "dag_jsonl" else lines
    return b"".join(orjson.dumps(line) + b"\n" for line in whole)


def _with_dropped(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Conversations, with one in each place that `number_sessions` left out: it is drawn and never sent."""
    place = 0
    for line in lines:
        if line["session_id"] != session(place):
            yield {**line, "session_id": session(place)}
            place += 1
        yield line
        place += 1

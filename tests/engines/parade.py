"""Several engines in one AIPerf process, each in its own phases: most of a visit's time is AIPerf's start.

`Parade` is one server that plays a list of engines in turn, each for as many requests as its own visit has; AIPerf
drives the phases one after another and knows nothing of it. `carve` cuts AIPerf's export into one visit for each
engine, as if each had been driven alone: what was sent, when, and every byte that came stay as AIPerf wrote them.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from harness.cells import Cell, phase_name
from harness.run_store import read_json, write_bytes, write_json
from tests.engines.dialects import Dialect
from tests.engines.server import Seat, Server
from tests.engines.stream import Engine, Request


@dataclass(frozen=True)
class Turn:
    """One engine's visit: the bodies that it is sent, in order, and the cells they lie in."""

    name: str
    engine: Engine
    dialect: Dialect
    upstreams: list[Any]
    bodies: tuple[bytes, ...]
    cells: tuple[Cell, ...]


class Parade(Server):
    """Plays `turns` one after another, after `warmup` requests of the first."""

    def __init__(self, turns: Sequence[Turn], warmup: int, model: str) -> None:
        super().__init__(turns[0].engine, turns[0].upstreams, turns[0].dialect, model=model)
        self.turns = turns
        self.starts = list(accumulate((len(turn.bodies) for turn in turns[:-1]), initial=warmup))

    def seat(self, request: Request) -> Seat:
        """The engine whose turn it is; each counts its own requests."""
        number = max(0, bisect_right(self.starts, request.index) - 1)
        turn = self.turns[number]
        index = request.index - self.starts[number]
        return Seat(turn.engine, turn.dialect, turn.upstreams, replace(request, index=max(index, 0)))


def parade_cells(turns: Sequence[Turn]) -> tuple[Cell, ...]:
    """Every turn's cells under names of their own, in the order they are driven."""
    return tuple(_renamed(cell, number) for number, turn in enumerate(turns) for cell in turn.cells)


def _renamed(cell: Cell, number: int) -> Cell:
    return replace(cell, profile=cell.profile.model_copy(update={"name": f"{number:02d}-{cell.profile.name}"}))


def carve(parade: Path, turns: Sequence[Turn], warmup: int, number: int, visit: Path, about: dict[str, Any]) -> None:
    """Write one turn of a driven parade as a visit: raw export, summaries of its phases, visit.json.

    about: what visit.json says of this visit (pair, role, slot).
    """
    turn = turns[number]
    first = warmup + sum(len(t.bodies) for t in turns[:number])
    raw = visit / "aiperf"
    raw.mkdir(parents=True)
    times: list[int] = []
    with (raw / "profile_export_raw.jsonl").open("wb") as out:
        for record, at in _records(parade / "aiperf"):
            line = at if at < warmup else at - first + warmup
            if at >= warmup and not first <= at < first + len(turn.bodies):
                continue
            record["metadata"]["conversation_id"] = f"session_{line:06d}"
            times += [record["metadata"][k] for k in ("request_start_ns", "request_end_ns")] if at >= warmup else []
            out.write(orjson.dumps(record) + b"\n")
    for cell in turn.cells:
        came = parade / "aiperf" / "phases" / phase_name(_renamed(cell, number).name)
        if came.is_dir():
            shutil.copytree(came, raw / "phases" / phase_name(cell.name))
    span = {"started_at": min(times) / 1e9, "ended_at": max(times) / 1e9} if times else {}
    write_json(visit / "visit.json", read_json(parade / "visit.json") | span | about)


def _records(aiperf: Path) -> Iterator[tuple[dict[str, Any], int]]:
    with (aiperf / "profile_export_raw.jsonl").open("rb") as file:
        for text in file:
            record = orjson.loads(text)
            yield record, int(record["metadata"]["conversation_id"].removeprefix("session_"))


def write_parade(folder: Path, warmup: Sequence[bytes], turns: Sequence[Turn]) -> None:
    """requests.jsonl of a parade: the warm-up, then every turn's bodies."""
    folder.mkdir(parents=True, exist_ok=True)
    sent = [*warmup, *(body for turn in turns for body in turn.bodies)]
    write_bytes(folder / "requests.jsonl", b"".join(body + b"\n" for body in sent))


def without(body: bytes, fields: Sequence[str]) -> bytes:
    """The body without some of its fields."""
    if not fields:
        return body
    return orjson.dumps({name: value for name, value in orjson.loads(body).items() if name not in fields})

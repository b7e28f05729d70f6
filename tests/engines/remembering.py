"""Most engines of the zoo say the same words: what the reference scored once, and one baseline's floor, are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

import harness.score
from harness.run_store import write_json
from oracles.floor import Floor, measure_floor
from oracles.reference import LocalReference, open_reference
from oracles.result import OracleResult
from oracles.store import ScoreStore, score_stored


@contextmanager
def remembering(scores: Path, floors: Path) -> Iterator[None]:
    """While the block runs, the pipeline's reference looks into `scores` first, and the floor is that in `floors`."""
    opened: Callable[..., LocalReference] = harness.score.open_reference
    measured: Callable[..., Floor] = harness.score.measure_floor

    def floor(visits: Any, reference: Any, out: Path, **options: Any) -> Floor:
        if not (floors / "tie.json").exists():
            made = measure_floor(visits, reference.plain(), floors, **options)
            write_json(floors / "tie.json", {"tie_width": made.tie_width, "result": made.result.model_dump()})
        kept = orjson.loads((floors / "tie.json").read_bytes())
        out.mkdir(parents=True, exist_ok=True)
        for file in floors.iterdir():
            if file.name != "tie.json":
                shutil.copy(file, out / file.name)
        return Floor(OracleResult.model_validate(kept["result"]), kept["tie_width"])

    harness.score.open_reference = lambda path, **options: _reference(path, scores)  # type: ignore[assignment]
    harness.score.measure_floor = floor  # type: ignore[assignment]
    try:
        yield
    finally:
        harness.score.open_reference, harness.score.measure_floor = opened, measured  # type: ignore[assignment]


class _Remembering(LocalReference):
    """Looks up what it scored before. The floor asks the plain one: other numerics must not read the first ones."""

    def plain(self) -> LocalReference:
        return LocalReference(**{name: getattr(self, name) for name in self.__dataclass_fields__})

    def score(self, requests: Any, *, top_k: int = 0, progress: Any = None, **_: Any) -> Any:
        return score_stored(self.plain(), requests, _STORES[self.path], top_k=top_k, progress=progress)


_STORES: dict[Path, ScoreStore] = {}
_OPENED: dict[Path, _Remembering] = {}


def _reference(path: Path, scores: Path) -> _Remembering:
    if path not in _OPENED:
        plain = open_reference(path)
        _OPENED[path] = _Remembering(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
        _STORES[_OPENED[path].path] = ScoreStore(scores)
    return _OPENED[path]

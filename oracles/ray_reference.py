"""The local reference on every machine of a Ray cluster: one actor a GPU, or a core, each with the model in memory.

The batches are planned here, as one machine would make them, and each is scored whole by the same function, so the
results are the same whoever scores which. Ray starts a worker that died again and gives it its batch once more.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.reference import OracleError, open_reference
from oracles.scoring import ScoreRequest, TokenScores
from oracles.spread_reference import SpreadReference, read_folder

WHOLE = 1 << 40  # tokens: a batch that was planned stays one


@dataclass(frozen=True)
class RayReference(SpreadReference):
    """A model folder that every machine of the cluster sees under the same path."""

    address: str

    def gpus(self) -> int:
        """All of the cluster's. Raises OracleError when it cannot be reached."""
        return _cluster(self.address)[1]

    def score_planned(
        self, requests: Sequence[ScoreRequest], planned: list[list[int]], top_k: int
    ) -> Iterator[tuple[list[int], list[TokenScores]]]:
        """Every batch by some actor, as they finish."""
        if not planned:
            return
        ray, gpus = _cluster(self.address)
        device = "cuda" if gpus else "cpu"
        actors = min(len(planned), gpus or max(int(ray.cluster_resources().get("CPU", 1)), 1))
        rows = [{"number": n, "work": pickle.dumps([requests[i] for i in batch])} for n, batch in enumerate(planned)]
        scorer = {"path": str(self.path), "dtype": self.dtype, "device": device, "top_k": top_k}
        scored = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Scorer,
            fn_constructor_kwargs=scorer,
            compute=ray.data.ActorPoolStrategy(size=actors),
            **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
        )
        for row in scored.iter_rows():
            scores, notes = pickle.loads(row["scores"])  # made by our own actors
            self.notes.extend(notes)
            yield planned[int(row["number"])], scores


class _Scorer:
    """One actor: the model in memory, a batch in, its scores out."""

    def __init__(self, path: str, dtype: str, device: str, top_k: int) -> None:
        self._reference = open_reference(path, device=device, dtype=dtype)
        self._top_k = top_k

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        work: list[ScoreRequest] = pickle.loads(row["work"])  # made by the driver
        before = len(self._reference.notes)
        scores = self._reference.score(work, top_k=self._top_k, batch_tokens=WHOLE)
        return {"number": row["number"], "scores": pickle.dumps((scores, self._reference.notes[before:]))}


def open_ray(path: Path, address: str, *, dtype: str = "bfloat16") -> RayReference:
    """A reference that a Ray cluster computes; the driver loads its tokenizer alone.

    Args:
        path: the model folder, seen by every machine.
        address: of the cluster, e.g. `auto` or `ray://head:10001`; `local` starts one on this machine.
        dtype: as in `open_reference`.

    Raises OracleError for a folder that is no model's, or without Ray.
    """
    known, _ = read_folder(path, dtype)
    _import_ray()
    return RayReference(address=address, **known)


def _cluster(address: str) -> tuple[Any, int]:
    """Ray, connected, and the number of its GPUs."""
    ray = _import_ray()
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OracleError(f"--ray {address}: no cluster answers ({str(error).splitlines()[0]}).") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray, int(ray.cluster_resources().get("GPU", 0))


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OracleError(f"--ray needs the extra `ray` ({error.name}): pip install 'enginegate[ray]'") from error
    return ray

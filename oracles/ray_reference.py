"""The local reference on every machine of a Ray cluster: one actor a GPU, or a core, each with the model in memory.

The batches are planned here, as one machine would make them, and each is scored whole by the same function, so the
results are the same whoever scores which. Ray starts a worker that died again and gives it its batch once more.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracles.batching import BATCH_TOKENS_CPU, BATCH_TOKENS_GPU, plan_batches
from oracles.chat_tokenizer import ChatTokenizer, OracleError, read_chat_tokenizer
from oracles.reference import model_folder, open_reference, revision
from oracles.scoring import Progress, ScoreRequest, TokenScores, check_requests

WHOLE = 1 << 40  # tokens: a batch that was planned stays one


@dataclass(frozen=True)
class RayReference(ChatTokenizer):
    """A model folder that every machine of the cluster sees under the same path."""

    address: str
    dtype: str
    revision: str
    vocab_size: int
    context_length: int
    notes: list[str] = field(default_factory=list)

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Teacher-force every request, in the order given.

        Raises OracleError when the cluster cannot be reached or has no machine that can score, ValueError as
        `oracles.scoring.score` does.
        """
        lengths = [len(ids) for ids in check_requests(self, requests)]
        ray, gpus = _cluster(self.address)
        device = "cuda" if gpus else "cpu"
        planned = plan_batches(lengths, batch_tokens or (BATCH_TOKENS_GPU if gpus else BATCH_TOKENS_CPU))
        if not planned:
            return []
        actors = min(len(planned), gpus or max(int(ray.cluster_resources().get("CPU", 1)), 1))
        rows = [{"number": n, "work": pickle.dumps([requests[i] for i in batch])} for n, batch in enumerate(planned)]
        scorer = {"path": str(self.path), "dtype": self.dtype, "device": device, "top_k": top_k}
        scored = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Scorer,
            fn_constructor_kwargs=scorer,
            compute=ray.data.ActorPoolStrategy(size=actors),
            **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
        )
        return self._gathered(scored, planned, requests, progress)

    def _gathered(
        self, scored: Any, planned: list[list[int]], requests: Sequence[ScoreRequest], progress: Progress | None
    ) -> list[TokenScores]:
        total, done = sum(map(len, requests)), 0
        results: dict[int, TokenScores] = {}
        for row in scored.iter_rows():
            batch = planned[int(row["number"])]
            scores, notes = pickle.loads(row["scores"])  # made by our own actors
            self.notes.extend(notes)
            results.update(zip(batch, scores, strict=True))
            done += sum(len(requests[i]) for i in batch)
            if progress:
                progress(done, total)
        return [results[i] for i in range(len(requests))]


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
    folder = model_folder(path).resolve()
    identity = revision(folder)
    _import_ray()
    tokenizer, ends, text = read_chat_tokenizer(folder)
    return RayReference(
        folder, tokenizer, ends, address, dtype, identity, text.vocab_size, text.max_position_embeddings
    )


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

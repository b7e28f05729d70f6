"""A reference cut over several GPUs of this machine: tensor parallel, one process a GPU.

Transformers cuts the weights by the plan that comes with its architectures, collectives join the parts. Every process
must run the same passes in the same order, so batches are planned here and each goes to all of them. A process that
runs out of memory leaves the others waiting in a collective: then all are ended and started anew, with half the batch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from oracles.batching import within_memory
from oracles.reference import OracleError, open_reference
from oracles.scoring import ScoreRequest, TokenScores, score_batch
from oracles.spread_reference import SpreadReference, read_folder


@dataclass(frozen=True)
class ParallelReference(SpreadReference):
    """A model folder in `shards` processes."""

    shards: int
    running: list[_Processes] = field(default_factory=list)

    def gpus(self) -> int:
        """The first of this machine's, one a shard."""
        return _gpus()

    def score_planned(
        self, requests: Sequence[ScoreRequest], planned: list[list[int]], top_k: int
    ) -> Iterator[tuple[list[int], list[TokenScores]]]:
        """One batch after the other, each by all processes."""
        return within_memory(planned, lambda batch: self._scored([requests[i] for i in batch], top_k), self.notes)

    def close(self) -> None:
        """End the processes; a later `score` starts them again."""
        while self.running:
            self.running.pop().end()

    def _scored(self, batch: Sequence[ScoreRequest], top_k: int) -> list[TokenScores] | None:
        """None when memory ran out; the processes are ended then, and started anew by what is scored next."""
        try:
            if not self.running:
                self.running.append(_Processes(self.path, self.shards, self.dtype))
            scores = self.running[0].score(batch, top_k)
        except (EOFError, OSError):
            self.close()
            raise OracleError("tensor_parallel: a process of the reference ended before it had answered.") from None
        if scores is None:
            self.close()
        return scores


def open_parallel(path: Path, shards: int, *, dtype: str = "bfloat16") -> ParallelReference:
    """A reference cut over the first `shards` GPUs, or without any over so many processes on the CPU.

    Raises OracleError for a folder that is no model's, one that cannot be cut so, or too few GPUs.
    """
    known, config = read_folder(path, dtype)
    _check_cut(config, shards)
    return ParallelReference(shards=shards, **known)


def _check_cut(config: Any, shards: int) -> None:
    """Refuse a cut that transformers does not refuse itself but computes wrongly or not at all."""
    if 0 < _gpus() < shards:
        raise OracleError(f"tensor_parallel: {shards} is more than the {_gpus()} GPUs of this machine.")
    if not getattr(config, "base_model_tp_plan", None):
        raise OracleError(f"tensor_parallel: transformers has no plan to cut a {config.model_type} model.")
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads and heads % shards:
            raise OracleError(f"tensor_parallel: {heads} ({name}) cannot be cut into {shards} equal parts.")


class _Processes:
    """One process a shard. They live until `end`, or as long as this process."""

    def __init__(self, folder: Path, shards: int, dtype: str) -> None:
        context = get_context("spawn")
        self._meeting = tempfile.TemporaryDirectory(prefix="enginegate-shards-")
        pipes = [context.Pipe() for _ in range(shards)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(
                target=_serve,
                args=(theirs, rank, shards, f"{self._meeting.name}/meet", str(folder), dtype),
                daemon=True,
            )
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()
        try:
            refused = next((answer for answer in self._answers() if isinstance(answer, str)), None)
        except (EOFError, OSError):
            refused = "tensor_parallel: a process of the reference ended while it loaded its part."
        if refused:
            self.end()
            raise OracleError(refused)

    def score(self, batch: Sequence[ScoreRequest], top_k: int) -> list[TokenScores] | None:
        """Scores of one batch; None when memory ran out, and the processes are of no use any more."""
        for pipe in self._pipes:
            pipe.send((batch, top_k))
        scores: list[TokenScores] | None = None
        for answer in self._answers():
            if answer is None:
                return None
            scores = answer or scores
        return scores

    def end(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.join()
        self._meeting.cleanup()

    def _answers(self) -> Iterator[Any]:
        """One answer of each, as they come. EOFError or OSError when one has ended."""
        waiting = list(self._pipes)
        while waiting:
            ready: list[Any] = connection.wait(waiting)
            for pipe in ready:
                yield pipe.recv()
                waiting.remove(pipe)


def _serve(pipe: Any, rank: int, shards: int, meeting: str, folder: str, dtype: str) -> None:
    """A process's life: load its part, then score what comes; the first process alone returns the scores."""
    import torch
    from torch import distributed

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(shards)}
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // shards))
    try:
        how = {"init_method": f"file://{meeting}", "rank": rank, "world_size": shards}
        distributed.init_process_group("nccl" if on_gpu else "gloo", **how)
        reference = open_reference(folder, dtype=dtype, shards=shards)
    except (OracleError, RuntimeError) as error:
        pipe.send(f"tensor_parallel: {error}")
        return
    pipe.send(True)
    while True:
        try:
            batch, top_k = pipe.recv()
        except EOFError:
            return
        scores = score_batch(reference, batch, top_k)
        pipe.send(scores if rank == 0 or scores is None else [])


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())

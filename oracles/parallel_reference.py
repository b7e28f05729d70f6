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

from oracles.batching import BATCH_TOKENS_CPU, BATCH_TOKENS_GPU, halved, plan_batches
from oracles.chat_tokenizer import ChatTokenizer, OracleError, read_chat_tokenizer
from oracles.reference import model_folder, open_reference, revision
from oracles.scoring import Progress, ScoreRequest, TokenScores, check_requests, score_batch


@dataclass(frozen=True)
class ParallelReference(ChatTokenizer):
    """A model folder in `shards` processes; this one holds the tokenizer alone."""

    shards: int
    dtype: str
    revision: str
    vocab_size: int
    context_length: int
    notes: list[str] = field(default_factory=list)
    running: list[_Processes] = field(default_factory=list)

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Teacher-force every request, in the order given.

        Raises OracleError when a process ends or cannot load its part, ValueError and MemoryError as
        `oracles.scoring.score` does.
        """
        lengths = [len(ids) for ids in check_requests(self, requests)]
        queue = plan_batches(lengths, batch_tokens or (BATCH_TOKENS_GPU if _gpus() else BATCH_TOKENS_CPU))
        results: dict[int, TokenScores] = {}
        done = 0
        while queue:
            scores = self._scored([requests[i] for i in queue[0]], top_k)
            if scores is None:
                self.close()
                queue = halved(queue)
                self.notes.append(f"memory ran out: scoring went on with {len(queue[0])} sequences at once")
                continue
            results.update(zip(queue[0], scores, strict=True))
            done += sum(lengths[i] for i in queue[0])
            if progress:
                progress(done, sum(lengths))
            queue = queue[1:]
        return [results[i] for i in range(len(requests))]

    def close(self) -> None:
        """End the processes; a later `score` starts them again."""
        while self.running:
            self.running.pop().end()

    def _scored(self, batch: Sequence[ScoreRequest], top_k: int) -> list[TokenScores] | None:
        try:
            if not self.running:
                self.running.append(_Processes(self.path, self.shards, self.dtype))
            return self.running[0].score(batch, top_k)
        except (EOFError, OSError):
            self.close()
            raise OracleError("tensor_parallel: a process of the reference ended before it had answered.") from None


def open_parallel(path: Path, shards: int, *, dtype: str = "bfloat16") -> ParallelReference:
    """A reference cut over the first `shards` GPUs, or without any over so many processes on the CPU.

    Raises OracleError for a folder that is no model's, one that cannot be cut so, or too few GPUs.
    """
    folder = model_folder(path).resolve()
    tokenizer, ends, config = read_chat_tokenizer(folder)
    _check_cut(config, shards)
    return ParallelReference(
        folder, tokenizer, ends, shards, dtype, revision(folder), config.vocab_size, config.max_position_embeddings
    )


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

"""A reference in other processes: batches are planned here, as one machine would make them, and scored there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracles.batching import BATCH_TOKENS_CPU, BATCH_TOKENS_GPU, plan_batches
from oracles.chat_tokenizer import ChatTokenizer, read_chat_tokenizer
from oracles.reference import model_folder, revision
from oracles.scoring import Progress, ScoreRequest, TokenScores, check_requests


@dataclass(frozen=True)
class SpreadReference(ChatTokenizer):
    """A model folder whose weights others hold; this process holds the tokenizer alone."""

    dtype: str
    revision: str
    vocab_size: int
    context_length: int
    notes: list[str] = field(default_factory=list, kw_only=True)

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Teacher-force every request, in the order given.

        Raises OracleError when those who score cannot be had, ValueError and MemoryError as `oracles.scoring.score`
        does.
        """
        lengths = [len(ids) for ids in check_requests(self, requests)]
        planned = plan_batches(lengths, batch_tokens or (BATCH_TOKENS_GPU if self.gpus() else BATCH_TOKENS_CPU))
        total, done = sum(lengths), 0
        results: dict[int, TokenScores] = {}
        for batch, scores in self.score_planned(requests, planned, top_k):
            results.update(zip(batch, scores, strict=True))
            done += sum(lengths[i] for i in batch)
            if progress:
                progress(done, total)
        return [results[i] for i in range(len(requests))]

    def gpus(self) -> int:
        """GPUs that score; 0 where cores do."""
        raise NotImplementedError

    def score_planned(
        self, requests: Sequence[ScoreRequest], planned: list[list[int]], top_k: int
    ) -> Iterator[tuple[list[int], list[TokenScores]]]:
        """(indices, their scores) of every batch as it comes."""
        raise NotImplementedError


def read_folder(path: Path, dtype: str) -> tuple[dict[str, Any], Any]:
    """What a SpreadReference of a model folder is made of, and the model's text config. Raises OracleError."""
    folder = model_folder(path).resolve()
    identity = revision(folder)
    tokenizer, ends, config = read_chat_tokenizer(folder)
    known = {
        "path": folder, "tokenizer": tokenizer, "end_token_ids": ends, "dtype": dtype, "revision": identity,
        "vocab_size": config.vocab_size, "context_length": config.max_position_embeddings,
    }  # fmt: skip
    return known, config

"""The BF16 reference: a local transformers folder that every arm's tokens are teacher-forced under.

`Reference` is the small protocol the oracles need; `LocalReference` is a folder on this machine. Nothing here reaches a
network: only local files are read, and no code that comes with a model is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from oracles.chat_tokenizer import ChatTokenizer, OracleError, end_ids
from oracles.experts import use_sorted_experts
from oracles.scoring import Progress, ScoreRequest, TokenScores, score
from oracles.token_statistics import compile_in_process

__all__ = ["ChatTokenizer", "LocalReference", "OracleError", "Reference", "open_reference"]

DTYPES = ("bfloat16", "float16", "float32")
_SAMPLES, _SAMPLE_BYTES = 256, 4096


class Reference(Protocol):
    """What scores tokens: a tokenizer with its chat template, and a model that gives every position's distribution."""

    @property
    def revision(self) -> str:
        """Identifies weights, config and tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def context_length(self) -> int:
        """Longest sequence, in tokens."""

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""

    @property
    def end_token_id(self) -> int:
        """The one that ends a chat answer."""

    def prompt_ids(self, messages: Sequence[dict[str, Any]] | str) -> list[int]:
        """Token ids of a prompt: chat messages through the template, a string as a completion prompt."""

    def encode_output(self, text: str) -> list[int]:
        """Token ids of an answer's text."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids, with special tokens or without."""

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Teacher-force every request, in the order given."""


@dataclass(frozen=True)
class LocalReference(ChatTokenizer):
    """A causal language model in memory. `revision` identifies its weights, config and tokenizer."""

    model: Any
    revision: str
    notes: list[str] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """Compute type, e.g. bfloat16."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def vocab_size(self) -> int:
        """Rows of the output matrix."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        return int(self.model.config.get_text_config().max_position_embeddings)

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        cached: bool = False,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Teacher-force every request; see `oracles.scoring.score_batches`."""
        return score(self, requests, top_k=top_k, batch_tokens=batch_tokens, cached=cached, progress=progress)


def open_reference(
    path: Path | str, *, device: str = "auto", dtype: str = "bfloat16", attention: str = "sdpa", shards: int = 1
) -> LocalReference:
    """Load a model folder (config.json, safetensors, tokenizer) for scoring.

    Args:
        path: local folder; a hub name is refused.
        device: `cpu`, `cuda`, `cuda:1`, or `auto`: the GPUs that are there, else the CPU.
        dtype: `bfloat16`, `float16` or `float32`; BF16 weights in float32 are the same weights with exact arithmetic.
        attention: a transformers attention implementation, e.g. `sdpa` or `eager`.
        shards: processes of a process group that is there already, each of which opens its part of the weights.

    Raises:
        OracleError: the folder, its files, the dtype or the `reference` extra is missing or unusable.
    """
    folder = model_folder(Path(path))
    if dtype not in DTYPES:
        raise OracleError(f"Reference dtype {dtype} is not one of {', '.join(DTYPES)}.")
    identity = revision(folder)
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise OracleError(
            f"The local reference needs the extra `reference`, and {error.name} is not installed: "
            "pip install 'enginegate[reference]'"
        ) from error
    logging.disable_progress_bar()
    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **offline)
        placed = _placement(torch, device) if shards == 1 else _cut(shards)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention, **placed, **offline
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise OracleError(f"{folder} could not be loaded as a reference: {_first_line(error)}") from error
    ends = end_ids(model.generation_config.eos_token_id, tokenizer)
    reference = LocalReference(folder, tokenizer, ends, model.eval().requires_grad_(False), identity)
    _check_vocabulary(reference)
    if model.device.type == "cuda" and shards == 1:
        use_sorted_experts(model)
    return reference


def compile_layers(model: Any) -> None:
    """Compile the decoder's layers in place, one program for all of them and for any batch.

    Worth its minute on a GPU and a mixture of experts, where moving expert rows about costs more than multiplying them.
    """
    compile_in_process()
    for layer in model.get_decoder().layers:
        layer.compile(dynamic=True)


def revision(folder: Path) -> str:
    """SHA-256 over config, tokenizer, every weight file's size and header, and 1 MiB of each file's weights.

    Enough to tell two quantisations of one model apart without reading tens of gigabytes.
    """
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.iterdir() if p.suffix in {".json", ".jinja"} and p.is_file()):
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(size, 100_000_000):
                raise OracleError(f"{file} is not a whole safetensors file: its header claims {length} bytes.")
            digest.update(stream.read(length))
            for i in range(_SAMPLES):
                stream.seek(8 + length + (size - 8 - length) * i // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def model_folder(folder: Path) -> Path:
    """The folder, once it was found to hold a whole model. Raises OracleError."""
    if not folder.is_dir():
        raise OracleError(
            f"{folder} is not a folder: the reference is a local model folder (nothing is fetched from a hub)."
        )
    if not (folder / "config.json").is_file():
        raise OracleError(f"{folder} has no config.json: give the folder that holds config.json and *.safetensors.")
    if not any(folder.glob("*.safetensors")):
        raise OracleError(f"{folder} has no *.safetensors: only safetensors weights are read.")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        absent = sorted(s for s in shards if not (folder / s).is_file())
        if absent:
            raise OracleError(f"{folder} lacks {absent[0]} and {len(absent) - 1} other weight files of its index.")
    return folder


def _placement(torch: Any, device: str) -> dict[str, Any]:
    if device == "auto":
        return {"device_map": "auto" if torch.cuda.is_available() else "cpu"}
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise OracleError(f"Reference device {device}: torch sees no GPU here; use cpu or auto.")
    return {"device_map": device}


def _cut(shards: int) -> dict[str, Any]:
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=shards, tp_plan="auto")}


def _check_vocabulary(reference: LocalReference) -> None:
    tokens, rows = len(reference.tokenizer), reference.vocab_size
    if tokens > rows:
        raise OracleError(
            f"{reference.path}: its tokenizer has {tokens} tokens, its model {rows}: these do not belong together."
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

"""What a real model says to everything that a workload asks, decoded in batches and kept as a bank of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from tests.engines.recorded import key_of, read_bank
from tests.engines.stream import Request

BATCH = 32


def record(model: Path, bodies: Iterable[dict[str, Any]], file: Path) -> int:
    """Decode every answer that `file` does not hold, append them, return how many there were.

    model: a Hugging Face folder. Stop strings are left to who plays the answers; samples come from a fixed seed.
    """
    known = read_bank(file)
    asked = {key_of(request): request for request in map(Request, bodies)}
    missing = [request for key, request in asked.items() if key not in known]
    for request, answer in _answers(model, missing) if missing else ():
        with file.open("ab") as stream:
            stream.write(orjson.dumps({"key": key_of(request), **answer}) + b"\n")
    return len(missing)


def _answers(folder: Path, requests: Sequence[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    kinds: dict[tuple[float, bool, int], list[Request]] = {}
    for request in requests:
        kinds.setdefault((request.temperature, request.ignore_eos, request.max_tokens), []).append(request)
    for (temperature, endless, length), alike in kinds.items():
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        shortest = {"min_new_tokens": length} if endless else {}
        for batch in _batches(sorted(alike, key=lambda request: len(request.prompt))):
            prompts = [_prompt(tokenizer, request) for request in batch]
            ids = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.inference_mode():
                made = model.generate(**ids, max_new_tokens=length, **{"do_sample": False} | sampling | shortest)
            new, used = made[:, ids["input_ids"].shape[1] :].tolist(), ids["attention_mask"].sum(1).tolist()
            for request, row, prompt_tokens in zip(batch, new, used, strict=True):
                yield request, _answer(row, prompt_tokens, tokenizer)


def _prompt(tokenizer: Any, request: Request) -> str:
    return str(tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True))


def _batches(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), BATCH):
        yield requests[start : start + BATCH]


def _answer(ids: list[int], prompt_tokens: int, tokenizer: Any) -> dict[str, Any]:
    """Ids, not text: a character that the limit cuts in two would come back from text as tokens nobody decoded."""
    ended = tokenizer.eos_token_id in ids
    said = ids[: ids.index(tokenizer.eos_token_id)] if ended else ids
    return {"ids": said, "finish": "stop" if ended else "length", "prompt_tokens": prompt_tokens}

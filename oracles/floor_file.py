"""A noise floor that was measured before, for every run under the same reference.

Measured on the reference's own greedy answers, so that it needs no engine; a run that names none measures its floor on
the baseline's timed answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from oracles.answers import Answer
from oracles.atomic import write_bytes
from oracles.floor import Floor
from oracles.reference import LocalReference, OracleError, Reference
from oracles.result import OracleResult
from oracles.scoring import Progress

FILES = ("tokens.json", "tokens.parquet", "logits.parquet")
ANSWER_TOKENS, TOGETHER = 64, 8


@dataclass(frozen=True)
class Prompt:
    """What the reference is asked."""

    item: str
    stratum: str
    messages: Sequence[dict[str, Any]]


def own_answers(
    reference: LocalReference, prompts: Sequence[Prompt], *, progress: Progress | None = None
) -> list[Answer]:
    """The reference's greedy answers of up to 64 tokens, several at once. Raises OracleError for a prompt too long."""
    answers: list[Answer] = []
    for first in range(0, len(prompts), TOGETHER):
        group = prompts[first : first + TOGETHER]
        asked = [reference.prompt_ids(list(prompt.messages)) for prompt in group]
        room = reference.context_length - max(map(len, asked))
        if room < ANSWER_TOKENS:
            raise OracleError(f"A prompt of {max(map(len, asked))} tokens leaves no room for an answer.")
        for offset, (ids, new) in enumerate(zip(asked, _generated(reference, asked), strict=True)):
            about = group[offset]
            answers.append(
                Answer(1, first + offset, "floor", about.item, about.stratum, ids, new, "engine", True, False)
            )
        if progress:
            progress(len(answers), len(prompts))
    return [answer for answer in answers if answer.ids]


def _generated(reference: LocalReference, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy answers to left-padded prompts, each up to and with its end token."""
    import torch

    longest, device = max(map(len, prompts)), reference.model.device
    pad = reference.end_token_id
    ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    with torch.inference_mode():
        out = reference.model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=ANSWER_TOKENS, pad_token_id=pad,
            eos_token_id=sorted(reference.end_token_ids),
        )[:, longest:].cpu().numpy()  # fmt: skip
    found = []
    for row in out:
        ends = np.flatnonzero(np.isin(row, sorted(reference.end_token_ids)))
        found.append(row[: ends[0] + 1 if len(ends) else len(row)].tolist())
    return found


def take_floor(folder: Path, reference: Reference, out_dir: Path) -> Floor:
    """Copy a measured floor into a run. Raises OracleError when it is not whole or of another reference."""
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise OracleError(f"floor: {folder} has no {absent[0]}: name a folder that `enginegate floor` wrote.")
    try:
        result = OracleResult.model_validate_json((folder / "tokens.json").read_bytes())
    except ValidationError as error:
        raise OracleError(f"floor: {folder / 'tokens.json'} is not a floor's: {error.errors()[0]['msg']}.") from error
    if result.arm != "floor" or "tie_width" not in result.metrics:
        raise OracleError(f"floor: {folder / 'tokens.json'} holds no measured floor.")
    if result.inputs.get("reference") != reference.revision:
        raise OracleError(
            f"floor: {folder} was measured under another reference; measure it again: enginegate floor --reference ..."
        )
    for name in FILES:
        write_bytes(out_dir / name, (folder / name).read_bytes())
    return Floor(result, result.metrics["tie_width"].value)

"""Both halves of the doctor in one go: every endpoint examined, then this client calibrated for how they stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.calibration import MARGIN, Bias, block_sentences, calibrate, client_fingerprint, in_blocks
from harness.calibration_visit import Shape
from harness.doctor import Diagnosis, candidate_shapes, examine
from harness.errors import UsageError
from harness.probes import Support
from harness.progress import Progress
from harness.traffic_plan import check_model_folder
from harness.verdict import Record


@dataclass(frozen=True)
class Request:
    """What the doctor was asked; `shapes` as keys of `Shape`, no concurrency at all means no calibration."""

    urls: dict[str, str]
    model: str
    reference: Path | None
    tokenizer: Path | None
    api_key_env: str | None
    concurrencies: tuple[int, ...]
    shapes: tuple[dict[str, Any], ...]
    fresh: bool


class Checkup(Record):
    """What the doctor found (`doctor --json`)."""

    endpoints: tuple[Diagnosis, ...]
    client: dict[str, Any] = Field(description="what a bias depends on besides the shape")
    biases: tuple[Bias, ...]
    measurable: tuple[str, ...] = Field(description="one sentence a bias, or why there is none")


def check_up(asked: Request, progress: Progress) -> Checkup:
    """Examine every endpoint, then calibrate. Raises UsageError or InvalidRun with a sentence."""
    folder = asked.tokenizer or asked.reference
    if folder is not None and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"--tokenizer: {folder} has no tokenizer.json; save the tokenizer there with save_pretrained.")
    if asked.reference is not None:
        check_model_folder(asked.reference, "--reference")
    if asked.shapes and folder is None:
        raise UsageError("--shape needs --tokenizer: AIPerf counts with it, and its cost is part of the client.")
    diagnoses = tuple(
        examine(
            name,
            url,
            asked.model,
            api_key_env=asked.api_key_env,
            tokenizer=folder,
            reference=asked.reference,
            progress=progress,
        )
        for name, url in asked.urls.items()
    )
    biases: tuple[Bias, ...] = ()
    said: tuple[str, ...] = ("The client was not calibrated.",)
    if folder is not None:
        biases = _biases(asked, folder, diagnoses, progress)
    elif asked.concurrencies:
        said = ("The client was not calibrated: name a folder with tokenizer.json by --tokenizer or --reference.",)
    return Checkup(
        endpoints=diagnoses,
        client=client_fingerprint("never"),
        biases=biases,
        measurable=(*(bias.sentence(MARGIN) for bias in biases), *block_sentences(biases, MARGIN)) or said,
    )


def _biases(asked: Request, tokenizer: Path, diagnoses: tuple[Diagnosis, ...], progress: Progress) -> tuple[Bias, ...]:
    shapes = [Shape.model_validate(shape) for shape in asked.shapes]
    for diagnosis in diagnoses:
        side_by_side = diagnosis.capability("two streams at once").support not in (Support.WRONG, Support.PARTLY)
        loads = asked.concurrencies if side_by_side else asked.concurrencies[:1]
        if loads:
            progress(f"{diagnosis.endpoint}: how it streams at concurrency {', '.join(map(str, loads))}")
            shapes += candidate_shapes(diagnosis.url, asked.model, loads, api_key_env=asked.api_key_env)
    if not shapes:
        return ()
    biases = calibrate(shapes, tokenizer, fresh=asked.fresh, progress=progress)
    blocks = [shape for bias in biases if (shape := in_blocks(bias, MARGIN)) and shape not in shapes]
    return biases + (calibrate(blocks, tokenizer, fresh=asked.fresh, progress=progress) if blocks else ())

"""`noise.json`: what an A/A run leaves beside its run directory, and which later gate may use it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.cells import Cell
from harness.environment import machine
from harness.errors import InvalidRun
from harness.noise import AaResult, KnownNoise
from harness.plan import Plan
from harness.run_store import read_json, write_json

NOISE = "noise.json"


def keep_noise(result: AaResult, plan: Plan, cells: Sequence[Cell], run: Path) -> None:
    """Leave the noise of an A/A run in the folder that holds its run directory."""
    known = KnownNoise(
        run=run.name,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fits=fits(plan, cells),
        result=result,
    )
    write_json(run.parent / NOISE, known)


def read_noise(folder: Path) -> KnownNoise | None:
    """The folder's noise file, None without one. Raises InvalidRun when it cannot be read."""
    path = folder / NOISE
    if not path.is_file():
        return None
    try:
        return KnownNoise.model_validate(read_json(path), strict=False)
    except ValidationError:
        raise InvalidRun(
            f"{path} is no noise file that can be read; remove it, or repeat enginegate gate --aa."
        ) from None


def fitting_noise(plan: Plan, cells: Sequence[Cell], folder: Path) -> KnownNoise | None:
    """The folder's noise file when it is of this baseline, on this machine, in these cells."""
    known = None if plan.aa else read_noise(folder)
    return known if known and known.fits == fits(plan, cells) else None


def fits(plan: Plan, cells: Sequence[Cell]) -> dict[str, Any]:
    """What two runs must share for the noise of one to say something about the other."""
    baseline = plan.endpoints.baseline
    return {
        "model": plan.model,
        "baseline": baseline.launch or list(baseline.all_urls),
        "machine": machine(),
        "cells": {cell.name: cell.request_count for cell in cells},
    }

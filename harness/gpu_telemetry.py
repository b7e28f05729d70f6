"""Memory, utilisation and energy of an endpoint's GPUs, cell by cell, from AIPerf's own NVML telemetry.

AIPerf reads every GPU of the client's machine three times a second (`gpu_telemetry_export.jsonl`). Which of them are
the endpoint's, and whether another engine holds memory on them too, only the plan can say; what it leaves open is left
unmeasured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import Field

from harness.cells import phase_name
from harness.errors import InvalidRun
from harness.measurement import Arm, VisitMeasurement
from harness.run_store import read_json
from harness.traffic_plan import TrafficPlan
from harness.verdict import Record

EXPORT = "gpu_telemetry_export.jsonl"
MARGIN_NS = 400_000_000  # a little over AIPerf's interval: the sample that sees a phase's end may come after it
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_MIB_PER_GB, _J_PER_MJ = 1e9 / 2**20, 1e6
Values = npt.NDArray[np.float64]


class Watched(Record):
    """What a visit's telemetry is about: `gpu` in visit.json."""

    gpus: int = Field(description="how many the endpoint uses")
    gpu_ids: tuple[int, ...] = Field((), description="which, by NVML index; none: the plan does not say")
    memory_apart: bool = Field(description="no other engine of the run can hold memory on them")


def watched(plan: TrafficPlan, arm: Arm) -> Watched | None:
    """What telemetry can tell of this arm; None for an endpoint without GPUs or on another machine."""
    endpoint = plan.endpoint(arm)
    if not endpoint.gpus or not all(urlsplit(url).hostname in _LOCAL for url in endpoint.all_urls):
        return None
    return Watched(gpus=endpoint.gpus, gpu_ids=endpoint.gpu_ids, memory_apart=_memory_apart(plan))


def measures_memory(plan: TrafficPlan) -> bool:
    """True when each arm's peak memory can be told from the other's."""
    return _memory_apart(plan) and all(watched(plan, arm) for arm in plan.arms)


def _memory_apart(plan: TrafficPlan) -> bool:
    endpoints = [plan.endpoint(arm) for arm in plan.arms]
    if plan.engines == "one-at-a-time" and all(endpoint.launch for endpoint in endpoints):
        return True
    ids = [set(endpoint.gpu_ids) for endpoint in endpoints]
    return all(ids) and len(set().union(*ids)) == sum(map(len, ids))


def with_gpu_signals(measurement: VisitMeasurement, aiperf: Path, about: Watched | None) -> VisitMeasurement:
    """Add `peak_memory_mib`, `gpu_utilization` (%), `gpu_energy_j` and `energy_per_output_token_j` to every cell.

    A figure that AIPerf's export cannot give is null. `aiperf` is the visit's folder of AIPerf's output. Raises
    InvalidRun when the export is there and broken.
    """
    if about is None:
        return measurement
    samples = _read(aiperf / EXPORT, about)
    windows = _windows(aiperf)
    cells = {}
    for name, cell in measurement.cells.items():
        found = _signals(samples, windows.get(phase_name(name)), memory=about.memory_apart)
        energy = found["gpu_energy_j"]
        found["energy_per_output_token_j"] = energy / cell.output_tokens if energy and cell.output_tokens else None
        cells[name] = cell.model_copy(update={"signals": {**cell.signals, **found}})
    return measurement.model_copy(update={"cells": cells})


def _read(path: Path, about: Watched) -> dict[int, Values]:
    """GPU index -> [samples, (time_ns, memory_gb, utilisation, energy_mj)] in time order; empty for unknown GPUs."""
    rows: dict[int, list[tuple[float, ...]]] = {}
    if not path.is_file():
        return {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = orjson.loads(line)
            data = record["telemetry_data"]
            names = ("nvidia_memory_used", "nvidia_gpu_utilization", "nvidia_energy_consumption")
            sample = (float(record["timestamp_ns"]), *(float(data.get(name, np.nan)) for name in names))
            rows.setdefault(int(record["gpu_index"]), []).append(sample)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise InvalidRun(f"{path}, line {number}: not AIPerf's GPU telemetry; the export was cut.") from None
    chosen = set(about.gpu_ids or rows)
    # More GPUs than the endpoint uses, and no word which: whose figures these are is not known.
    if len(chosen) != about.gpus or not chosen <= set(rows):
        return {}
    return {index: np.array(sorted(rows[index]), dtype=np.float64) for index in sorted(chosen)}


def _windows(aiperf: Path) -> dict[str, tuple[int, int]]:
    """Phase name -> its start and end, nanoseconds since the epoch, from AIPerf's phase manifest."""
    path = aiperf / "phase_manifest.json"
    phases: Sequence[Mapping[str, Any]] = read_json(path)["phases"] if path.is_file() else ()
    return {phase["phase_name"]: (phase["start_ns"], phase["end_ns"]) for phase in phases if phase.get("end_ns")}


def _signals(samples: Mapping[int, Values], window: tuple[int, int] | None, *, memory: bool) -> dict[str, float | None]:
    names = ("gpu_utilization", "gpu_energy_j", *(("peak_memory_mib",) if memory else ()))
    if not samples or window is None:
        return dict.fromkeys(names)
    start, end = window
    by_gpu = [_of_one(one, start, end) for one in samples.values()]
    peak, utilisation, energy = (np.array(column) for column in zip(*by_gpu, strict=True))
    found = (float(utilisation.mean()), float(energy.sum()) * _J_PER_MJ, float(peak.sum()) * _MIB_PER_GB)
    return {name: value if np.isfinite(value) else None for name, value in zip(names, found, strict=False)}


def _of_one(samples: Values, start: int, end: int) -> tuple[float, float, float]:
    """Largest memory (GB), mean utilisation (%) and energy (MJ) of one GPU in a window; NaN for what is unknown."""
    time, memory, utilisation, energy = samples.T
    near = (time >= start - MARGIN_NS) & (time <= end + MARGIN_NS)
    inside = (time >= start) & (time <= end)
    peak = memory[near].max() if near.any() else np.nan  # NaN where one sample lacks it
    mean = utilisation[inside].mean() if inside.any() else np.nan
    # The counter is read at its own times: interpolated to the phase's ends, never extrapolated.
    covered = len(time) and time[0] <= start and time[-1] >= end and np.isfinite(energy).all()
    used = float(np.diff(np.interp([start, end], time, energy))[0]) if covered else np.nan
    return float(peak), float(mean), used

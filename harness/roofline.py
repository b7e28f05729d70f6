"""How many decode steps a second the hardware allows one sequence: memory bandwidth over the bytes a step must read.

A bound for the honesty check `impossible-speed`, so every unknown errs towards the engine: weights are taken at four
bits whatever they are served in, the KV cache as free, and several GPUs as sharing the work perfectly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from harness.gpu_telemetry import watched
from harness.measurement import Role
from harness.plan import Plan
from harness.traffic_plan import Endpoint

BYTES_PER_WEIGHT = 0.5
# GB/s by the name that nvidia-smi gives, from the vendor's data sheets. A GPU that is not here needs
# `memory_bandwidth_gb_s` in the plan, or has no roofline.
BANDWIDTH_GB_S = {
    "NVIDIA A100-SXM4-40GB": 1555,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA A100 80GB PCIe": 1935,
    "NVIDIA L4": 300,
    "NVIDIA L40S": 864,
    "NVIDIA H100 PCIe": 2000,
    "NVIDIA H100 80GB HBM3": 3350,
    "NVIDIA H100 NVL": 3900,
    "NVIDIA H200": 4800,
    "NVIDIA B200": 8000,
}


def steps_per_s(plan: Plan, role: Role, gpus: Sequence[Mapping[str, Any]]) -> float | None:
    """The bound for one arm; None when its GPUs, their bandwidth or the model's weights are not known.

    `gpus`: this machine's, as environment.json lists them.
    """
    endpoint: Endpoint = getattr(plan.endpoints, role)
    bandwidth = _bandwidth_gb_s(plan, role, gpus)
    folder = plan.reference.path if plan.reference else None
    if not endpoint.gpus or bandwidth is None or folder is None:
        return None
    weights = active_weights(folder)
    return bandwidth * 1e9 * endpoint.gpus / (BYTES_PER_WEIGHT * weights) if weights else None


def _bandwidth_gb_s(plan: Plan, role: Role, gpus: Sequence[Mapping[str, Any]]) -> float | None:
    endpoint: Endpoint = getattr(plan.endpoints, role)
    if endpoint.memory_bandwidth_gb_s or not watched(plan, role):
        return endpoint.memory_bandwidth_gb_s  # another machine's GPUs are not the ones seen here
    names = {str(gpus[i].get("name")) for i in endpoint.gpu_ids or range(len(gpus)) if i < len(gpus)}
    known = [BANDWIDTH_GB_S.get(name) for name in names]
    return max((one for one in known if one is not None), default=None) if all(known) else None


def active_weights(folder: Path) -> int:
    """Weights that one decode step multiplies with: of experts only the chosen ones, of embeddings only a tied output.

    Read from the safetensors headers and config.json; 0 when they cannot be understood.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
        config = config.get("text_config", config)
        shapes = [item for file in sorted(folder.glob("*.safetensors")) for item in _shapes(file).items()]
        experts = config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts")
        chosen = config.get("num_experts_per_tok")
        total = 0.0
        for name, shape in shapes:
            if "embed_tokens" in name and not config.get("tie_word_embeddings"):
                continue
            share = chosen / experts if ".experts." in name and chosen and experts else 1.0
            total += prod(shape) * share
    except (OSError, ValueError, TypeError, AttributeError, KeyError, struct.error, ZeroDivisionError):
        return 0
    return int(total)


def _shapes(file: Path) -> dict[str, list[int]]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(file.stat().st_size, 100_000_000):
            raise ValueError(f"{file} is not a whole safetensors file")
        header = json.loads(stream.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}

"""Write gpu_telemetry_export.jsonl with AIPerf's own collector and record model, over a stand-in for NVML: two GPUs.

    python tests/recorded/gpu/make.py

GPU 0 draws 120 W and 1 MiB more a second from 10 GiB on; GPU 1 draws 220 W and starts at 11 GiB. A sample of both every
333 ms from 1796199587.0 s on.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson

START_NS, INTERVAL_NS, SAMPLES = 1_796_199_587_000_000_000, 333_000_000, 24
now_ns = START_NS


class NVMLError(Exception):
    """As pynvml's."""


def absent(*_: Any) -> Any:
    raise NVMLError


def elapsed_s() -> float:
    return (now_ns - START_NS) / 1e9


nvml = ModuleType("pynvml")
vars(nvml).update(
    NVMLError=NVMLError,
    NVML_TEMPERATURE_GPU=0,
    NVML_PERF_POLICY_POWER=0,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda i: i,
    nvmlDeviceGetUUID=lambda h: f"GPU-0000000{h}-1111-2222-3333-444444444444",
    nvmlDeviceGetName=lambda h: "NVIDIA H200",
    nvmlDeviceGetPciInfo=lambda h: SimpleNamespace(busId=f"00000000:0{h}:00.0"),
    nvmlGpmQueryDeviceSupport=absent,
    nvmlDeviceGetPowerUsage=lambda h: 120_000 + 100_000 * h,
    nvmlDeviceGetTotalEnergyConsumption=lambda h: int(5_000_000 + (120_000 + 100_000 * h) * elapsed_s()),
    nvmlDeviceGetUtilizationRates=lambda h: SimpleNamespace(gpu=40 + 10 * h, memory=10),
    nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(used=(10 + h) * 2**30 + int(elapsed_s() * 2**20)),
    nvmlDeviceGetTemperature=lambda h, kind: 30,
    nvmlDeviceGetDecoderUtilization=absent,
    nvmlDeviceGetEncoderUtilization=absent,
    nvmlDeviceGetJpgUtilization=absent,
    nvmlDeviceGetProcessesUtilizationInfo=lambda h, since: [],
    nvmlDeviceGetViolationStatus=lambda h, kind: SimpleNamespace(violationTime=0),
)
sys.modules["pynvml"] = nvml

from aiperf.gpu_telemetry import pynvml_collector as collecting  # noqa: E402 - it must see the stand-in

collecting.time = SimpleNamespace(time_ns=lambda: now_ns)
collector = collecting.PyNVMLTelemetryCollector()
asyncio.run(collector._initialize_nvml())
lines = []
for _ in range(SAMPLES):
    lines += [orjson.dumps(r.model_dump(exclude_none=True, mode="json")) for r in collector._collect_gpu_metrics()]
    now_ns += INTERVAL_NS
Path(__file__).with_name("gpu_telemetry_export.jsonl").write_bytes(b"\n".join(lines) + b"\n")

"""Whose GPUs were read, and what AIPerf's telemetry says of them; recorded with AIPerf's own collector."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from harness.errors import InvalidRun, UsageError
from harness.gpu_telemetry import EXPORT, Watched, measures_memory, watched, with_gpu_signals
from harness.judge import measured_metrics
from harness.measurement import CellMeasurement, Distribution, VisitMeasurement
from harness.parts import Part
from harness.plan import Plan, make_plan
from harness.traffic import Visit, aiperf_config

RECORDED = Path(__file__).parent / "recorded" / "gpu" / EXPORT
SECOND = 1_000_000_000
START = 1_796_199_587 * SECOND
BOTH = Watched(gpus=2, memory_apart=True)


def a_plan(baseline: dict[str, object], candidate: dict[str, object], **keys: object) -> Plan:
    urls = ({"url": "http://127.0.0.1:1"}, {"url": "http://localhost:2"})
    endpoints = {"baseline": urls[0] | baseline, "candidate": urls[1] | candidate}
    data = {"model": "m", "tokenizer": "t", "endpoints": endpoints, "profiles": ["smoke"], **keys}
    return make_plan(data, source="plan.yaml", folder=Path("/"))


def a_visit(tokens: int = 100) -> VisitMeasurement:
    nothing = Distribution(count=0, mean=None, stddev=None, min=None, p50=None, p90=None, p95=None, p99=None, max=None)
    cell = CellMeasurement(
        asked=1, served=1, failures={}, duration_s=2.0, ttft_ms=nothing, tpot_ms=nothing, request_latency_ms=nothing,
        output_tokens=tokens, output_tokens_source="usage", output_throughput=None, output_throughput_per_user=None,
        request_throughput=None, signals={"usage_missing": 0.0},
    )  # fmt: skip
    return VisitMeasurement(pair=1, role="candidate", slot=0, cells={"chat/c8": cell})


@pytest.fixture
def aiperf(tmp_path: Path) -> Path:
    return phase(tmp_path, 1.0, 3.0)


def phase(folder: Path, start_s: float, end_s: float) -> Path:
    shutil.copy(RECORDED, folder / EXPORT)
    times = {"start_ns": START + int(start_s * SECOND), "end_ns": START + int(end_s * SECOND)}
    manifest = {"phases": [{"phase_name": "chat--c8", "phase_kind": "profiling", **times}]}
    (folder / "phase_manifest.json").write_bytes(orjson.dumps(manifest))
    return folder


def signals(aiperf: Path, about: Watched | None) -> dict[str, float | None]:
    return with_gpu_signals(a_visit(), aiperf, about).cells["chat/c8"].signals


def test_a_cell_gets_memory_utilisation_and_energy_of_its_gpus(aiperf: Path) -> None:
    found = signals(aiperf, BOTH)
    assert found["gpu_energy_j"] == pytest.approx(2 * (120 + 220), rel=1e-3)
    assert found["energy_per_output_token_j"] == pytest.approx(6.8, rel=1e-3)
    assert found["gpu_utilization"] == pytest.approx(45)
    assert found["peak_memory_mib"] == pytest.approx(21 * 1024 + 2 * 3.33, abs=0.1)
    assert found["usage_missing"] == 0.0


def test_gpu_ids_choose(aiperf: Path) -> None:
    found = signals(aiperf, Watched(gpus=1, gpu_ids=(1,), memory_apart=True))
    assert found["gpu_energy_j"] == pytest.approx(2 * 220, rel=1e-3)
    assert found["gpu_utilization"] == pytest.approx(50)


@pytest.mark.parametrize(
    "about",
    [
        Watched(gpus=1, memory_apart=True),  # two are there: which one?
        Watched(gpus=1, gpu_ids=(7,), memory_apart=True),
        Watched(gpus=4, memory_apart=True),
    ],
)
def test_gpus_that_are_not_known_have_no_figures(aiperf: Path, about: Watched) -> None:
    found = signals(aiperf, about)
    assert {name: found[name] for name in ("gpu_utilization", "gpu_energy_j", "peak_memory_mib")} == {
        "gpu_utilization": None,
        "gpu_energy_j": None,
        "peak_memory_mib": None,
    }


def test_memory_that_another_engine_may_hold_is_not_reported(aiperf: Path) -> None:
    found = signals(aiperf, Watched(gpus=2, memory_apart=False))
    assert "peak_memory_mib" not in found
    assert found["gpu_energy_j"] is not None


def test_energy_is_never_extrapolated(tmp_path: Path) -> None:
    found = signals(phase(tmp_path, 6.0, 9.0), BOTH)  # the samples end at 7.66 s
    assert found["gpu_energy_j"] is None
    assert found["energy_per_output_token_j"] is None
    assert found["gpu_utilization"] == pytest.approx(45)


def test_a_run_without_telemetry_is_left_as_it_is(tmp_path: Path) -> None:
    assert with_gpu_signals(a_visit(), tmp_path, None) == a_visit()
    assert signals(tmp_path, BOTH)["peak_memory_mib"] is None


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"gpu_index": 0}', b'{"gpu_index":0,"timestamp_ns":"x","telemetry_data":{}}']
)
def test_a_broken_export_is_named(aiperf: Path, line: bytes) -> None:
    (aiperf / EXPORT).write_bytes(RECORDED.read_bytes() + line + b"\n")
    with pytest.raises(InvalidRun, match="line 49"):
        signals(aiperf, BOTH)


def test_only_local_endpoints_with_gpus_are_watched() -> None:
    plan = a_plan({"gpus": 1}, {"gpus": 1, "url": "http://10.0.0.7:8000"})
    assert watched(plan, "baseline") == Watched(gpus=1, memory_apart=False)
    assert watched(plan, "candidate") is None
    assert watched(a_plan({}, {}), "baseline") is None


def test_aiperf_is_told_to_watch(tmp_path: Path) -> None:
    plan = a_plan({"gpus": 1}, {})
    part = Part(1, "raw_payload", 0, 0, ())
    told = {
        role: aiperf_config(Visit(plan, role, 1, 0, [part], tmp_path), part, "d")["benchmark"]["gpuTelemetry"]
        for role in ("baseline", "candidate")
    }
    assert told == {"baseline": {"enabled": True, "collector": "pynvml"}, "candidate": {"enabled": False}}


@pytest.mark.parametrize(
    ("baseline", "candidate", "keys", "apart"),
    [
        ({"gpus": 1}, {"gpus": 1}, {}, False),
        ({"gpus": 1, "gpu_ids": [0]}, {"gpus": 1, "gpu_ids": [1]}, {}, True),
        ({"gpus": 1, "gpu_ids": [0]}, {"gpus": 1, "gpu_ids": [0]}, {}, False),
        ({"gpus": 1, "launch": "a"}, {"gpus": 1, "launch": "b"}, {"engines": "one-at-a-time"}, True),
        ({"gpus": 1, "launch": "a"}, {"gpus": 1}, {"engines": "one-at-a-time"}, False),
        ({"launch": "a"}, {"launch": "b"}, {"engines": "one-at-a-time"}, False),
    ],
)
def test_peak_memory_is_judged_only_where_it_can_be_told_apart(
    baseline: dict[str, object], candidate: dict[str, object], keys: dict[str, object], apart: bool
) -> None:
    plan = a_plan(baseline, candidate, **keys)
    assert measures_memory(plan) is apart
    assert ("peak_memory" in measured_metrics(plan)) is apart


def test_gpu_ids_and_gpus_must_agree() -> None:
    with pytest.raises(UsageError, match="gpu_ids names 1 GPUs, but gpus is 2"):
        a_plan({"gpus": 2, "gpu_ids": [3]}, {})

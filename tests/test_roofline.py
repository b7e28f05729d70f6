"""The bound on decode speed: what is known makes it, what is not known leaves it open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.plan import Plan, make_plan
from harness.roofline import active_weights, steps_per_s

H200 = [{"name": "NVIDIA H200"}]


def a_plan(folder: Path, **candidate: object) -> Plan:
    data = {
        "model": "m",
        "reference": {"path": str(folder)},
        "endpoints": {"baseline": {"url": "http://b:1"}, "candidate": {"url": "http://127.0.0.1:1", **candidate}},
        "profiles": ["smoke"],
    }
    return make_plan(data, source="test", folder=folder)


def a_model(folder: Path, **config: object) -> Path:
    ones = {
        "model.embed_tokens.weight": np.ones((10, 4), np.float16),
        "model.layers.0.mlp.experts.0.up.weight": np.ones((4, 4), np.float16),
        "model.layers.0.mlp.experts.1.up.weight": np.ones((4, 4), np.float16),
        "lm_head.weight": np.ones((10, 4), np.float16),
    }
    save_file(ones, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_step_reads_the_output_matrix_and_the_chosen_experts(tmp_path: Path) -> None:
    assert active_weights(a_model(tmp_path)) == 40 + 32
    assert active_weights(a_model(tmp_path, num_experts=2, num_experts_per_tok=1)) == 40 + 16
    assert active_weights(a_model(tmp_path, tie_word_embeddings=True)) == 80 + 32


def test_weights_that_cannot_be_read_give_no_bound(tmp_path: Path) -> None:
    a_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    assert active_weights(tmp_path) == 0
    assert steps_per_s(a_plan(tmp_path, gpus=1), "candidate", H200) is None


def test_bandwidth_comes_from_the_plan_or_from_a_local_gpus_name(tmp_path: Path) -> None:
    a_model(tmp_path)
    per_gb_s = 1e9 / (0.5 * 72)
    assert steps_per_s(a_plan(tmp_path, gpus=1), "candidate", H200) == pytest.approx(4800 * per_gb_s)
    two = a_plan(tmp_path, gpus=2, memory_bandwidth_gb_s=1000)
    assert steps_per_s(two, "candidate", []) == pytest.approx(2000 * per_gb_s)


@pytest.mark.parametrize(
    ("endpoint", "gpus"),
    [
        ({}, H200),  # no GPU count
        ({"gpus": 1}, [{"name": "NVIDIA Unheard Of"}]),
        ({"gpus": 1}, []),
        ({"gpus": 1, "url": "http://elsewhere:1"}, H200),  # another machine's GPU is not the one seen here
    ],
)
def test_what_is_not_known_bounds_nothing(
    tmp_path: Path, endpoint: dict[str, object], gpus: list[dict[str, str]]
) -> None:
    assert steps_per_s(a_plan(a_model(tmp_path), **endpoint), "candidate", gpus) is None

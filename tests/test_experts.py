"""The sorted expert path gives what transformers' own gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracles.experts import NAME, by_expert, fits, use_sorted_experts
from tests.tiny_model import tiny_reference

CONFIG = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "norm_topk_prob": True, "initializer_range": 0.2,
}  # fmt: skip


def mixture(dtype: torch.dtype = torch.float32) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG)).to(dtype).eval()


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_same_logits(dtype: torch.dtype, apart: float) -> None:
    model = mixture(dtype)
    ids = torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        model.set_experts_implementation("eager")
        expected = model(ids).logits
        assert use_sorted_experts(model)
        assert model.config._experts_implementation == NAME
        torch.testing.assert_close(model(ids).logits, expected, atol=apart, rtol=0)


def test_experts_that_nobody_chose_get_no_row() -> None:
    order, place, ends = by_expert(torch.tensor([[3, 1], [1, 3], [3, 6]]), 8)
    assert order.tolist() == [1, 2, 0, 3, 4, 5]
    assert ends.tolist() == [0, 2, 2, 5, 5, 5, 6, 6]
    assert order[place].tolist() == list(range(6))


def test_a_dense_model_is_left_alone() -> None:
    model = tiny_reference().model
    before = model.config._experts_implementation
    assert not use_sorted_experts(model)
    assert model.config._experts_implementation == before


def test_odd_experts_are_not_taken() -> None:
    model = mixture()
    experts = model.model.layers[1].mlp.experts
    assert fits(experts)
    experts.has_bias = True
    assert not fits(experts)
    assert not use_sorted_experts(model)

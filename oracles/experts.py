"""A mixture's experts in few passes over memory.

transformers' own grouped path moves the expert rows [tokens x top k, hidden] six times around its two matrix products:
gathered, gated, scaled, put back, summed. Here rows are sorted by expert once, scaled and summed where they are read
back, and everything between the two products is left in a form that the compiler fuses into one pass each. Weights are
not touched; sums over a token's experts are taken in fp32.
"""

from __future__ import annotations

from typing import Any

NAME = "enginegate_sorted"


def use_sorted_experts(model: Any) -> bool:
    """Run the experts of `model` by `sorted_experts`; False, and nothing changed, when it is no such mixture."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    mixtures = [
        module for module in model.modules() if hasattr(module, "down_proj") and hasattr(module, "is_transposed")
    ]
    if not mixtures or not all(map(fits, mixtures)):
        return False
    ALL_EXPERTS_FUNCTIONS.register(NAME, sorted_experts)
    model.set_experts_implementation(NAME)
    return True


def fits(experts: Any) -> bool:
    """Is this an experts module of the plain kind: gate and up side by side, no bias, no norm, all on one machine?"""
    up, down = getattr(experts, "gate_up_proj", None), getattr(experts, "down_proj", None)
    if up is None or down is None or up.ndim != 3 or up.shape[1:] != (2 * down.shape[2], down.shape[1]):
        return False
    odd = ("has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel")
    return getattr(experts, "is_concatenated", True) and not any(getattr(experts, name, False) for name in odd)


def sorted_experts(experts: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
    """What transformers calls in place of an experts module's forward.

    Args:
        experts: gate_up_proj [experts, 2 x inner, hidden], down_proj [experts, hidden, inner].
        hidden: [tokens, hidden].
        chosen: [tokens, top_k] expert of each token.
        weights: [tokens, top_k].

    Returns:
        [tokens, hidden].
    """
    import torch

    grouped = torch.nn.functional.grouped_mm
    order, place, ends = by_expert(chosen, experts.gate_up_proj.shape[0])
    rows = hidden.index_select(0, order // chosen.shape[1])
    inner = experts._apply_gate(grouped(rows, experts.gate_up_proj.transpose(-2, -1), offs=ends))
    return combine(grouped(inner, experts.down_proj.transpose(-2, -1), offs=ends), place, weights)


def by_expert(chosen: Any, experts: int) -> tuple[Any, Any, Any]:
    """Sort [tokens, top_k] choices by expert.

    Returns:
        order: [tokens x top_k] place in the flat choices of each sorted row.
        place: its inverse.
        ends: [experts] int32, where each expert's rows end.
    """
    import torch

    # Two-byte keys: a radix sort takes a quarter of the passes that eight bytes would.
    ranked, order = chosen.flatten().to(torch.int16).sort(stable=True)
    numbers = torch.arange(len(order), device=order.device)
    place = torch.empty_like(order).scatter_(0, order, numbers)
    every = torch.arange(experts, device=order.device, dtype=torch.int16)
    return order, place, torch.searchsorted(ranked, every, right=True, out_int32=True)


def combine(rows: Any, place: Any, weights: Any) -> Any:
    """Each token's expert rows, weighted and summed: [tokens x top_k, hidden] to [tokens, hidden]."""
    # One term after another, so that the compiler makes one pass of whole rows; as one gather and a sum over it the
    # same took three times as long (H200).
    places, scales = place.view(weights.shape), weights.float()
    terms = (rows.index_select(0, places[:, i]).float() * scales[:, i, None] for i in range(weights.shape[1]))
    return sum(terms).to(rows.dtype)

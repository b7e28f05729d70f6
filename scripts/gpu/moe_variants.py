"""Ways to run a mixture's experts on a GPU, measured piece by piece and inside the model: which one is worth having?

Used by bench_scoring.py. Every way is registered with transformers as an experts implementation; those whose library is
not installed are skipped with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from oracles import experts as ours

OURS, VLLM, LIGER = ours.NAME, "vllm_fused", "liger_fused"


def register_all(model: Any) -> dict[str, str]:
    """Register every way; returns name -> why it is not there."""
    ALL_EXPERTS_FUNCTIONS.register(OURS, ours.sorted_experts)
    absent: dict[str, str] = {}
    for name, make in ((VLLM, _vllm), (LIGER, _liger)):
        try:
            ALL_EXPERTS_FUNCTIONS.register(name, make())
        except Exception as error:  # whatever a foreign library raises when it cannot be used here
            absent[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return absent


def _vllm() -> Callable[..., Any]:
    """vLLM's Triton kernels: rows are gathered inside the product, weights applied in the second one."""
    from vllm.model_executor.layers.fused_moe import fused_moe  # noqa: F401, PLC0415  # registers the operator

    def forward(experts: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
        return torch.ops.vllm.fused_experts(
            hidden, experts.gate_up_proj, experts.down_proj, weights.float(), chosen.to(torch.int32)
        )

    return forward


def _liger() -> Callable[..., Any]:
    """Liger's Triton kernels, without their autograd."""
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction  # noqa: PLC0415

    @torch.compiler.disable
    def forward(experts: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
        return LigerFusedMoEFunction.apply(
            hidden, experts.gate_up_proj, experts.down_proj, chosen.to(torch.int32), weights
        )

    return forward


def milliseconds(task: Callable[[], Any], repeats: int = 10) -> float:
    """Median GPU time."""
    for _ in range(3):
        task()
    times = []
    for _ in range(repeats):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        task()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return sorted(times)[len(times) // 2]


def one_layer(model: Any, tokens: int) -> None:
    """One layer's experts by every way, with the distance to transformers' own, and ours in its parts."""
    block = model.get_decoder().layers[0].mlp
    experts, width = block.experts, model.config.hidden_size
    hidden = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    _, weights, chosen = block.gate(hidden)
    truth = ALL_EXPERTS_FUNCTIONS["grouped_mm"](experts, hidden, chosen, weights).float()
    inner = experts.gate_up_proj.shape[1] // 2
    work = 2 * tokens * chosen.shape[1] * 3 * inner * width
    ways: dict[str, Callable[..., Any]] = {
        name: ALL_EXPERTS_FUNCTIONS[name] for name in ("grouped_mm", OURS, VLLM, LIGER) if name in ALL_EXPERTS_FUNCTIONS
    }
    ways[f"{OURS}, compiled"] = torch.compile(ours.sorted_experts, dynamic=True)
    router = milliseconds(lambda: block.gate(hidden))
    print(f"one layer, {tokens} tokens, {work / 1e12:.2f} TFLOP in its products; router {router:.3f} ms")
    for name, way in ways.items():
        began = time.perf_counter()
        try:
            out = way(experts, hidden, chosen, weights).float()
            apart = float((out - truth).norm() / truth.norm())
            took = milliseconds(lambda way=way: way(experts, hidden, chosen, weights))  # type: ignore[misc]
        except Exception as error:  # one way that fails must not end the visit
            print(f"  {name:<30} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        more = time.perf_counter() - began
        print(
            f"  {name:<30}{took:>8.3f} ms {work / took / 1e9:>6.0f} TFLOP/s  "
            f"{apart:.2e} from transformers' own  (with warm-up {more:.0f} s)",
            flush=True,
        )
    _parts(experts, hidden, chosen, weights)


def _parts(experts: Any, hidden: Any, chosen: Any, weights: Any) -> None:
    """Where ours spends its time, each part compiled on its own."""
    grouped = torch.nn.functional.grouped_mm
    up, down = experts.gate_up_proj.transpose(-2, -1), experts.down_proj.transpose(-2, -1)
    sort = torch.compile(lambda c: ours.by_expert(c, experts.gate_up_proj.shape[0]))
    gather = torch.compile(lambda h, o: h.index_select(0, o // chosen.shape[1]))
    gate, back = torch.compile(experts._apply_gate), torch.compile(ours.combine)
    order, place, ends = sort(chosen)
    rows = gather(hidden, order)
    pairs = grouped(rows, up, offs=ends)
    inner = gate(pairs)
    out = grouped(inner, down, offs=ends)
    parts: dict[str, Callable[[], Any]] = {
        "sort": lambda: sort(chosen),
        "gather": lambda: gather(hidden, order),
        "gate and up product": lambda: grouped(rows, up, offs=ends),
        "activation": lambda: gate(pairs),
        "down product": lambda: grouped(inner, down, offs=ends),
        "combine": lambda: back(out, place, weights),
    }
    print("  parts of ours: " + ", ".join(f"{name} {milliseconds(task):.3f} ms" for name, task in parts.items()))

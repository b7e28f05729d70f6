"""Scoring on a GPU against F, with random weights in real shapes: an 8B dense Llama, a 30B-A3B mixture of experts.

F is the same forward passes, the lm_head product in bf16 included, its logits thrown away chunk by chunk; F and scoring
are timed in turn and the ratio is the median over rounds. For each shape: the hidden states alone, F, the plain chunked
computation and the scoring, on the model as transformers runs it, then with its layers compiled, for the mixture with
every expert path there is (moe_variants.py); peak memory over F; how far scores moved; and lengths mixed from 64 to
8,192 tokens against equal ones. Needs torch, transformers, numpy and a GPU; no file is read. Every variant is tried on
its own, and those that would begin after --budget seconds of a shape are left out.

    python scripts/gpu/bench_scoring.py [dense moe] [--tokens 16384] [--batch 16384] [--only NAME] [--budget 200]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import moe_variants
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

from oracles.reference import LocalReference, compile_layers
from oracles.scoring import ScoreRequest, batches, score

TOP_K = 20
PLAIN_ROWS = 4096
DENSE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip
# The same tokens at every length (a token has 1,020 others to attend to on average), and most at the longest (2,061).
MIXES = {
    "even": [length for length in (64, 128, 256, 512, 1024, 2048, 4096, 8192) for _ in range(16384 // length)],
    "long": [64] * 32 + [256] * 16 + [1024] * 8 + [2048] * 4 + [4096] * 2 + [8192] * 2,
}


def random_reference(shape: dict[str, Any], layers: int | None) -> LocalReference:
    """A model of this shape with random weights on the GPU."""
    torch.manual_seed(0)
    about = dict(shape) | ({"num_hidden_layers": layers} if layers else {})
    config = AutoConfig.for_model(
        about.pop("model_type"), **about, max_position_embeddings=16384, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, initializer_range=0.02,
    )  # fmt: skip
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    tokenizer = SimpleNamespace(eos_token_id=2, chat_template=None)
    return LocalReference(Path("random"), tokenizer, frozenset({2}), model.eval().requires_grad_(False), "random")


def requests(reference: LocalReference, lengths: list[int]) -> list[ScoreRequest]:
    """Random tokens: one of prompt, the rest scored."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, reference.vocab_size, n).tolist() for n in lengths]
    return [ScoreRequest(row[:1], row[1:]) for row in rows]


def hidden_states(
    reference: LocalReference, work: list[ScoreRequest], batch_tokens: int | None = None
) -> list[torch.Tensor]:
    """The decoder's output for the batches that scoring makes."""
    decoder, states = reference.model.get_decoder(), []
    for batch in batches(reference, work, batch_tokens):
        longest = max(len(work[i]) for i in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(work[i])] = torch.tensor([*work[i].prompt, *work[i].output])
        states.append(decoder(input_ids=ids.cuda(), use_cache=False).last_hidden_state.flatten(0, 1))
    return states


def forward(reference: LocalReference, work: list[ScoreRequest], batch_tokens: int | None = None) -> None:
    """F."""
    head = reference.model.get_output_embeddings()
    for states in hidden_states(reference, work, batch_tokens):
        for part in states.split(PLAIN_ROWS):
            head(part)


def plain(reference: LocalReference, work: list[ScoreRequest], batch_tokens: int | None = None) -> None:
    """What is simple: chunks, log-sum-exp, top k."""
    head = reference.model.get_output_embeddings()
    for states in hidden_states(reference, work, batch_tokens):
        for part in states.split(PLAIN_ROWS):
            logits = head(part)
            (logits.logsumexp(-1), logits.topk(TOP_K, -1))


def once(task: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and peak memory over what was there before, in GB."""
    with torch.inference_mode():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, began = torch.cuda.memory_allocated(), time.perf_counter()
        task()
        torch.cuda.synchronize()
        return time.perf_counter() - began, (torch.cuda.max_memory_allocated() - before) / 1e9


def scoring(reference: LocalReference, work: list[ScoreRequest], batch_tokens: int | None = None) -> list[Any]:
    """What the product does."""
    return score(reference, work, top_k=TOP_K, batch_tokens=batch_tokens)


def measure(name: str, reference: LocalReference, asked: argparse.Namespace) -> None:
    """One line for the model as it is now: all tasks in turn, round after round."""
    work = requests(reference, [1024] * (asked.tokens // 1024))
    tasks: dict[str, Callable[[], Any]] = {
        "hidden": lambda: hidden_states(reference, work, asked.batch),
        "F": lambda: forward(reference, work, asked.batch),
        "plain": lambda: plain(reference, work, asked.batch),
        "scoring": lambda: scoring(reference, work, asked.batch),
    }
    began = time.perf_counter()
    for task in tasks.values():
        once(task)
    warm = time.perf_counter() - began
    seen: dict[str, list[float]] = {what: [] for what in tasks}
    memory: dict[str, float] = {}
    for _ in range(asked.rounds):
        for what, task in tasks.items():
            seconds, memory[what] = once(task)
            seen[what].append(seconds)
    rates = {what: asked.tokens / statistics.median(times) for what, times in seen.items()}
    columns = "".join(f"{what} {rate:>7,.0f}  " for what, rate in rates.items())
    ratio = statistics.median(f / s for f, s in zip(seen["F"], seen["scoring"], strict=True))
    over = memory["scoring"] - memory["F"]
    print(f"{name:<34}{columns}scoring/F {ratio:.3f} at {over:+.2f} GB  (warm-up {warm:.0f} s)", flush=True)


def mixed(name: str, reference: LocalReference, asked: argparse.Namespace) -> None:
    """Mixed lengths against equal ones (the same tokens, in 1,024s), in scoring and in F.

    A long sequence costs more: at 8,192 tokens causal attention adds half of a 3 B mixture's arithmetic. What F loses
    on the same batches is that and the batches; what scoring loses beyond it is scoring's own.
    """
    tasks = {
        "scoring": lambda work: scoring(reference, work, asked.batch),
        "F": lambda work: forward(reference, work, asked.batch),
    }
    for mix, lengths in MIXES.items():
        equal, various = requests(reference, [1024] * (sum(lengths) // 1024)), requests(reference, lengths)
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(4):
            for task, run in tasks.items():
                for what, work in (("equal", equal), ("mixed", various)):
                    seconds, _ = once(lambda run=run, work=work: run(work))  # type: ignore[misc]
                    rates.setdefault((task, what), []).append(sum(map(len, work)) / seconds)
        middle = {key: statistics.median(times[1:]) for key, times in rates.items()}
        shares = [f"{task} {middle[task, 'mixed'] / middle[task, 'equal']:.3f}" for task in tasks]
        rate = middle["scoring", "mixed"]
        print(f"{name:<34}{mix} mix: {rate:,.0f} tokens/s; of equal lengths: {', '.join(shares)}", flush=True)


def compare(what: str, before: list[Any], after: list[Any]) -> None:
    """How far scores moved."""
    print(f"{what}:", end="")
    for column in ("logprobs", "margins", "entropies"):
        pairs = zip(after, before, strict=True)
        moved = np.abs(np.concatenate([getattr(a, column) - getattr(b, column) for a, b in pairs]))
        print(f"  |{column}| mean {moved.mean():.5f} p99 {np.quantile(moved, 0.99):.4f} max {moved.max():.4f}", end="")
    print(flush=True)


def profile(reference: LocalReference, work: list[ScoreRequest]) -> None:
    """Where the GPU's time goes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        score(reference, work, top_k=TOP_K)
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=90), flush=True)


def variants(shape: str) -> list[tuple[str, str | None, bool]]:
    """(name, experts implementation, layers compiled), what teaches most first."""
    if shape == "dense":
        return [("as transformers runs it", None, False), ("layers compiled", None, True)]
    return [
        ("transformers' grouped_mm", "grouped_mm", False),
        ("sorted once, compiled", moe_variants.OURS, True),
        ("vLLM's kernels, compiled", moe_variants.VLLM, True),
        ("sorted once", moe_variants.OURS, False),
        ("vLLM's kernels", moe_variants.VLLM, False),
        ("liger's kernels", moe_variants.LIGER, False),
        ("grouped_mm, compiled", "grouped_mm", True),
    ]


def run_shape(shape: str, asked: argparse.Namespace) -> None:
    """Every variant of one shape."""
    began = time.perf_counter()
    reference = random_reference(DENSE if shape == "dense" else MOE, asked.layers)
    torch.cuda.synchronize()
    size = torch.cuda.memory_allocated() / 1e9
    print(f"== {shape}: {size:.1f} GB of random weights, made in {time.perf_counter() - began:.0f} s", flush=True)
    absent: dict[str, str] = {}
    if shape == "moe":
        absent = moe_variants.register_all(reference.model)
        attempt("one layer", lambda: torch.inference_mode()(moe_variants.one_layer)(reference.model, asked.tokens))
    short = requests(reference, [512] * 8)
    before: list[Any] = []
    for name, implementation, compiled in variants(shape):
        if asked.only not in name:
            continue
        if implementation in absent:
            print(f"{name:<34}not there: {absent[implementation]}")
            continue
        if time.perf_counter() - began > asked.budget:
            print(f"{name:<34}left out: {asked.budget} s are over", flush=True)
            continue

        def variant(name: str = name, way: str | None = implementation, compiled: bool = compiled) -> None:
            _set(reference.model, way, compiled)
            measure(name, reference, asked)
            scores = scoring(reference, short)
            if not before:
                before.extend(scores)
                compare("  floor: one by one", before, score(reference, short, top_k=TOP_K, batch_tokens=512))
            else:
                compare("  from the first variant", before, scores)
            if compiled or shape == "dense":
                mixed("  " + name, reference, asked)
            if asked.profile:
                profile(reference, requests(reference, [1024] * (asked.tokens // 1024)))

        attempt(name, variant)
    print(f"== {shape}: {time.perf_counter() - began:.0f} s", flush=True)


def _set(model: Any, experts: str | None, compiled: bool) -> None:
    if experts:
        model.set_experts_implementation(experts)
    for layer in model.get_decoder().layers:
        layer._compiled_call_impl = None
    if compiled:
        torch._dynamo.reset()
        compile_layers(model)


def attempt(name: str, task: Callable[[], Any]) -> None:
    """Run, and print what went wrong: one visit must teach as much as it can."""
    try:
        task()
    except Exception:
        print(f"{name}: FAILED\n{traceback.format_exc(limit=-4)[-1500:]}", flush=True)
        torch.cuda.empty_cache()


def main() -> None:
    """Measure every shape that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=["dense", "moe"], choices=["dense", "moe"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--batch", type=int, help="tokens in a batch; default: what the product finds by itself")
    parser.add_argument("--only", default="", help="only variants whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=200, help="seconds after which a shape begins no variant")
    parser.add_argument("--layers", type=int, help="fewer layers, for a try")
    parser.add_argument("--cudnn", action="store_true", help="cuDNN's attention before FlashAttention 2, where it can")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {asked.tokens} tokens, tokens/s are medians")
    kernels = [SDPBackend.CUDNN_ATTENTION] if asked.cudnn else []
    kernels += [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    for shape in asked.shapes:
        with sdpa_kernel(kernels, set_priority=True):
            run_shape(shape, asked)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

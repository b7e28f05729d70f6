"""Scoring on a GPU against F, with random weights in real shapes: an 8B dense Llama, a 30B-A3B mixture of experts.

F is the same forward passes, the lm_head product in bf16 included, its logits thrown away chunk by chunk. For each
shape: the hidden states alone, F, the plain chunked computation and the scoring, once on the model as transformers runs
it and once with its layers compiled; peak memory over F; how far compiled scores are from uncompiled ones; and lengths
mixed from 64 to 8,192 tokens against equal ones. Needs torch, transformers, numpy and a GPU; no file is read.

    python scripts/gpu/bench_scoring.py [dense moe] [--tokens 16384] [--profile]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
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


def random_reference(shape: dict[str, Any]) -> LocalReference:
    """A model of this shape with random weights on the GPU."""
    torch.manual_seed(0)
    about = dict(shape)
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


def hidden_states(reference: LocalReference, work: list[ScoreRequest]) -> list[torch.Tensor]:
    """The decoder's output for the batches that scoring makes."""
    decoder, states = reference.model.get_decoder(), []
    for batch in batches(reference, work):
        longest = max(len(work[i]) for i in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(work[i])] = torch.tensor([*work[i].prompt, *work[i].output])
        states.append(decoder(input_ids=ids.cuda(), use_cache=False).last_hidden_state.flatten(0, 1))
    return states


def forward(reference: LocalReference, work: list[ScoreRequest], rows: int = PLAIN_ROWS) -> None:
    """F."""
    head = reference.model.get_output_embeddings()
    for states in hidden_states(reference, work):
        for part in states.split(rows):
            head(part)


def plain(reference: LocalReference, work: list[ScoreRequest]) -> None:
    """What is simple: chunks, log-sum-exp, top k."""
    head = reference.model.get_output_embeddings()
    for states in hidden_states(reference, work):
        for part in states.split(PLAIN_ROWS):
            logits = head(part)
            (logits.logsumexp(-1), logits.topk(TOP_K, -1))


def timed(task: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Fastest seconds of `repeats`, and the peak memory of the last run over what was there before it, in GB."""
    with torch.inference_mode():
        task()
        best = float("inf")
        for _ in range(repeats):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, began = torch.cuda.memory_allocated(), time.perf_counter()
            task()
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return best, (torch.cuda.max_memory_allocated() - before) / 1e9


def measure(name: str, reference: LocalReference, tokens: int, repeats: int) -> dict[str, float]:
    """One table, for the model as it is now."""
    work = requests(reference, [1024] * (tokens // 1024))
    tasks: dict[str, Callable[[], Any]] = {
        "hidden states": lambda: hidden_states(reference, work),
        "F": lambda: forward(reference, work),
        "plain chunks, top 20": lambda: plain(reference, work),
        "scoring, top 20": lambda: score(reference, work, top_k=TOP_K),
    }
    seen: dict[str, float] = {}
    base = 0.0
    for what, task in tasks.items():
        began = time.perf_counter()
        seconds, memory = timed(task, repeats)
        base = memory if what == "F" else base
        over = f"{memory - base:+.2f} GB over F" if what in list(tasks)[2:] else f"{memory:.2f} GB"
        seen[what] = tokens / seconds
        print(
            f"{name:<22}{what:<24}{tokens / seconds:>10,.0f} tokens/s  {over}"
            f"  (with warm-up {time.perf_counter() - began:.0f} s)"
        )
    print(f"{name:<22}scoring/F = {seen['scoring, top 20'] / seen['F']:.3f}", flush=True)
    lengths = [64] * 32 + [256] * 16 + [1024] * 8 + [2048] * 4 + [4096] * 2 + [8192] * 2
    mixed = requests(reference, lengths)
    seconds, _ = timed(lambda: score(reference, mixed, top_k=TOP_K), repeats)
    rate = sum(lengths) / seconds
    print(
        f"{name:<22}mixed 64 to 8,192: {rate:,.0f} tokens/s, {rate / seen['scoring, top 20']:.3f} of equal lengths",
        flush=True,
    )
    return seen


def compare_to(before: list[Any], after: list[Any]) -> None:
    """How far scores moved."""
    for column in ("logprobs", "margins", "entropies"):
        moved = np.abs(
            np.concatenate([getattr(a, column) - getattr(b, column) for a, b in zip(after, before, strict=True)])
        )
        tail = f"p99 {np.quantile(moved, 0.99):.4f}, max {moved.max():.4f}"
        print(f"  |change of {column}|: mean {moved.mean():.5f}, {tail}")


def profile(reference: LocalReference, work: list[ScoreRequest]) -> None:
    """Where the GPU's time goes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        score(reference, work, top_k=TOP_K)
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=18, max_name_column_width=70))


def main() -> None:
    """Measure every shape that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=["dense", "moe"], choices=["dense", "moe"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    for shape in asked.shapes:
        began = time.perf_counter()
        reference = random_reference(DENSE if shape == "dense" else MOE)
        print(f"{shape}: made in {time.perf_counter() - began:.0f} s, {torch.cuda.memory_allocated() / 1e9:.1f} GB")
        measure(shape, reference, asked.tokens, asked.repeats)
        work = requests(reference, [512] * 8)
        before = score(reference, work, top_k=TOP_K)
        again = score(reference, work, top_k=TOP_K, batch_tokens=512)
        print("one by one against eight at once, uncompiled:")
        compare_to(before, again)
        compile_layers(reference.model)
        measure(f"{shape}, compiled", reference, asked.tokens, asked.repeats)
        print("compiled against uncompiled:")
        compare_to(before, score(reference, work, top_k=TOP_K))
        if asked.profile:
            profile(reference, requests(reference, [1024] * (asked.tokens // 1024)))
        del reference
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

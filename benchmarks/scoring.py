"""Speed and memory of scoring against F on this machine's CPU: SmolLM2-135M, 8 x 512 tokens, top 20.

F is the same forward passes, the lm_head product in bf16 included, its logits thrown away chunk by chunk. Both are
timed in turn, round after round, and the ratio is the median over rounds, so that a busy machine hurts both alike.
Memory is the peak resident size over F's, at 512 and at 4,096 tokens a sequence, each of the four in a process of its
own: what an allocator keeps of one task would hide, or add to, what the next one needs.

    python benchmarks/scoring.py [MODEL_FOLDER] [--rounds 6] [--threads 2]        (make bench-scoring)
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from oracles.reference import LocalReference, open_reference
from oracles.scoring import ScoreRequest, batches, score

TOP_K = 20
ROWS = 256


def requests(reference: LocalReference, count: int, length: int) -> list[ScoreRequest]:
    """Random tokens: one of prompt, the rest scored."""
    ids = torch.randint(0, reference.vocab_size, (count, length), generator=torch.Generator().manual_seed(0)).tolist()
    return [ScoreRequest(row[:1], row[1:]) for row in ids]


def forward(reference: LocalReference, work: list[ScoreRequest]) -> None:
    """F, over the batches that scoring makes."""
    model = reference.model
    weight = model.get_output_embeddings().weight.t()
    with torch.inference_mode():
        for batch in batches(reference, work):
            ids = torch.tensor([[*work[i].prompt, *work[i].output] for i in batch])
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
            for rows in hidden.split(ROWS):
                torch.mm(rows, weight)


def seconds(task: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    task()
    return clock() - began


def peak_mb(model: Path, threads: int, length: int, *, bare: bool) -> float:
    """Peak resident memory of F, or of scoring, over 8,192 tokens in sequences of `length`; for a fresh process."""
    torch.set_num_threads(threads)
    reference = open_reference(model, device="cpu")
    work = requests(reference, 8192 // length, length)
    gc.collect()  # the mapped weight file, which is as large as the model
    Path("/proc/self/clear_refs").write_text("5")
    forward(reference, work) if bare else score(reference, work, top_k=TOP_K)
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def extra_memory(model: Path, threads: int) -> float:
    """MB that scoring takes over F, at the length where it is most."""
    # Freed blocks go back at once: glibc's moving threshold made two equal runs differ by 100 MB.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    extra = [0.0]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for length in (512, 4096):
            bare, full = (fresh.submit(peak_mb, model, threads, length, bare=each).result() for each in (True, False))
            extra.append(full - bare)
            print(f"{8192 // length} x {length}: peak {bare:.0f} MB in F, {full - bare:+.0f} MB in scoring")
    return max(extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds for a machine that others use too")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = asked.model or _demo_model()
    reference = open_reference(model, device="cpu")
    work = requests(reference, 8, 512)
    tokens = sum(map(len, work))
    clock = time.process_time if asked.cpu_time else time.perf_counter
    ratios = []
    forward(reference, work), score(reference, work, top_k=TOP_K)
    for number in range(asked.rounds):
        # F first in one round, scoring first in the next: a machine that slows down hurts both alike.
        tasks: list[Callable[[], object]] = [
            lambda: forward(reference, work),
            lambda: score(reference, work, top_k=TOP_K),
        ]
        order = [0, 1] if number % 2 == 0 else [1, 0]
        took = {which: seconds(tasks[which], clock) for which in order}
        bare, full = took[0], took[1]
        ratios.append(bare / full)
        rates = f"F {tokens / bare:.0f} tokens/s, scoring {tokens / full:.0f}"
        print(f"round {number + 1}: {rates}, ratio {ratios[-1]:.3f}", flush=True)
    print(f"scoring_ratio={statistics.median(ratios):.3f} extra_mb={extra_memory(model, asked.threads):.0f}")


def _demo_model() -> Path:
    from harness.demo_models import prepare_models

    return prepare_models().reference


if __name__ == "__main__":
    main()

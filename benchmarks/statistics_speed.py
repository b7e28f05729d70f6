"""Speed of the document bootstrap: 10^6 tokens in each arm, 2,000 resamples, eight strata, on this machine."""

from __future__ import annotations

import time

import numpy as np

from harness.accuracy import judge_divergence
from harness.divergence import Divergence, Documents

TOKENS, LIMIT_S = 1_000_000, 5.0


def documents(length: int, seed: int) -> Documents:
    """Answers of `length` tokens, 10^6 in all, with the skew of real margins."""
    n = TOKENS // length
    rng = np.random.default_rng(seed)
    line = np.arange(n)
    return Documents(
        pair=np.ones(n, dtype=np.int64),
        line=line,
        item=line.astype(str),
        stratum=(line % 8).astype(str),
        tokens=np.full(n, float(length)),
        nats=rng.gamma(0.3, 0.01 * length, n),
    )


def main() -> None:
    seconds = {}
    for length in (256, 64, 16):
        arms = Divergence(documents(length, 1), documents(length, 2), documents(length, 3))
        began = time.perf_counter()
        judged = judge_divergence(arms, 1.05, resamples=2000)
        seconds[length] = time.perf_counter() - began
        print(f"{TOKENS // length:>6} documents of {length} tokens: {seconds[length]:.2f} s ({judged.status})")
    slowest = max(seconds.values())
    print(f"bootstrap_s={slowest:.2f} limit_s={LIMIT_S} ratio={slowest / LIMIT_S:.2f}")


if __name__ == "__main__":
    main()

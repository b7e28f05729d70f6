"""The ladder's arithmetic on documents whose distance is known."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.accuracy_ladder import interval, tokens_needed


def made(mean: float, documents: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(30, 60, documents)
    nats = tokens * mean * rng.exponential(1.0, documents)
    return pd.DataFrame({"tokens": tokens, "nats": nats}, index=[f"item-{n}" for n in range(documents)])


def test_the_interval_covers_what_was_put_in() -> None:
    mean, low, high = interval(made(0.01))
    assert low < 0.01 < high and low < mean < high


def test_far_apart_takes_few_tokens_and_equal_is_never_told() -> None:
    far, near = tokens_needed(made(0.01), made(0.3, seed=1)), tokens_needed(made(0.01), made(0.02, seed=1))
    assert far is not None and near is not None and far < near
    assert tokens_needed(made(0.01), made(0.01)) is None
    assert tokens_needed(made(0.3, seed=1), made(0.01)) is None

"""The accuracy ladder: how far the endpoints of a `verify` run are apart, and how many tokens it takes to see it.

For each endpoint its mean margin with a 95 % interval; for each neighbouring pair of the ladder, and every pair that is
named, the ratio of the margins and the smallest number of tokens from which on a bootstrap of documents tells the two
apart with 95 % confidence (median over random orders of the documents).

    enginegate verify --endpoint NAME=URL ... -m MODEL --reference DIR --run-dir RUN
    python benchmarks/accuracy_ladder.py RUN [--pair Q8_0,Q4_K_M] [--measure margin|kld]
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

Values = npt.NDArray[np.float64]
RESAMPLES, ORDERS = 500, 21
FEWEST = 4  # documents


def documents(run: Path, name: str, measure: str) -> pd.DataFrame:
    """[tokens, nats] of each document, answers asked at temperature 0."""
    if measure == "margin":
        table = pq.read_table(run / "oracles" / name / "tokens.parquet").to_pandas()
        table = table[table["greedy"]].rename(columns={"margin_sum": "nats"})
    else:
        table = pq.read_table(run / "oracles" / name / "logits.parquet").to_pandas().rename(columns={"kld_sum": "nats"})
        phases = set(table["phase"])
        table = table[table["phase"] == ("decode" if "decode" in phases else "prefill")]
    sums: pd.DataFrame = table.groupby("item")[["tokens", "nats"]].sum()
    return sums


def interval(sums: pd.DataFrame, seed: int = 0) -> tuple[float, float, float]:
    """Nats a token with its 95 % interval over documents."""
    draws = _resampled(sums.to_numpy(float), seed)
    low, high = np.quantile(draws[:, 1] / draws[:, 0], [0.025, 0.975])
    return float(sums["nats"].sum() / sums["tokens"].sum()), float(low), float(high)


def log_ratio(better: Values, worse: Values, seed: int) -> tuple[float, float]:
    """95 % interval of ln(worse / better); rows are the same documents, [tokens, nats]."""
    draws = _resampled(np.hstack([better, worse]), seed)
    means = np.maximum(draws[:, 1::2] / draws[:, ::2], 1e-9)
    low, high = np.quantile(np.log(means[:, 1] / means[:, 0]), [0.025, 0.975])
    return float(low), float(high)


def tokens_needed(better: pd.DataFrame, worse: pd.DataFrame) -> int | None:
    """Tokens of the better one from which on the two stay told apart; None: not by all documents."""
    both = better.join(worse, lsuffix="_b", rsuffix="_w", how="inner").to_numpy(float)
    found: list[float] = []
    for order in range(ORDERS):
        rows = both[np.random.default_rng(order).permutation(len(both))]
        told = [log_ratio(rows[:n, :2], rows[:n, 2:], order)[0] > 0 for n in range(FEWEST, len(rows) + 1)]
        first = next((n for n in range(len(told)) if all(told[n:])), None)
        found.append(np.inf if first is None else rows[: FEWEST + first, 0].sum())
    middle = float(np.median(found))
    return int(middle) if np.isfinite(middle) else None


def _resampled(rows: Values, seed: int) -> Values:
    weights = np.random.default_rng(seed).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
    sums: Values = weights @ rows
    return sums


def main() -> None:
    """Print the ladder of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--pair", action="append", default=[], metavar="BETTER,WORSE")
    parser.add_argument("--measure", choices=("margin", "kld"), default="margin")
    asked = parser.parse_args()
    file = "tokens.parquet" if asked.measure == "margin" else "logits.parquet"
    found = {path.parent.name: path for path in sorted((asked.run / "oracles").glob(f"*/{file}"))}
    sums = {name: documents(asked.run, name, asked.measure) for name in found}
    ladder = sorted(sums, key=lambda name: interval(sums[name])[0])
    print(f"{'endpoint':<16}{asked.measure:>10}{'95 % interval':>24}{'tokens':>9}{'documents':>11}")
    for name in ladder:
        mean, low, high = interval(sums[name])
        tokens = int(sums[name]["tokens"].sum())
        print(f"{name:<16}{mean:>10.5f}{f'{low:.5f} to {high:.5f}':>24}{tokens:>9,}{len(sums[name]):>11}")
    pairs = [*pairwise(name for name in ladder if name != "floor"), *(tuple(pair.split(",", 1)) for pair in asked.pair)]
    for better, worse in dict.fromkeys(pairs):
        shared = sums[better].index.intersection(sums[worse].index)
        rows = [sums[name].loc[shared].to_numpy(float) for name in (better, worse)]
        low, high = np.exp(log_ratio(rows[0], rows[1], 0))
        needed = tokens_needed(sums[better], sums[worse])
        told = "not told apart" if needed is None else f"told apart from {needed:,} tokens on"
        print(f"{worse} / {better}: {low:.3g}x to {high:.3g}x; {told} ({len(shared)} documents)")


if __name__ == "__main__":
    main()

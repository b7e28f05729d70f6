"""How far the timed tokens are from the reference: by cell, position, concurrency and stratum; and the tails."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reports.clean_text import clean
from reports.run_data import Run

Values = npt.NDArray[np.float64]
ARMS = ("candidate", "baseline", "floor")
POSITIONS = (0, 1, 8, 32, 64, 128, 256, 512, 1024, 1 << 30)
_COLUMNS = ["cell", "item", "stratum", "tokens", "margin_sum", "top1", "flips_inexcusable", "loop_share", "margins"]


@dataclass(frozen=True)
class Mean:
    """Mean margin per token of a group, its 95 % half-width clustered by document, and the sample."""

    nats: float
    half_width: float | None
    tokens: int
    documents: int


@dataclass(frozen=True)
class Scored:
    """One arm's tokens.parquet, answers asked at temperature 0 only (elsewhere the margin says nothing)."""

    table: pa.Table

    def column(self, name: str) -> Values:
        """A numeric column."""
        return np.asarray(self.table[name].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)

    def groups(self, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Distinct values of a text column, and each row's place among them."""
        encoded = pc.dictionary_encode(self.table[name].combine_chunks().cast(pa.string()).fill_null(""))
        names = [clean(str(value)) for value in encoded.dictionary.to_pylist()]
        return names, np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)

    @cached_property
    def documents(self) -> npt.NDArray[np.int64]:
        """Each row's document, as a number."""
        return self.groups("item")[1]

    def by(self, name: str) -> dict[str, Mean]:
        """Mean margin by a text column, e.g. `stratum`."""
        names, place = self.groups(name)
        sums, tokens = self.column("margin_sum"), self.column("tokens")
        found = {}
        for index, group in enumerate(names):
            here = place == index
            found[group] = _mean(self.documents[here], sums[here], tokens[here])
        return found

    def by_position(self) -> list[tuple[int, Mean]]:
        """(first position of the bucket, mean margin of the tokens there)."""
        margins, lengths = self.margins()
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        position = np.arange(len(margins)) - starts
        document = np.repeat(self.documents, lengths)
        found = []
        for low, high in pairwise(POSITIONS):
            here = (position >= low) & (position < high)
            if here.any():
                found.append((low, _mean(document[here], margins[here], np.ones(int(here.sum())))))
        return found

    def margins(self) -> tuple[Values, npt.NDArray[np.int64]]:
        """All tokens' margins in one array, and each answer's length."""
        column = self.table["margins"].combine_chunks()
        flat = np.asarray(pc.list_flatten(column).to_numpy(zero_copy_only=False), dtype=np.float64)
        lengths = np.asarray(
            pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64
        )
        return flat, lengths

    def total(self) -> Mean:
        """Over all tokens."""
        return _mean(self.documents, self.column("margin_sum"), self.column("tokens"))

    def share(self, name: str) -> float | None:
        """A per-answer count as a share of all tokens; None when it was not counted."""
        counts, tokens = self.column(name), self.column("tokens")
        return float(counts.sum() / tokens.sum()) if np.isfinite(counts).all() and tokens.sum() else None


def read_scored(run: Run) -> dict[str, Scored]:
    """The arms that were scored; empty when no reference was there."""
    found = {}
    for arm in ARMS:
        table = run.scored(arm, [*_COLUMNS, "greedy"])
        if table is None or not set(_COLUMNS) <= set(table.column_names):
            continue
        if "greedy" in table.column_names:
            table = table.filter(table["greedy"])
        table = table.filter(pc.greater(table["tokens"], 0))
        if table.num_rows and np.isfinite(Scored(table).column("margin_sum")).all():
            found[arm] = Scored(table)
    return found


def tail(margins: Values, thresholds: Values) -> Values:
    """Share of tokens whose margin exceeds each threshold."""
    ordered = np.sort(margins)
    return 1.0 - np.searchsorted(ordered, thresholds, side="right") / max(len(ordered), 1)


def _mean(documents: npt.NDArray[np.generic], sums: Values, tokens: Values) -> Mean:
    """Ratio estimate with the linearised variance of documents as clusters (Cochran 1977, 6.3)."""
    _, index = np.unique(documents, return_inverse=True)
    total, count = np.bincount(index, weights=sums), np.bincount(index, weights=tokens)
    mean, n = float(total.sum() / count.sum()), len(total)
    if n < 2:
        return Mean(mean, None, int(count.sum()), n)
    error = np.sqrt(n / (n - 1) * ((total - mean * count) ** 2).sum()) / count.sum()
    return Mean(mean, float(1.96 * error), int(count.sum()), n)

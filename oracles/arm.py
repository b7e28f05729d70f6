"""One arm's timed requests as a table that the honesty checks read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from oracles import text_signs

Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]

KEY = ["pair", "line"]
NEEDED = ("status", "finish_reason", "text", "event_ms", "retokenised_tokens", "usage_completion_tokens")
ASKED = ["cell", "item", "stratum", "temperature", "max_tokens", "fixed_length", "stop", "messages"]
DEGENERATE = 0.3  # loop share above which text does not survive re-tokenising


@dataclass(frozen=True)
class Arm:
    """Every request asked of one arm, warm-up left out, with what was asked beside what came."""

    rows: pd.DataFrame

    @classmethod
    def read(cls, requests: pa.Table, workload: pa.Table) -> Arm:
        """Join by (pair, line), or by line when the workload has no pair. ValueError names a missing column."""
        missing = [c for c in (*KEY, *NEEDED) if c not in requests.column_names]
        missing += [c for c in ("line", *ASKED) if c not in workload.column_names]
        if missing:
            raise ValueError(f"the column {missing[0]} is missing")
        key = KEY if "pair" in workload.column_names else ["line"]
        came = requests.to_pandas(integer_object_nulls=False)
        came = came.drop(columns=[c for c in ASKED if c in came.columns])
        asked = workload.select([*key, *ASKED]).to_pandas()
        rows = came.merge(asked, on=key, how="left", validate="many_to_one")
        return cls(rows[rows["kind"] != "warmup"].sort_values(KEY).reset_index(drop=True))

    @cached_property
    def served(self) -> Arm:
        """Requests that ended well; what failed is judged apart."""
        return Arm(self.rows[self.rows["status"] == "ok"].reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> list[str]:
        """`pair/line` of each request: what a finding shows as an example."""
        return [f"pair {p} line {line}" for p, line in zip(self.rows["pair"], self.rows["line"], strict=True)]

    def number(self, column: str) -> Values:
        """A numeric column as float64, NaN where the engine said nothing."""
        return pd.to_numeric(self.rows[column], errors="coerce").to_numpy(dtype=float, na_value=np.nan)

    def text(self) -> list[str]:
        """The answers, without reasoning."""
        return [value if isinstance(value, str) else "" for value in self.rows["text"]]

    @cached_property
    def spoken(self) -> list[str]:
        """Reasoning and answer: what the retokenised count covers."""
        if "reasoning" not in self.rows:
            return self.text()
        reasoning = [value if isinstance(value, str) else "" for value in self.rows["reasoning"]]
        return [r + t for r, t in zip(reasoning, self.text(), strict=True)]

    @cached_property
    def loops(self) -> Values:
        """loop_share of every answer."""
        return np.array([text_signs.loop_share(text) for text in self.spoken])

    @cached_property
    def claimed(self) -> Values:
        """Output tokens as the engine counts them: usage, else its token ids; NaN when it counts none."""
        usage = self.number("usage_completion_tokens")
        ids = np.array([np.nan if v is None else float(len(v)) for v in self._lists("token_ids")])
        return np.where(np.isnan(usage), ids, usage)

    @cached_property
    def shown(self) -> Values:
        """Tokens of the text by the judge's tokenizer."""
        return self.number("retokenised_tokens")

    @cached_property
    def finish(self) -> npt.NDArray[np.str_]:
        """finish_reason, empty where none came."""
        return np.array([value if isinstance(value, str) else "" for value in self.rows["finish_reason"]], dtype=str)

    def lists(self, column: str) -> list[Values]:
        """A list column as arrays, empty where null."""
        return [np.asarray([] if v is None else v, dtype=float) for v in self._lists(column)]

    def _lists(self, column: str) -> list[Any]:
        if column not in self.rows:
            return [None] * len(self.rows)
        return [v if isinstance(v, list | np.ndarray) else None for v in self.rows[column]]


def both(arm: Arm, other: Arm) -> tuple[Arm, Arm]:
    """The requests that both arms answered, in the same order."""
    keys = arm.rows[KEY].merge(other.rows[KEY], on=KEY)
    return _only(arm, keys), _only(other, keys)


def _only(arm: Arm, keys: pd.DataFrame) -> Arm:
    return Arm(arm.rows.merge(keys, on=KEY).sort_values(KEY).reset_index(drop=True))

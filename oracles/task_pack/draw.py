"""Seeded draws that come out the same in every Python version: only `Random.random` is used."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws named by a seed and a path of words."""

    def __init__(self, seed: int, *path: str | int) -> None:
        name = "/".join(str(part) for part in (seed, *path))
        digest = hashlib.sha256(b"task pack/" + name.encode()).digest()
        self._unit = random.Random(int.from_bytes(digest[:16], "big")).random

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + int(self._unit() * (high - low + 1))

    def pick(self, values: Sequence[T]) -> T:
        """One of `values`."""
        return values[self.between(0, len(values) - 1)]

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        """`count` different ones, in drawn order."""
        left = list(values)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(count)]

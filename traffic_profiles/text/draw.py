"""Seeded draws that give the same numbers in every process, on every platform and in every Python version."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of draws named by a seed and a path of words.

    Only `Random.getrandbits` is used: its output for an integer seed is the Mersenne Twister's own, while
    `choice`, `sample` and `gauss` have changed between Python versions. Never `hash()`: it differs by process.
    """

    def __init__(self, seed: int, *path: str | int) -> None:
        name = "/".join(str(part) for part in (seed, *path))
        digest = hashlib.sha256(b"traffic/" + name.encode()).digest()
        self._bits = random.Random(int.from_bytes(digest[:16], "big")).getrandbits

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return self._bits(53) % n

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def unit(self) -> float:
        """A number in (0, 1)."""
        return (self._bits(52) + 0.5) / 2**52

    def normal(self) -> float:
        """A standard normal deviate (Box-Muller)."""
        return math.sqrt(-2.0 * math.log(self.unit())) * math.cos(2.0 * math.pi * self.unit())

    def choice(self, items: Sequence[T]) -> T:
        """One item."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """`k` items without repetition, in drawn order."""
        rest = list(items)
        drawn: list[T] = []
        while rest and len(drawn) < k:
            at = self.below(len(rest))
            rest[at], rest[-1] = rest[-1], rest[at]
            drawn.append(rest.pop())
        return drawn

    def hex(self, digits: int) -> str:
        """Lower-case hexadecimal digits."""
        return f"{self._bits(4 * digits):0{digits}x}"

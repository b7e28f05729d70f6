"""An ask is a prompt before it has a length: an opening, material without end, and the request itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

Count = Callable[[str], int]

POOL = 16  # candidates for the unit that closes the gap
TOLERANCE = 0.04

# Letters a token for other scripts, read off with byte-level vocabularies of 100k to 200k entries on this text.
# A small English vocabulary spends two to four times as many: give a tokenizer where the length matters.
_SCRIPTS = (
    (0x0400, 0x052F, 2.6),
    (0x0600, 0x06FF, 2.2),
    (0x0900, 0x097F, 2.0),
    (0x3040, 0x30FF, 1.2),
    (0x4E00, 0x9FFF, 1.1),
    (0xAC00, 0xD7AF, 1.2),
)
_LATIN = 4.2


@dataclass(frozen=True)
class Ask:
    """`frame` stands between opening, material and closing; `joiner` between two units of material.

    `needle` is a sentence that must stand inside the material, at `depth` of it (0 = first, 1 = last): the one
    that the closing asks for. `replies` and `follow_ups`, where there are any, continue the conversation.
    """

    opening: str
    closing: str
    units: Iterator[str]
    joiner: str = " "
    frame: str = " "
    needle: str = ""
    depth: float = 0.5
    replies: Iterator[str] = field(default_factory=lambda: iter(()))
    follow_ups: Iterator[str] = field(default_factory=lambda: iter(()))

    def text(self, units: list[str]) -> str:
        """The prompt with these units of material."""
        if self.needle:
            at = round(self.depth * len(units))
            units = [*units[:at], self.needle, *units[at:]]
        return self.frame.join(part for part in (self.opening, self.joiner.join(units), self.closing) if part)


def estimate_tokens(text: str) -> int:
    """Tokens by characters, for when there is no tokenizer: 4.2 Latin letters a token, fewer in other scripts."""
    return max(1, round(sum(1 / _letters_per_token(ord(c)) for c in text))) if text else 0


def fit(ask: Ask, target: int, count: Count) -> str:
    """The prompt with as much material as brings it near `target` tokens; no unit is ever cut."""
    units: list[str] = []
    gap = target - count(ask.text([]))
    while gap > target * TOLERANCE:
        unit = next(ask.units, None)
        if unit is None:
            break
        size = count(ask.joiner + unit)
        if size >= gap:
            break
        units.append(unit)
        gap -= size
    # Sizes of units do not add up exactly, because joins merge tokens: measure the whole, then close the gap.
    for _ in range(4):
        text = ask.text(units)
        gap = target - count(text)
        if abs(gap) <= target * TOLERANCE:
            break
        if gap < 0 and units:
            units.pop()
            gap = target - count(ask.text(units))
        closing_unit = _best(ask, gap, count)
        if closing_unit:
            units.append(closing_unit)
    return ask.text(units)


def _best(ask: Ask, gap: int, count: Count) -> str:
    """Of the next few units the one that leaves the smallest gap, or none when all leave a larger one."""
    pool = [(abs(gap - count(ask.joiner + unit)), unit) for unit in islice(ask.units, POOL)]
    distance, unit = min(pool, key=lambda item: item[0], default=(math.inf, ""))
    return unit if distance < abs(gap) else ""


def _letters_per_token(code: int) -> float:
    return next((letters for low, high, letters in _SCRIPTS if low <= code <= high), _LATIN)

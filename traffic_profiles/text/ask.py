"""An ask is a prompt before it has a length: an opening, material without end, and the request itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile

from traffic_profiles.text.grammar import Bridge

Count = Callable[[str], int]

POOL = 16  # candidates for the unit that closes the gap
CLOSE = 0.01  # of the target

# Letters a token in scripts other than Latin, read off with byte-level vocabularies of 100k to 200k entries on this
# text. A small English vocabulary spends two to four times as many: give a tokenizer where the length matters.
_SCRIPTS = (
    (re.compile("[\u0400-\u052f]"), 2.6),
    (re.compile("[\u0600-\u06ff]"), 2.2),
    (re.compile("[\u0900-\u097f]"), 2.0),
    (re.compile("[\u3040-\u30ff\uac00-\ud7af]"), 1.2),
    (re.compile("[\u4e00-\u9fff]"), 1.1),
)
_LATIN = 4.2


@dataclass(frozen=True)
class Ask:
    """`frame` stands between opening, material and closing; `joiner` between two units of material.

    `needle` is a sentence that must stand inside the material, at `depth` of it (0 = first, 1 = last): the one
    that the closing asks for. At least `least` units are always there. `replies` and `follow_ups`, where there
    are any, continue the conversation.
    """

    opening: str
    closing: str
    units: Iterator[str]
    joiner: str = " "
    frame: str = " "
    needle: str = ""
    depth: float = 0.5
    least: int = 0
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
    tokens, latin = 0.0, len(text)
    if not text.isascii():
        for script, letters_per_token in _SCRIPTS:
            letters = len(script.findall(text))
            tokens, latin = tokens + letters / letters_per_token, latin - letters
    return max(1, round(tokens + latin / _LATIN)) if text else 0


def fit(ask: Ask, target: int, count: Count) -> str:
    """The prompt with as much material as brings it near `target` tokens; no unit is ever cut."""
    units = list(islice(ask.units, ask.least))
    spare: list[str] = []
    gap = target - count(ask.text(units))
    while gap > 0 and (unit := next(ask.units, None)) is not None:
        size = count(ask.joiner + unit)
        if size >= gap:
            on_subject = takewhile(lambda one: not isinstance(one, Bridge), chain([unit], ask.units))
            spare = list(islice(on_subject, POOL))
            break
        units.append(unit)
        gap -= size
    return _settle(ask, units, spare, target, count)


def _settle(ask: Ask, units: list[str], spare: list[str], target: int, count: Count) -> str:
    """Close the gap with the best of the spare units.

    Sizes of units do not add up exactly, because joins merge tokens: so the whole text is measured.
    """
    for _ in range(4):
        gap = target - count(ask.text(units))
        if abs(gap) <= target * CLOSE:
            break
        if gap < 0 and len(units) > ask.least:
            spare.append(units.pop())
            gap = target - count(ask.text(units))
        if not spare:
            break
        best = min(spare, key=lambda unit: abs(gap - count(ask.joiner + unit)))
        if abs(gap - count(ask.joiner + best)) < abs(gap):
            spare.remove(best)
            units.append(best)
    return ask.text(units)

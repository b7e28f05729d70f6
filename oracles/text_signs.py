"""Signs that a text can carry by itself: loops, refusals, invisible openings, the text of NaN logits."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import numpy as np

TAIL = 4096
LONGEST_PERIOD = 200
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e"
REFUSAL = re.compile(
    r"\s*(i['’]?m sorry|i am sorry|sorry,|i can(no|['’])t|i am unable|i['’]?m unable|as an ai\b|i won['’]t)", re.I
)


def loop_share(text: str) -> float:
    """Share of the text covered by its longest immediate repetition (three times or more) of up to 200 characters.

    Works on characters, not tokens, so it needs no tokenizer; only the last 4,096 characters are read, which is where
    loops end up. Honest greedy output of small models loops too: compare with the baseline on the same prompts.
    """
    return _loop_share(text[-TAIL:])


@lru_cache(maxsize=4096)  # several checks ask for the same answers
def _loop_share(tail: str) -> float:
    codes = np.frombuffer(tail.encode("utf-32-le"), dtype=np.uint32)
    best = 0
    for period in range(1, min(LONGEST_PERIOD, len(codes) // 3) + 1):
        breaks = np.flatnonzero(codes[period:] != codes[:-period])
        edges = np.concatenate(([-1], breaks, [len(codes) - period]))
        run = int(np.diff(edges).max()) - 1
        if run >= 2 * period:
            best = max(best, run + period)
    return best / len(codes) if len(codes) else 0.0


def is_refusal(text: str) -> bool:
    """Does the answer open as a refusal does? English only; judged against the baseline, never alone."""
    return REFUSAL.match(text) is not None


def opens_invisibly(text: str) -> bool:
    """Does it open with characters nobody sees? One leading space is a tokenizer's habit, not a trick."""
    return text[:1] in tuple(INVISIBLE) or text[:1] in ("\n", "\r", "\t") or text[:2] == "  "


def ends_invisibly(text: str) -> bool:
    """Is the tail padded with eight or more characters nobody sees?"""
    shown = text.rstrip().rstrip(INVISIBLE).rstrip()
    return len(text) - len(shown) >= 8


def is_nan_text(text: str) -> bool:
    """Token 0, over and over, is what argmax of NaN logits gives; most BPE vocabularies spell it `!`."""
    return len(text) >= 8 and text.count("!") >= 0.9 * len(text)


def opening(text: str) -> str:
    """The first word, or the first character of a script without spaces."""
    word = text.lstrip().split(maxsplit=1)[:1]
    if not word:
        return ""
    wide = unicodedata.east_asian_width(word[0][0]) in "WF"
    return word[0][:1] if wide else word[0][:24]


def lost_characters(text: str) -> bool:
    """U+FFFD before the end: split characters were decoded one token at a time."""
    return "\ufffd" in text.rstrip("\ufffd")

"""Make foreign text harmless and visible. Everything read from a run directory passes through here once, at the border.

Markup is not handled here: jinja2 escapes it, and Markdown, XML and CSV writers escape their own. This module removes
what escaping leaves active: terminal escapes, NULs, invisible and direction-changing characters, stacked marks, length.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

MAX_CHARS = 2_000  # a sentence, a path, a fingerprint; engine text has its own, shorter box
MAX_ITEMS = 20_000
MAX_DEPTH = 12
MAX_NODES = 500_000
MAX_MARKS = 2  # combining marks on one letter: more is drawn over the neighbours' lines

_KEPT = "\n\t"
# Controls, format (bidi, zero width, tags), unassigned, lone surrogates, private use, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Cs", "Co", "Zl", "Zp"})
# ZERO WIDTH (NON-)JOINER shape real words and emoji and change nothing else.
_HARMLESS = frozenset("\u200c\u200d")
_MARK = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED = re.compile(f"(?<={_MARK}{{{MAX_MARKS}}}){_MARK}+")


def clean(text: str, limit: int = MAX_CHARS) -> str:
    """Return `text` with every active or invisible character shown as a visible one, cut at `limit` characters."""
    cut = text[:limit]
    if not cut.isascii() or not cut.isprintable():
        cut = "".join(map(_shown, cut.replace("\r\n", "\n")))
        cut = _STACKED.sub("", cut)
    left = len(text) - limit
    return f"{cut}… ({left:,} more characters)" if left > 0 else cut


def clean_tree(value: Any) -> Any:
    """`clean` for every string of a JSON-like value; what is deeper or longer than the limits is named, not kept."""
    left = [MAX_NODES]  # an alias in YAML is one node to the parser and many to a reader

    def walk(value: Any, depth: int) -> Any:
        left[0] -= 1
        if isinstance(value, str):
            return clean(value)
        if not isinstance(value, (dict, list, tuple)):
            return value
        if depth >= MAX_DEPTH or left[0] < 0:
            return "(too deep or too large to show)"
        if isinstance(value, dict):
            return {clean(str(key), 200): walk(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
        more = [f"({len(value) - MAX_ITEMS:,} more)"] if len(value) > MAX_ITEMS else []
        return [walk(item, depth + 1) for item in value[:MAX_ITEMS]] + more

    return walk(value, 0)


def _shown(char: str) -> str:
    if char in _KEPT or char in _HARMLESS or char.isprintable():
        return char
    return f"⟨U+{ord(char):04X}⟩" if unicodedata.category(char) in _HIDDEN else char

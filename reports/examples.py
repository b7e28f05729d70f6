"""A few answers side by side where the candidate left the reference, with the reference's own choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reports.clean_text import clean
from reports.run_data import Run
from reports.values import as_dict, as_list

MAX_CHARS = 1_200
BEFORE, AFTER = 24, 56  # tokens shown around the first clear divergence
CLEAR = 0.1  # nats: below it two tokens are as good as tied
_COLUMNS = ["pair", "line", "cell", "item", "stratum", "margin_max", "margins", "ranks", "ids", "choices"]

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Piece:
    """A stretch of engine text; `margin` is set on a token that is not the reference's choice.

    `first` marks the first clear divergence.
    """

    text: str
    margin: float | None = None
    choice: str = ""
    first: bool = False


@dataclass(frozen=True)
class Side:
    """One arm's answer around its first clear divergence; `result` is what a task made of it."""

    arm: str
    pieces: tuple[Piece, ...]
    sentence: str
    result: str = ""

    @property
    def parting(self) -> Piece | None:
        """The first clear divergence, when the reference's own choice there is known."""
        return next((piece for piece in self.pieces if piece.first and piece.choice), None)


@dataclass(frozen=True)
class Example:
    """One request."""

    where: str
    prompt: str
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Gallery:
    """Examples under one heading."""

    title: str
    lead: str
    examples: tuple[Example, ...]


class Tokens:
    """Token scores of both arms, request by request, decoded with the run's own tokenizer."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.scored = {arm: table for arm in ("candidate", "baseline") if (table := _scored(run, arm)) is not None}
        self.decode = _decoder(run.root / "tokenizer.json") if self.scored else None

    def side(self, arm: str, pair: int, line: int) -> Side | None:
        """One arm's answer to a request; None when it was not scored."""
        table = self.scored.get(arm)
        if table is None:
            return None
        rows = table.filter(pc.and_(pc.equal(table["pair"], pair), pc.equal(table["line"], line))).to_pylist()
        return _side(self.run, arm, rows[0], self.decode) if rows else None


def furthest(run: Run) -> Gallery:
    """The answers that left the reference furthest."""
    lead = (
        "Marked tokens are not the reference's choice. Engine text is shown as it came, with active and invisible "
        "characters made visible."
    )
    return Gallery("Where the candidate left the reference furthest", lead, tuple(worst_examples(run)))


def worst_examples(run: Run, most: int = 5) -> list[Example]:
    """The answers with the candidate's largest single margin, one a document; empty when nothing was scored."""
    tokens = Tokens(run)
    if "candidate" not in tokens.scored:
        return []
    return [_example(tokens, row) for row in _worst_rows(tokens.scored["candidate"], most)]


def _scored(run: Run, arm: str) -> pa.Table | None:
    table = run.scored(arm, _COLUMNS)
    needed = {"pair", "line", "item", "margin_max", "margins", "ranks", "ids"}
    return table if table is not None and needed <= set(table.column_names) else None


def _worst_rows(table: pa.Table, most: int) -> list[dict[str, Any]]:
    order = pc.sort_indices(table["margin_max"], sort_keys=[("", "descending")])[: 20 * most]
    found: dict[str, dict[str, Any]] = {}
    for row in table.take(order).to_pylist():
        if (row["margin_max"] or 0) > 0:
            found.setdefault(str(row["item"]), row)
    return list(found.values())[:most]


def _example(tokens: Tokens, row: dict[str, Any]) -> Example:
    pair, line = int(row["pair"]), int(row["line"])
    sides = [side for arm in ("candidate", "baseline") if (side := tokens.side(arm, pair, line))]
    where = f"{row.get('cell')} · {row.get('stratum')} · pair {pair}, line {line}"
    return Example(clean(where, 200), _prompt(tokens.run, pair, line), tuple(sides))


def _side(run: Run, arm: str, row: dict[str, Any], decode: Decode | None) -> Side:
    margins, ranks = row["margins"] or [], row["ranks"] or []
    clear = next((i for i, (m, r) in enumerate(zip(margins, ranks, strict=False)) if r > 0 and m >= CLEAR), None)
    sentence = "never clearly leaves the reference"
    if clear is not None:
        sentence = f"leaves the reference at token {clear + 1} of {len(margins)}, by {margins[clear]:.2f} nats"
    ids, choices = row["ids"] or [], row.get("choices") or []
    if decode is None or len(ids) != len(margins) or len(ranks) != len(margins):
        text = _answer(run, arm, int(row["pair"]), int(row["line"]))
        return Side(arm, (Piece(clean(text, MAX_CHARS)),), sentence)
    start = max(0, (clear or 0) - BEFORE)
    stop = min(len(ids), (clear or 0) + AFTER)
    pieces = [Piece("… ")] if start else []
    for place, text in zip(range(start, stop), _texts(ids[start:stop], decode), strict=True):
        away = ranks[place] > 0
        choice = decode([choices[place]]) if away and place < len(choices) else ""
        margin = float(margins[place]) if away else None
        pieces.append(Piece(clean(text, 80), margin, clean(choice, 40), first=place == clear))
    pieces += [Piece(" …")] if stop < len(ids) else []
    return Side(arm, tuple(_joined(pieces)), sentence)


def _joined(pieces: Iterable[Piece]) -> Iterable[Piece]:
    """Neighbours without a mark become one piece: fewer elements on the page."""
    plain = ""
    for piece in pieces:
        if piece.margin is None:
            plain += piece.text
            continue
        if plain:
            yield Piece(plain)
        plain = ""
        yield piece
    if plain:
        yield Piece(plain)


def _texts(ids: Sequence[int], decode: Decode) -> Iterable[str]:
    """Text that each token adds; a character split over tokens belongs to the last of them."""
    before = ""
    for end in range(1, len(ids) + 1):
        now = decode(ids[:end])
        whole = now.rstrip("\ufffd") if end < len(ids) else now
        yield whole[len(before) :]
        before = whole if len(whole) > len(before) else before


def _decoder(path: Path) -> Decode | None:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the library raises bare Exception for a missing or broken file
        return None

    def decode(ids: Sequence[int]) -> str:
        known = [i for i in ids if i >= 0 and tokenizer.id_to_token(i) is not None]
        return str(tokenizer.decode(known, skip_special_tokens=False))

    return decode


def _answer(run: Run, arm: str, pair: int, line: int) -> str:
    row = _one_row(run.root / "pairs" / f"{pair:02d}" / arm / "requests.parquet", line, "text")
    return row or ""


def _prompt(run: Run, pair: int, line: int) -> str:
    """The end of the last user message."""
    path = run.root / "pairs" / f"{pair:02d}" / "workload.parquet"
    with suppress(ValueError, RecursionError):
        messages = json.loads(_one_row(path, line, "messages") or "null")
        if isinstance(messages, str):
            return clean(messages[-300:])
        asked = [as_dict(m).get("content") for m in as_list(messages) if as_dict(m).get("role") == "user"]
        if asked and isinstance(asked[-1], str):
            return clean(asked[-1][-300:])
    return ""


def _one_row(path: Path, line: int, column: str) -> str | None:
    """One text value; bytes that are no UTF-8 are shown as replacement characters."""
    try:
        values = pq.read_table(path, columns=[column], filters=[("line", "==", line)])[column]
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return None
    if not len(values) or not values[0].is_valid:
        return None
    raw = values.cast(pa.binary())[0].as_py()
    return bytes(raw).decode("utf-8", errors="replace")

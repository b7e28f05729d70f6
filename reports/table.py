"""What a table is: the one source of its HTML, its Markdown and its CSV."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from reports import wording

FOLDED_ROWS = 14


@dataclass(frozen=True)
class Column:
    """`define`: key of the definition behind the "?".

    `kind` is `number`, `spread` (a number and its range), `interval`, `state`, `text`, `reason` or `answer`
    (an engine's text, broken anywhere).
    """

    label: str
    kind: str = "text"
    define: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the column is right-aligned and sorted as numbers."""
        return self.kind in ("number", "spread")


@dataclass(frozen=True)
class Item:
    """A value as shown and, for numbers, as it is; an interval has two.

    `below` stands in small under it; `define` is the key of a definition when the column has none.
    """

    shown: str
    value: float | None = None
    ends: tuple[float | None, float | None] = (None, None)
    below: str = ""
    define: str = ""

    @property
    def sort(self) -> str:
        """The number for sorting; empty when missing."""
        return "" if self.value is None else repr(self.value)


@dataclass(frozen=True)
class TableRow:
    """One row; `anchor` is its id on the page."""

    items: tuple[Item, ...]
    state: str = ""
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """A titled table; `name` is its CSV's file name; `is_open` keeps a long one unfolded."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...] = field(default=())
    is_open: bool = False

    @property
    def is_long(self) -> bool:
        """Whether the page makes it foldable."""
        return len(self.rows) > FOLDED_ROWS

    @property
    def summary(self) -> str:
        """What a folded table says of itself."""
        states = Counter(row.state for row in self.rows if row.state not in ("", "PASS"))
        told = "".join(f", {count} {state}" for state, count in states.items())
        return f"{self.title}: {wording.count(len(self.rows), 'row')}{told}"

    @cached_property
    def states(self) -> tuple[str, ...]:
        """States that occur, for the filter."""
        return tuple(sorted({row.state for row in self.rows if row.state}))


def text(value: object) -> Item:
    """A text item."""
    return Item("" if value is None else str(value))


def num(value: float | None, unit: str = "") -> Item:
    """A number with its unit."""
    return Item(wording.with_unit(value, unit), value)


def bounds(low: float | None, high: float | None, shown: str | None = None) -> Item:
    """An interval, shown as `low to high` unless told otherwise."""
    plain = f"{wording.number(low)} to {wording.number(high)}" if low is not None and high is not None else ""
    return Item(plain if shown is None else shown, ends=(low, high))


def share(value: float | None, digits: int = 1) -> Item:
    """A share, shown in percent."""
    return Item(wording.percent(value, digits), value)

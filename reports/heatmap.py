"""The heatmap of the first screen: profiles or cells against metrics, every box a verdict with its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from reports import wording
from reports.definitions import label
from reports.pair_series import SHOWN, PairSeries, place_of
from reports.run_data import Cell, Run
from reports.svg import slug
from reports.verdict_data import Check

MAX_ROWS = 10  # more cells than this are folded into one row a profile: the first screen has no room
ByPlace = dict[tuple[str | None, str], Check]
SEVERITY = {"FAIL": 0, "INVALID": 1, "INCONCLUSIVE": 2, "PASS": 3}


@dataclass(frozen=True)
class Box:
    """One box. `state` is a status, `observed` (measured, not gated), `told` (for context) or `none`."""

    state: str
    text: str
    below: str = ""
    title: str = ""
    target: str = ""

    @property
    def glyph(self) -> str:
        """The state for readers who do not see colour."""
        return wording.GLYPHS.get(self.state, "")


@dataclass(frozen=True)
class Row:
    """A cell, or a profile with its worst cells."""

    profile: str
    load: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Heatmap:
    """`columns` are (key, label), as many as every row has boxes; `of` is what a row is."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    of: str
    left_out: int = 0


def anchor(check: str) -> str:
    """The id of a check's row in the table of all checks."""
    return f"check-{slug(check)}"


def severity(check: Check) -> tuple[int, float]:
    """Worst first: by status, then by how little is left over the bar."""
    return SEVERITY[check.status], check.distance if check.distance is not None else 0.0


def heatmap(run: Run, series: PairSeries, accuracy: dict[str, Box], *, fold: bool, limit: int = MAX_ROWS) -> Heatmap:
    """Lay out speed checks, then accuracy (a box a cell).

    `fold` gives one row a profile with its worst cell in each box, worst profiles first.
    """
    columns, by_place = speed_columns(run), _by_place(run)
    groups = _groups(run.cells, fold=fold)
    rows = []
    for cells in groups:
        boxes = [_box(cells, column, by_place, series) for column, _ in columns]
        load = cells[0].load if len(cells) == 1 else f"worst of {len(cells)}"
        rows.append(Row(cells[0].profile, load, (*boxes, _worst([accuracy.get(c.name, _NONE) for c in cells]))))
    if fold and len(rows) > limit:
        rows.sort(key=lambda row: min(SEVERITY.get(box.state, 9) for box in row.boxes))
    every = (*columns, ("token_margin", "Token margin, nats"))
    return Heatmap(every, tuple(rows[:limit]), "Profile" if fold else "Cell", max(0, len(rows) - limit))


def worst_boxes(run: Run, series: PairSeries, columns: Sequence[tuple[str, str]]) -> tuple[Box, ...]:
    """One box a column, each the worst of all cells: a run in one row."""
    by_place = _by_place(run)
    boxes = (_box(list(run.cells), column, by_place, series) for column, _ in columns)
    return tuple(replace(box, target="") for box in boxes)  # its row is on the run's own page


_NONE = Box("none", wording.MISSING, title="not measured")


def _by_place(run: Run) -> ByPlace:
    return {(c.cell, c.check.partition("@")[0]): c for c in run.of_family("speed") if c.cell}


def speed_columns(run: Run) -> tuple[tuple[str, str], ...]:
    """(key, label) of every speed criterion that was judged in some cell, in the order of `SHOWN`."""
    keys: dict[str, str] = {}
    for check in run.of_family("speed"):
        if check.cell:
            key = check.check.partition("@")[0]
            keys[key] = label(check.metric) + ("" if check.unit == "x" else f" {wording.bar(check)}")
    if not keys:
        keys = {metric: label(metric) for metric in SHOWN[:4]} | {"output_throughput": label("output_throughput")}
    return tuple(sorted(keys.items(), key=lambda item: place_of(item[0])))


def _groups(cells: Sequence[Cell], *, fold: bool) -> list[list[Cell]]:
    if not fold:
        return [[cell] for cell in cells]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.profile, []).append(cell)
    return list(groups.values())


def _box(cells: list[Cell], column: str, by_place: ByPlace, series: PairSeries) -> Box:
    checks = [check for cell in cells if (check := by_place.get((cell.name, column)))]
    if checks:
        return check_box(min(checks, key=severity), series, with_load=len(cells) > 1)
    observed = [(median(r for _, r in found), cell) for cell in cells if (found := series.ratios(cell.name, column))]
    if not observed:
        return _NONE
    value, cell = min(observed, key=lambda item: item[0])
    title = f"{label(column)} at {cell.name}: {wording.ratio(value)}, measured but not gated"
    return Box("observed", wording.ratio(value), cell.load if len(cells) > 1 else "", title)


def check_box(check: Check, series: PairSeries, *, with_load: bool = False) -> Box:
    """The box of one judged check; a number that could not be judged is shown all the same, and said so."""
    title = f"{label(check.metric)} at {check.cell}: {check.status}. {check.reason}"
    load = (check.cell or "").rpartition("/")[2] if with_load else ""
    bound = check.ci_low if wording.wants_more(check) else check.ci_high
    below = "not judged" if check.status == "INVALID" else ""
    if bound is not None:
        below = f"{wording.sign(check)} {wording.times(bound) if check.unit == 'x' else wording.number(bound)}"
    text = wording.with_unit(check.observed, check.unit)
    if check.observed is None and check.cell and check.unit == "x":
        found = [value for _, value in series.ratios(check.cell, check.metric)]
        text = wording.ratio(median(found) if found else None)
    return Box(check.status, text, " ".join(filter(None, (load, below))), title, anchor(check.check))


def _worst(boxes: list[Box]) -> Box:
    return min(boxes, key=lambda box: SEVERITY.get(box.state, 9))

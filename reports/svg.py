"""A matplotlib figure as inline SVG that takes its colours and fonts from the page, so one picture fits both themes.

matplotlib is given a palette of sentinel colours; here each becomes a CSS class (`f-cand` fills, `s-cand` strokes). All
style attributes become presentation attributes, so the page's policy needs no inline style.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_FONT = re.compile(r"(?:(?P<weight>bold|[5-9]00) )?(?P<size>[\d.]+)px")
_DROPPED = {"stroke-linejoin", "font-family", "font", "text-align", "stroke-miterlimit", "-inkscape-font-specification"}


@dataclass(frozen=True)
class Palette:
    """Colours of a chart by role."""

    ink: str
    quiet: str
    line: str
    grid: str
    panel: str
    cand: str
    base: str
    floor: str
    third: str
    fourth: str
    PASS: str
    FAIL: str
    INCONCLUSIVE: str
    INVALID: str

    def of(self, role: str) -> str:
        """The colour of a role by name: a status, an arm, or `ink` for anything else."""
        known = {"candidate": "cand", "baseline": "base"}
        return str(getattr(self, known.get(role, role), self.ink))


_ROLES = [item.name for item in fields(Palette)]
SENTINELS = Palette(*(f"#0101{place + 1:02x}" for place in range(len(_ROLES))))
PAPER = Palette(
    ink="#1c1d1f", quiet="#5b5f66", line="#d4d4cf", grid="#ececea", panel="#ffffff", cand="#2f56c6", base="#8a7a5c",
    floor="#8b8f96", third="#a23b72", fourth="#24727f", PASS="#0d6b52", FAIL="#b02a1c", INCONCLUSIVE="#7c5600",
    INVALID="#5d4a86",
)  # fmt: skip
_CLASS = {getattr(SENTINELS, role): role for role in _ROLES}


@dataclass
class Drawing:
    """A figure, and the texts shown when the pointer rests near one of its points (x and y in data units)."""

    figure: Figure
    tips: list[tuple[Axes, float, float, str]] = field(default_factory=list)

    def tip(self, axes: Axes, x: float | None, y: float, text: str) -> None:
        """Say `text` near a point; a point without a finite place is left out."""
        if x is not None and math.isfinite(x) and math.isfinite(y):
            self.tips.append((axes, x, y, text))

    def spots(self) -> Iterator[tuple[float, float, str]]:
        """(x, y, text) in CSS pixels from the upper left corner."""
        height = self.figure.bbox.height
        for axes, x, y, text in self.tips:
            across, up = axes.transData.transform((x, y))
            yield float(across), float(height - up), text


@dataclass(frozen=True)
class Chart:
    """A chart that can be drawn for the page or for paper. `note` says how to read it, `alt` what it shows.

    `only` is `wide` or `phone` for one of two drawings of the same thing.
    """

    name: str
    title: str
    note: str
    alt: str
    draw: Callable[[Palette], Drawing]
    define: str = ""
    wide: bool = False
    only: str = ""


def slug(name: str) -> str:
    """A name as part of an id or a file name; what it cannot hold is told apart by a digest."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
    if kept == name and len(name) < 80:
        return name
    return f"{kept[:60]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def as_svg(chart: Chart) -> str:
    """The chart as an `<svg>` element for a page; every id in it carries the chart's name."""
    with _settings(chart.name):
        drawing = chart.draw(SENTINELS)
        buffer = io.BytesIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawing.figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    root = ElementTree.fromstring(buffer.getvalue())
    return _Page(chart).render(root, drawing.spots())


def as_png(chart: Chart, dpi: int = 160) -> bytes:
    """The chart as a PNG on white."""
    with _settings(chart.name):
        buffer = io.BytesIO()
        _on_paper(chart).savefig(buffer, format="png", dpi=dpi, facecolor="#ffffff", bbox_inches="tight")
    return buffer.getvalue()


def as_svg_file(chart: Chart) -> str:
    """The chart as an SVG of its own, on white, for slides and documents."""
    with _settings(chart.name):
        buffer = io.StringIO()
        # No date: the same run gives the same bytes.
        figure = _on_paper(chart)
        figure.savefig(buffer, format="svg", facecolor="#ffffff", metadata={"Date": None}, bbox_inches="tight")
    return buffer.getvalue()


def _on_paper(chart: Chart) -> Figure:
    """The chart with the legend that a page has once for a section."""
    drawn = chart.draw(PAPER).figure
    lines = {
        text: handle for axes in drawn.axes for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if lines:
        drawn.legend(
            lines.values(), lines.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(4, len(lines)),
            frameon=False, fontsize=10.5,
        )  # fmt: skip
    return drawn


def _settings(salt: str) -> AbstractContextManager[None]:
    import matplotlib as mpl

    # A `$` in a profile's name is a `$`, not mathematics.
    return mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "font.size": 11})


class _Page:
    """Rewrites one SVG tree for the page."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self._used: set[str] = set()

    def render(self, root: ElementTree.Element, spots: Iterable[tuple[float, float, str]]) -> str:
        self._used = {ref for element in root.iter() for ref in _references(element)}
        width, height = root.get("viewBox", "0 0 0 0").split()[2:]
        body = "".join(self._element(child) for child in root)
        hover = "".join(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="8"><title>{_escape(t)}</title></circle>' for x, y, t in spots
        )
        name = f"{self._chart.name}-title"
        return (
            f'<svg class="plot" role="img" aria-labelledby="{name}" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}"><title id="{name}">{_escape(self._chart.alt)}</title>{body}'
            + (f'<g class="tips">{hover}</g></svg>' if hover else "</svg>")
        )

    def _element(self, element: ElementTree.Element) -> str:
        tag = element.tag.removeprefix(f"{{{_SVG}}}")
        if tag in {"metadata", "style"}:
            return ""
        inner = "".join(self._element(child) for child in element)
        text = _escape((element.text or "").strip()) if tag in {"text", "tspan"} else ""
        attributes = dict(self._attributes(element))
        if tag == "g" and not attributes:
            return inner
        if tag in {"g", "defs"} and not inner:
            return ""
        shown = "".join(f' {key}="{_escape(value)}"' for key, value in attributes.items())
        return f"<{tag}{shown}>{text}{inner}</{tag}>" if inner or text else f"<{tag}{shown}/>"

    def _attributes(self, element: ElementTree.Element) -> Iterator[tuple[str, str]]:
        classes = []
        for key, value in element.items():
            if key == "id" and value in self._used:
                yield "id", f"{self._chart.name}-{value}"
            elif key == _HREF:
                yield "href", f"#{self._chart.name}-{value[1:]}"
            elif key == "clip-path":
                yield key, value.replace("url(#", f"url(#{self._chart.name}-")
            elif key == "d":
                yield key, _NUMBER.sub(_short, " ".join(value.split()))
            elif key in {"x", "y", "width", "height", "transform"}:
                yield key, _NUMBER.sub(_short, value)
        for key, value in _styles(element):
            if key in {"fill", "stroke"} and value.lower() in _CLASS:
                classes.append(f"{key[0]}-{_CLASS[value.lower()]}")
            elif key == "font":
                found = _FONT.search(value)
                yield from _font(found)
            elif key == "clip-path":
                yield key, value.replace("url(#", f"url(#{self._chart.name}-")
            elif key not in _DROPPED:
                yield key, value
        if classes:
            yield "class", " ".join(classes)


def _font(found: re.Match[str] | None) -> Iterator[tuple[str, str]]:
    if found:
        yield "font-size", found["size"]
        if found["weight"]:
            yield "font-weight", "600"


def _styles(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for part in element.get("style", "").split(";"):
        key, colon, value = part.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _references(element: ElementTree.Element) -> Iterator[str]:
    if _HREF in element.attrib:
        yield element.attrib[_HREF][1:]
    for value in (element.get("clip-path", ""), element.get("style", "")):
        yield from re.findall(r"url\(#([^)]+)\)", value)


def _short(found: re.Match[str]) -> str:
    rounded = round(float(found[0]), 1)
    return f"{rounded:g}" if rounded else "0"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

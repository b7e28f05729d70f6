"""report.html: one self-contained page for one run, or one that compares several."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports import page, wording
from reports.clean_text import clean
from reports.definitions import DEFINITIONS
from reports.divergence import read_scored
from reports.heatmap import MAX_ROWS, Box, heatmap
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.sections import sections
from reports.svg import Chart, as_svg

_HERE = Path(__file__).parent


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or the comparison of several, to `out` and return it.

    Raises FileNotFoundError when a folder holds no run.
    """
    runs = [read_run(Path(folder)) for folder in run_dirs]
    html = render_run(runs[0])
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(out)
    return out


def render_run(run: Run) -> str:
    """One run's page."""
    series = PairSeries(run)
    heat = heatmap(run, series, accuracy_boxes(run), fold=len(run.cells) > MAX_ROWS)
    return _render(
        "run.html.j2",
        title=f"{run.status}: {run.name}",
        subtitle=run.name,
        sections=sections(run, series),
        page={
            "state": run.status,
            "word": run.status if run.verdict else "Sweep: measured, not judged",
            "provisional": bool(run.verdict and run.verdict.mode == "quick"),
            "sentence": run.verdict.sentence if run.verdict else wording.EXPLAINED["SWEEP"],
            "next_step": run.verdict.next_step if run.verdict else "",
            "problems": run.problems,
            "halves": [vars(half) | {"glyph": half.glyph, "text": _half_text(half)} for half in page.halves(run)],
            "heat": heat,
            "validity": page.checklist(run.of_family("validity")),
            "identity": page.identity(run),
            "again": page.reproduce(run),
        },
    )


def _half_text(half: page.Half) -> str:
    return page.headline(half.limiting) if half.limiting else half.sentence


def accuracy_boxes(run: Run) -> dict[str, Box]:
    """The accuracy column of the heatmap: each cell's mean token margin, the baseline's in small. Shown, not gated."""
    scored = read_scored(run)
    if "candidate" not in scored:
        return {}
    means = {arm: scored[arm].by("cell") for arm in ("candidate", "baseline") if arm in scored}
    boxes = {}
    for cell, mean in means["candidate"].items():
        other = means.get("baseline", {}).get(cell)
        below = f"vs {wording.number(other.nats, 2)}" if other else ""
        title = f"Mean token margin at {cell}: {wording.number(mean.nats)} nats/token over {mean.tokens:,} tokens"
        boxes[clean(cell)] = Box("told", wording.number(mean.nats, 2), below, title, "accuracy")
    return boxes


def _render(template: str, **context: Any) -> str:
    environment = Environment(
        loader=PackageLoader("reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        draw=_draw,
        csp=policy,
        css=Markup(css),
        script=Markup(script),
        definitions=DEFINITIONS,
        glyphs=wording.GLYPHS,
        **context,
    )


def _draw(chart: Chart) -> Markup:
    return Markup(as_svg(chart))  # every text in it was escaped when it was written


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

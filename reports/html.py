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

from reports import compare, page, wording
from reports.clean_text import clean
from reports.definitions import DEFINITIONS
from reports.divergence import Scored, read_scored
from reports.heatmap import MAX_ROWS, Box, heatmap, severity
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.sections import sections
from reports.svg import Chart, as_svg
from reports.tables import cells_table

TALL_ROWS = 6  # of the heatmap: beyond, the identity stands beside it, or the first screen has no room for it
BANNER_CHARS = 500  # of each sentence in it: the whole is in summary.md and verdict.json
_HERE = Path(__file__).parent


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or the comparison of several, to `out` and return it.

    Raises FileNotFoundError when a folder holds no run.
    """
    runs = [read_run(Path(folder)) for folder in run_dirs]
    html = render_run(runs[0]) if len(runs) == 1 else render_comparison(runs)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(out)
    return out


def render_run(run: Run) -> str:
    """One run's page."""
    series, scored = PairSeries(run), read_scored(run)
    heat = heatmap(run, series, accuracy_boxes(run, scored), fold=len(run.cells) > MAX_ROWS)
    checks = page.checklist(run.of_family("validity"))
    return _render(
        "run.html.j2",
        title=f"{run.status}: {run.name}",
        subtitle=run.name,
        sections=sections(run, series, scored),
        page={
            "state": run.status,
            "word": wording.UNJUDGED.get(run.status, run.status),
            "judged": run.verdict is not None,
            "provisional": bool(run.verdict and run.verdict.mode == "quick"),
            "sentence": clean(_capital(run.verdict.sentence) if run.verdict else page.measured_line(run), BANNER_CHARS),
            "next_step": clean(page.next_step(run), BANNER_CHARS),
            "problems": run.problems,
            "halves": [vars(half) | {"glyph": half.glyph, "text": _half_text(half)} for half in page.halves(run)],
            "heat": heat,
            "measured": cells_table(run, series),
            "validity": checks,
            "validity_line": page.validity_line(checks),
            "identity": page.identity(run),
            "tall": len(heat.rows) > TALL_ROWS,
            "again": page.reproduce(run),
        },
    )


def render_comparison(runs: Sequence[Run]) -> str:
    """Several runs on one page: leaderboard, Pareto of all, history, differences."""
    ranked = compare.ranked(runs)
    return _render(
        "compare.html.j2",
        title=f"{len(runs)} runs compared",
        subtitle=f"{len(runs)} runs compared",
        sections=compare.sections(ranked),
        page={"heat": compare.leaderboard(ranked), "warnings": compare.warnings(ranked), "lead": compare.lead(ranked)},
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _half_text(half: page.Half) -> str:
    if half.limiting is None:
        return half.sentence
    judged = half.limiting.observed is not None
    return page.headline(half.limiting) if judged else f"{half.limiting.check}: {half.sentence}"


def accuracy_boxes(run: Run, scored: dict[str, Scored]) -> dict[str, Box]:
    """The accuracy column of the heatmap: each cell's mean token margin, the baseline's in small.

    The state is the whole run's, because that is what was judged: a fast cell never stands beside a blank.
    """
    if "candidate" not in scored:
        return {}
    judged = [check for check in run.of_family("accuracy") if check.metric == "token_margin"]
    state = min(judged, key=severity).status if judged else "told"
    means = {arm: scored[arm].by("cell") for arm in ("candidate", "baseline") if arm in scored}
    boxes = {}
    for cell, mean in means["candidate"].items():
        other = means.get("baseline", {}).get(cell)
        below = f"vs {wording.number(other.nats, 2)}" if other else ""
        sample = f"{wording.number(mean.nats)} nats/token over {mean.tokens:,} tokens"
        title = f"Mean token margin at {cell}: {sample}; judged over the whole run: {state}"
        boxes[cell] = Box(state, wording.number(mean.nats, 2), below, title, "accuracy")
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

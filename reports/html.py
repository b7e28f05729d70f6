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
from reports.definitions import DEFINITIONS
from reports.heatmap import MAX_ROWS, Box, heatmap
from reports.pair_series import PairSeries
from reports.run_data import Run, read_run
from reports.tables import cells_table, checks_table, findings_table, flat_table, oracle_table

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
        sections=_sections(run, series),
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
    """The accuracy column of the heatmap."""
    return {}


def _sections(run: Run, series: PairSeries) -> list[dict[str, Any]]:
    sections = [
        _section("cells", "Every check", "Checks", "", checks_table("checks", "Every check", run.checks)),
        _section("measured", "Measured", "Measured", "", cells_table(run, series)),
        _section("accuracy", "As right", "Accuracy", "", oracle_table(run)),
        _section("honesty", "Honest", "Honesty", "", findings_table(run)),
        _section(
            "environment",
            "Environment",
            "Environment",
            "",
            flat_table("environment", "Environment", value=run.environment),
        ),
        _section("plan", "The plan as run", "Plan", "", flat_table("plan", "Plan", value=run.plan)),
    ]
    return [section for section in sections if any(table.rows for table in section["tables"])]


def _section(name: str, title: str, short: str, lead: str, *tables: Any) -> dict[str, Any]:
    return {"id": name, "title": title, "short": short, "lead": lead, "tables": tables}


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
        csp=policy, css=Markup(css), script=Markup(script), definitions=DEFINITIONS, glyphs=wording.GLYPHS, **context
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""`note.md`: a page for whoever changed the engine, with this run's numbers filled in."""

from __future__ import annotations

from pathlib import Path

from harness.run_store import write_bytes
from harness.verdict import Check, Status, Verdict

NOTE = "note.md"
MEASURED = "\n## Measured\n"
SHOWN = 8


def write_note(path: Path, verdict: Verdict) -> None:
    """Write the run's note; what its author has written above "Measured" stays when the numbers are renewed."""
    text = note_markdown(verdict)
    if path.is_file():
        written, found, _ = path.read_text("utf-8", errors="replace").partition(MEASURED)
        text = written + MEASURED + text.partition(MEASURED)[2] if found else text
    write_bytes(path, text.encode())


def note_markdown(verdict: Verdict) -> str:
    """The skeleton of a run's note: what the author fills in, then what was measured, then what may be concluded."""
    standing = [check for check in verdict.checks if check.status is not Status.PASS]
    rows = [_row(check) for check in standing[:SHOWN]]
    more = f"\n{len(standing) - SHOWN} more in verdict.json.\n" if len(standing) > SHOWN else ""
    table = "\n".join(
        ("| check | status | observed | needed | in standard errors |", "| --- | --- | --- | --- | --- |", *rows)
    )
    return f"""# Note

To be filled in by the author; nothing below this line up to "Measured" is checked by enginegate.

- Hypothesis:
- Prediction (which check, from what to what):
- Changed (commit or diff):
- Hit or miss:
- Keep or revert:

## Measured

`{_escape(verdict.line)}`

{_escape(verdict.sentence)}

{table if rows else "Every check passes."}
{more}
{_escape(verdict.power.sentence)}

## What may be concluded

{_conclusion(verdict)}
"""


def _row(check: Check) -> str:
    observed = "" if check.observed is None else f"{check.observed:.4g} {check.unit}".strip()
    required = "" if check.required is None else f"{check.required:.4g} {check.unit}".strip()
    errors = "" if check.distance_noise is None else f"{check.distance_noise:+.1f}"
    return f"| {_escape(check.check)} | {check.status.value} | {observed} | {required} | {errors} |"


def _conclusion(verdict: Verdict) -> str:
    if verdict.mode == "quick":
        return "Nothing yet: a quick run is provisional and may not be cited as proof."
    if verdict.status is Status.PASS:
        return "The engine passes this plan; this run may be cited."
    return f"The engine does not pass this plan. Next: {_escape(verdict.next_step)}"


def _escape(text: str) -> str:
    """Reasons may quote an engine: no line breaks, code fences, table bars or HTML of its making."""
    flat = " ".join(text.split()).replace("`", "'").replace("|", "/")
    return flat.replace("<", "&lt;").replace(">", "&gt;")

from __future__ import annotations

from pathlib import Path

from harness.gate import decide
from harness.note import note_markdown, write_note
from tests.gate_runs import gate_run, oracle

HOSTILE = "</pre><script>alert(1)</script> | x |\n```\n# PASS"


def test_a_note_holds_the_numbers_and_room_for_the_author() -> None:
    verdict = decide(gate_run(1.0))
    note = note_markdown(verdict)
    assert verdict.line in note
    assert f"| {verdict.failed_first[0]} | FAIL | " in note
    assert "7 more in verdict.json" in note
    assert "- Prediction" in note
    assert "does not pass this plan" in note
    assert "may be cited" in note_markdown(decide(gate_run(1.5)))


def test_what_an_engine_said_cannot_shape_the_note() -> None:
    broken = oracle("candidate", "loops")
    finding = broken.findings[0].model_copy(update={"sentence": HOSTILE})
    bad = broken.model_copy(update={"findings": (finding, broken.findings[1])})
    note = note_markdown(decide(gate_run(oracles=(oracle("baseline"), bad))))
    assert "<script>" not in note
    assert "```" not in note
    assert "\n# PASS" not in note


def test_what_the_author_wrote_stays_when_the_numbers_are_renewed(tmp_path: Path) -> None:
    path = tmp_path / "note.md"
    write_note(path, decide(gate_run(1.0), power_draws=0))
    path.write_text(path.read_text().replace("- Hypothesis:", "- Hypothesis: a wider tile"))
    passing = decide(gate_run(1.5), power_draws=0)
    write_note(path, passing)
    text = path.read_text()
    assert "- Hypothesis: a wider tile" in text
    assert passing.line in text
    assert "FAIL" not in text
    path.write_text("gone")
    write_note(path, passing)
    assert path.read_text() == note_markdown(passing)

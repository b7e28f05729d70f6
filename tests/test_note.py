from __future__ import annotations

from harness.gate import decide
from harness.note import note_markdown
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

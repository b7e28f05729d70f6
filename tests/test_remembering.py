"""The zoo's reference remembers what it scored, and the noise floor is not measured on its memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import harness.score
from oracles.reference import LocalReference, open_reference
from oracles.scoring import ScoreRequest
from tests.engines.remembering import remembering
from tests.tiny_model import tiny_folder

ASKED = [ScoreRequest([5, 6, 7], [8, 9, 10]), ScoreRequest([5, 6], [11, 12])]


def test_what_was_scored_is_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the real matrix: asked through the pipeline's own store, it asked itself without end."""
    plain = open_reference(tiny_folder()).score(ASKED, top_k=1)
    with remembering(tmp_path / "scores", tmp_path / "floor"):
        reference = harness.score.open_reference(tiny_folder())
        first = reference.score(ASKED, top_k=1)
        monkeypatch.setattr(LocalReference, "score", lambda *_, **__: pytest.fail("scored twice"))
        again = reference.score(ASKED, top_k=1)
    for one, two, three in zip(plain, first, again, strict=True):
        np.testing.assert_allclose(one.margins, two.margins, atol=1e-4)
        np.testing.assert_array_equal(two.margins, three.margins)


def test_the_floor_is_measured_by_the_plain_reference_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numerics that read the first ones' scores from memory would make a floor of nothing."""
    asked: list[object] = []

    def measure(visits: object, reference: object, out: Path, **_: object) -> object:
        asked.append(type(reference))
        raise RuntimeError("seen")

    monkeypatch.setattr("tests.engines.remembering.measure_floor", measure)
    with remembering(tmp_path / "scores", tmp_path / "floor"):
        reference = harness.score.open_reference(tiny_folder())
        with pytest.raises(RuntimeError, match="seen"):
            harness.score.measure_floor([], reference, tmp_path / "out")
    assert asked == [LocalReference]

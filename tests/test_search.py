"""The highest good rate: found to within 15 % by few tries, the same after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import sweep, sweep_results
from harness.cells import make_cells
from harness.errors import UsageError
from harness.plan import make_plan
from harness.progress import silent
from harness.run_store import RunStore, read_json
from harness.search import CLOSE, climb
from harness.sweep_plan import make_sweep
from harness.sweep_results import search_lines
from tests.engines.toy import save_tokenizer
from tests.test_sweep import Killed, Played, played  # noqa: F401 - a fixture


@given(st.floats(0.1, 100))
def test_climb_brackets_the_truth_with_few_tries(truth: float) -> None:
    asked: list[float] = []

    def is_good(rate: float) -> bool:
        asked.append(rate)
        return rate <= truth

    rate, open_end = climb(0.25, 64.0, is_good)
    assert len(asked) == len(set(asked)) <= 10
    if truth < 0.25:
        assert (rate, open_end) == (None, False) and asked == [0.25]
    elif truth >= 64:
        assert (rate, open_end) == (64.0, True)
    else:
        assert rate is not None and rate <= truth < rate * CLOSE * 1.01 and not open_end


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tok") / "tok")


def a_sweep(tokenizer: Path, tmp_path: Path) -> Any:
    """The toy engine at 8 ms a token keeps 100 ms and breaks 5 ms, whatever the rate on its virtual clock."""
    endpoints = {name: {"url": "http://127.0.0.1:9"} for name in ("slow", "fast")}
    data = {"model": "toy", "tokenizer": str(tokenizer), "endpoints": endpoints, "tier": "smoke"}
    text = (Path("traffic_profiles") / "poisson-at-slo.yaml").read_text().replace("tpot_ms: 100", "tpot_ms: 6")
    (tmp_path / "slo.yaml").write_text(text)
    return make_sweep(data | {"profiles": [str(tmp_path / "slo.yaml")]}, source="test", folder=tmp_path)


def test_a_sweep_searches_each_endpoint_and_goes_on_after_a_kill(
    tokenizer: Path,
    tmp_path: Path,
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_results, "draw", lambda root: [])
    monkeypatch.setattr(sweep, "calibrate_run", lambda *_: [])
    plan = a_sweep(tokenizer, tmp_path)
    rows = sweep.sweep(plan, RunStore.create(tmp_path / "whole"), silent)
    found = {one["endpoint"]: one for one in read_json(tmp_path / "whole/sweep.json")["searches"]}
    assert found["slow"]["max_request_rate"] is None and len(found["slow"]["tried"]) == 1
    assert (found["fast"]["max_request_rate"], found["fast"]["open_end"]) == (2.0, True)
    assert {(row.endpoint, row.request_rate) for row in rows} == {("slow", 0.5), ("fast", 0.5), ("fast", 2.0)}
    slow, fast = search_lines(tmp_path / "whole")
    assert "not even 0.5/s is good (0%" in slow and "2 requests/s is the highest" in fast

    record, seen = RunStore.record, list(played.visits)
    played.visits.clear()

    def dying(store: RunStore, step: str, outputs: list[Path]) -> None:
        record(store, step, outputs)
        if step == "visit/02/fast":
            raise Killed(step)

    monkeypatch.setattr(RunStore, "record", dying)
    store = RunStore.create(tmp_path / "killed")
    with pytest.raises(Killed):
        sweep.sweep(plan, store, silent)
    monkeypatch.setattr(RunStore, "record", record)
    assert sweep.sweep(plan, RunStore.open(tmp_path / "killed"), silent) == rows
    assert played.visits == seen


def test_a_gate_cannot_search(tokenizer: Path) -> None:
    endpoints = {role: {"url": "http://127.0.0.1:9"} for role in ("baseline", "candidate")}
    data = {"model": "toy", "tokenizer": str(tokenizer), "endpoints": endpoints}
    with pytest.raises(UsageError, match=r"poisson-at-slo searches its rate.*sweep --profile poisson-at-slo"):
        make_cells(make_plan(data | {"profiles": ["poisson-at-slo"]}, source="test", folder=Path("/")))
    use = {"name": "poisson-at-slo", "request_rate": [2]}
    (cell,) = make_cells(make_plan(data | {"profiles": [use]}, source="test", folder=Path("/")))
    assert cell.name == "poisson-at-slo/r2"

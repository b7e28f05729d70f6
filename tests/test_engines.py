"""The zoo on the fast path: every cheat that text and times can tell is named, no honest engine is accused.

Every day `make test` takes other engines; all of them are `make acceptance` and `make zoo-fast`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.measurement import measure_visit
from tests.engines import bugs
from tests.engines.cheats import UNCOMMITTABLE, catalogue, cheats
from tests.engines.cheats.combined import AND, ThreeAtOnce
from tests.engines.dialects import DIALECTS
from tests.engines.fast import NEEDS_PIPELINE, FastGate, fast_gate
from tests.engines.honest import engines
from tests.engines.proxy import Upstream
from tests.engines.server import Server, serving
from tests.engines.stream import Engine, Request, Stream
from tests.engines.toy import Pace, Toy, toy_tokenizer
from tests.test_golden_server import BODY, ask

NAMED = {n: c for n, c in (cheats() | bugs.engines()).items() if c.check not in NEEDS_PIPELINE}
TODAY = random.Random(int(time.time() // 86400))
A_DAY = 10


def _rotating(cases: list[Any], count: int) -> list[Any]:
    """All cases, of which `count` are today's and the others only run by `make acceptance`."""
    today = set(TODAY.sample(range(len(cases)), count))
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    marks = [[] if number in today else [pytest.mark.acceptance] for number in range(len(cases))]
    return [pytest.param(*value, marks=mark) for value, mark in zip(values, marks, strict=True)]


@pytest.mark.parametrize("name", _rotating(list(NAMED), A_DAY))
def test_cheat_is_caught_by_its_named_check(name: str) -> None:
    engine = NAMED[name]
    broken = fast_gate(thinks=name == "no-thinking").broken(engine())
    for check in engine.check.split(AND):
        assert check in broken, f"{name}: {sorted(broken)}"
        assert broken[check].examples


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_the_honest_engine_is_not_accused_in_any_dialect(dialect: str) -> None:
    broken = fast_gate().broken(Engine(), dialect)
    assert not broken, {n: f.sentence for n, f in broken.items()}


ODD = [(name, dialect) for name in engines() if name != "honest" for dialect in sorted(DIALECTS)]


@pytest.mark.parametrize(("name", "dialect"), _rotating(ODD, 4))
def test_honest_engine_is_not_accused(name: str, dialect: str) -> None:
    broken = fast_gate().broken(engines()[name](), dialect)
    assert not broken, {n: f.sentence for n, f in broken.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [12, 24])
def test_small_honest_runs_are_not_accused(seed: int, load: int) -> None:
    broken = FastGate(seed=100 + seed, load=load, share=0.1).broken(Engine(), "llama.cpp")
    assert not broken, {n: f.sentence for n, f in broken.items()}


def test_an_empty_first_chunk_moves_no_ttft() -> None:
    gate = fast_gate()
    honest, early = (gate.visit(engine, "vllm") for engine in (Engine(), cheats()["empty-first-chunk"]()))
    gained = [a - b for a, b in zip(early["ttft_ms"].to_pylist(), honest["ttft_ms"].to_pylist(), strict=True)]
    assert min(gained) > 100  # the engine is 120 ms slower to start, and that is what is measured


def test_three_cheats_in_one_engine_are_all_named() -> None:
    broken = fast_gate().broken(ThreeAtOnce())
    assert {part.check for part in ThreeAtOnce.parts} <= broken.keys()


def test_every_cheat_says_what_it_does_and_who_must_notice() -> None:
    for name, engine in cheats().items():
        assert engine.does and engine.check and engine.rows, name


def test_every_row_of_the_catalogue_has_an_engine_or_a_reason() -> None:
    by_engine = {row for engine in cheats().values() for row in engine.rows}
    assert sorted(by_engine | UNCOMMITTABLE.keys()) == list(range(1, 46))
    assert not by_engine & UNCOMMITTABLE.keys()


def test_all_bug_reports_have_a_place() -> None:
    assert len(bugs.BUGS) == 23
    for bug in bugs.BUGS:
        if bug.engine:
            assert bug.engine in catalogue(), bug.report
        else:  # a test that says which report it stands for
            assert bug.report.split(",")[0] in Path(bug.tested_in).read_text(), bug.report


def test_a_cheat_works_on_a_real_stream_too(tmp_path: Path) -> None:
    toy = Toy(toy_tokenizer(), Pace(5, 0, 1, jitter=0))
    with serving(Server(Engine(), [toy], DIALECTS["llama.cpp"])) as upstream:
        for dialect in DIALECTS:
            proxied = Server(Engine(), [Upstream(upstream)], DIALECTS[dialect])
            with serving(proxied) as url:
                status, events = ask(url, BODY)
            assert status == 200
            want, finish = toy.answer(Request(BODY))
            text = "".join(event["text"] for note in proxied.sends for event in note["events"])
            assert text == toy_tokenizer().decode(want).rstrip("\ufffd")
            assert any(f'"finish_reason":"{finish}"' in value for _, value in events)
        looping = Server(cheats()["letter-a"](), [Upstream(upstream)])
        with serving(looping) as url:
            ask(url, BODY)
        assert {event["text"] for event in looping.sends[0]["events"]} == {" a"}


def test_an_upstream_is_asked_with_fields_of_its_own() -> None:
    seen: list[dict[str, Any]] = []

    class Noting(Toy):
        def events(self, request: Request) -> Stream:
            seen.append(request.body)
            return super().events(request)

    toy = Noting(toy_tokenizer(), Pace(5, 0, 1, jitter=0))
    with (
        serving(Server(Engine(), [toy])) as url,
        serving(Server(Engine(), [Upstream(url, extra={"cache_prompt": False})])) as proxy,
    ):
        assert ask(proxy, BODY)[0] == 200
    assert seen[0]["cache_prompt"] is False and "cache_prompt" not in BODY


def test_an_upstream_that_dies_is_an_error_in_the_stream() -> None:
    with serving(Server(Engine(), [Upstream("http://127.0.0.1:9")])) as url:
        status, events = ask(url, BODY)
    assert status == 200 and "upstream" in events[0][1]


def test_an_engine_without_any_pace_is_measured_and_cannot_stop_the_judge() -> None:
    """Found by the real matrix: every answer at one instant made the drift of TPOT a division by zero."""
    table = fast_gate().baseline.drop_columns(["pair"])
    still = pa.array([None if value is None else 0.0 for value in table["tpot_ms"].to_pylist()], pa.float64())
    at_once = table.set_column(table.column_names.index("tpot_ms"), "tpot_ms", still)
    measured = measure_visit(at_once, pair=1, role="candidate", slot=1, slos={})
    assert all(cell.signals["tpot_drift"] is None and cell.tpot_ms.p50 == 0 for cell in measured.cells.values())

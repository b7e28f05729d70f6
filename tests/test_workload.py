"""What is sent: equal for both arms, fresh in every pair, the same again from the same seed, and without a mark."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells import Cell, make_cells, phase_name
from harness.errors import UsageError
from harness.plan import Plan, make_plan
from harness.workload import WARMUP, Insert, arm_order, interleave, plan_pair, write_pair
from traffic_profiles.requests import RequestSpec


def _plan(**changes: object) -> Plan:
    data = {
        "model": "m",
        "tokenizer": "/nowhere",
        "endpoints": {"baseline": {"url": "http://a"}, "candidate": {"url": "http://b"}},
        "profiles": [{"name": "chat-steady", "concurrency": [1, 2], "request_count": 5}, "smoke"],
        "tier": "smoke",
    }
    return make_plan(data | changes, source="test", folder=Path("/"))


def _words(text: str) -> int:
    return len(text.split())


def _bodies(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_a_pair_is_the_same_again_and_never_shares_a_prompt_with_another(tmp_path: Path) -> None:
    plan, cells = _plan(), make_cells(_plan())
    for name, pair in (("a", 1), ("b", 1), ("c", 2)):
        write_pair(plan, cells, pair, tmp_path / name, _words)
    for file in ("requests.jsonl", "pair.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    first, second = ([json.dumps(body["messages"]) for body in _bodies(tmp_path / name)] for name in "ac")
    assert len(set(first)) == len(first), "no prompt twice in a pair, warm-up included"
    assert not set(first) & set(second)


def test_lines_are_warm_up_then_cells_in_their_order(tmp_path: Path) -> None:
    plan, cells = _plan(), make_cells(_plan())
    write_pair(plan, cells, 1, tmp_path, _words)
    pair = json.loads((tmp_path / "pair.json").read_text())
    rows = pq.read_table(tmp_path / "workload.parquet").to_pylist()
    (part,) = plan_pair(cells, pair)
    warmup_lines, ordered = part.warmup_lines, part.cells
    assert [row["cell"] for row in rows[:warmup_lines]] == [WARMUP] * warmup_lines
    position = warmup_lines
    for cell, entry in zip(ordered, pair["cells"], strict=True):
        assert (entry["cell"], entry["first_line"], entry["lines"]) == (cell.name, position, cell.request_count)
        assert {row["cell"] for row in rows[position : position + cell.request_count]} == {cell.name}
        position += cell.request_count
    assert position == len(rows) == len(_bodies(tmp_path))


@pytest.mark.parametrize(
    ("cell", "name"), [("chat/c8", "chat--c8"), ("burst/r2.5", "burst--r2_5"), ("3d/t0.5", "p3d--t0_5")]
)
def test_a_phase_has_a_name_that_aiperf_takes(cell: str, name: str) -> None:
    assert phase_name(cell) == name and re.fullmatch("[A-Za-z_][A-Za-z0-9_-]*", name)


def _spec(item: str) -> RequestSpec:
    return RequestSpec(item, "s", ({"role": "user", "content": item},), 4, 0.0, None, (), 1, False)


@given(st.integers(0, 12), st.lists(st.none() | st.integers(0, 11), max_size=12), st.integers(0, 999))
def test_interleaving_loses_nothing_and_keeps_the_loads_order(count: int, after: list, seed: int) -> None:
    load = [_spec(f"load-{i}") for i in range(count)]
    inserts = [
        Insert("audit", _spec(f"audit-{n}"), None if a is None or not count else a % count) for n, a in enumerate(after)
    ]
    sent = interleave(load, inserts, random.Random(seed))
    assert [spec for kind, spec in sent if kind == "load"] == load
    assert sorted(spec.item for kind, spec in sent if kind == "audit") == sorted(i.spec.item for i in inserts)
    names = [spec.item for _, spec in sent]
    for insert in inserts:
        if insert.after is not None:
            before = [name for name in names[: names.index(insert.spec.item)] if name.startswith("load")]
            assert before[-1] == f"load-{insert.after}"


def test_inserts_are_sent_unmarked_counted_and_at_drawn_places(tmp_path: Path) -> None:
    plan, cells = _plan(), make_cells(_plan())

    def tasks(cell: Cell, load: object) -> list[Insert]:
        return [Insert("task", _spec(f"{cell.name}#{i}")) for i in range(3)] if cell.concurrency == 2 else []

    places = []
    for pair in (1, 2):
        write_pair(plan, cells, pair, tmp_path / str(pair), _words, [tasks])
        entries = json.loads((tmp_path / str(pair) / "pair.json").read_text())
        rows = pq.read_table(tmp_path / str(pair) / "workload.parquet").to_pylist()
        for cell in plan_pair(cells, entries)[0].cells:
            kinds = [row["kind"] for row in rows if row["cell"] == cell.name]
            assert cell.request_count == len(kinds)
            assert kinds.count("task") == (3 if cell.concurrency == 2 else 0)
            places.append([index for index, kind in enumerate(kinds) if kind == "task"])
        assert [row["line"] for row in rows] == list(range(len(_bodies(tmp_path / str(pair)))))
        assert not any("task" in key or "kind" in key for body in _bodies(tmp_path / str(pair)) for key in body)
    assert places[: len(places) // 2] != places[len(places) // 2 :], "the places are drawn anew in every pair"


def test_the_order_of_cells_is_drawn_anew_for_each_pair(tmp_path: Path) -> None:
    plan = _plan(profiles=[{"name": "smoke", "concurrency": [1, 2, 3, 4, 5, 6], "request_count": 1}])
    cells = make_cells(plan)
    orders = set()
    for pair in range(1, 5):
        write_pair(plan, cells, pair, tmp_path / str(pair), _words)
        orders.add(tuple(c["cell"] for c in json.loads((tmp_path / str(pair) / "pair.json").read_text())["cells"]))
    assert len(orders) > 1


@pytest.mark.parametrize("seed", range(20))
def test_arms_alternate_as_abba(seed: int) -> None:
    plan = _plan(seed=seed)
    orders = [arm_order(plan, pair) for pair in range(1, 13)]
    for first, second in zip(orders[::2], orders[1::2], strict=True):
        assert first == tuple(reversed(second)), "each block of two pairs is ABBA or BAAB"


def test_the_orientation_is_random() -> None:
    assert {arm_order(_plan(seed=seed), 1) for seed in range(20)} == {
        ("baseline", "candidate"),
        ("candidate", "baseline"),
    }


def test_what_is_sent_carries_standard_fields_only(tmp_path: Path) -> None:
    plan, cells = _plan(), make_cells(_plan())
    write_pair(plan, cells, 1, tmp_path, _words)
    allowed = {"model", "messages", "max_tokens", "temperature", "seed", "stop", "stream", "stream_options", "top_p"}
    for body in _bodies(tmp_path):
        assert set(body) <= allowed


def test_a_completions_prompt_is_kept_as_the_engines_are_given_it(tmp_path: Path) -> None:
    endpoints = {arm: {"url": f"http://{arm}", "api": "completions"} for arm in ("baseline", "candidate")}
    plan = _plan(endpoints=endpoints)
    write_pair(plan, make_cells(plan), 1, tmp_path, _words)
    rows = pq.read_table(tmp_path / "workload.parquet").to_pylist()
    prompts = [json.loads(row["messages"]) for row in rows]
    assert all(isinstance(prompt, str) for prompt in prompts), "so that the reference applies no chat template"
    assert [body["prompt"] for body in _bodies(tmp_path)] == prompts


def test_the_sampling_a_profile_asks_for_is_sent(tmp_path: Path) -> None:
    plan = _plan(profiles=["decode-hard"])
    cells = make_cells(plan)
    write_pair(plan, cells, 1, tmp_path, _words)
    sampling = cells[0].profile.sampling
    assert sampling.top_p is not None
    assert {(body["temperature"], body["top_p"]) for body in _bodies(tmp_path)} == {
        (sampling.temperature, sampling.top_p)
    }


@pytest.mark.parametrize(
    ("profiles", "sentence"),
    [
        (["chat-stedy"], "chat-steady"),
        (["smoke", "smoke"], "appears twice"),
        ([{"name": "smoke", "request_rate": [1.0]}], "driven by concurrency"),
    ],
)
def test_profiles_that_cannot_be_used(profiles: list, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make_cells(_plan(profiles=profiles))


def test_the_profiles_hash_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("x")
    script = (
        "import sys; from pathlib import Path; from harness.judge import _hashes\n"
        "from harness.cells import make_cells; from harness.plan import make_plan\n"
        "plan = make_plan({'model': 'm', 'tokenizer': '/x', 'profiles': ['chat-steady'], 'endpoints': {'baseline': "
        "{'url': 'http://a'}, 'candidate': {'url': 'http://b'}}}, source='t', folder=Path('/'))\n"
        f"print(_hashes(Path({str(tmp_path)!r}), make_cells(plan), ())['profiles'])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1

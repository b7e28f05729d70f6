"""Profiles of several data set formats in one visit: a process each, every answer back at its own line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells import make_cells
from harness.conversations import with_history, write_conversations
from harness.errors import InvalidRun, UsageError
from harness.parts import WARMUP_PAUSE_MS, Part
from harness.raw_export import write_requests
from harness.sweep_plan import SweepPlan, make_sweep
from harness.traffic import Visit, aiperf_config
from harness.workload import WARMUP, plan_pair, write_pair
from tests.engines.toy import toy_tokenizer

PROFILES = ["interference", "smoke", "agentic-growing-prefix", "mooncake"]


def plan(profiles: list[Any], **more: Any) -> SweepPlan:
    endpoints = {"a": {"url": "http://127.0.0.1:9"}, "b": {"url": "http://127.0.0.1:9", "model": "other"}}
    data = {"model": "m", "tokenizer": "/t", "endpoints": endpoints, "profiles": profiles, "tier": "smoke"}
    return make_sweep(data | more, source="test", folder=Path("/"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_pair(plan(PROFILES), make_cells(plan(PROFILES)), 1, folder, lambda text: len(text.split()))
    return folder


def parts_of(pair: Path) -> tuple[Part, ...]:
    return plan_pair(make_cells(plan(PROFILES)), json.loads((pair / "pair.json").read_text()))


def rows_of(pair: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pair / "workload.parquet").to_pylist()
    return rows


def test_one_process_for_single_requests_one_for_conversations_one_for_each_trace(pair: Path) -> None:
    parts = parts_of(pair)
    assert [part.format for part in parts] == ["raw_payload", "dag_jsonl", "mooncake_trace", "mooncake_trace"]
    assert sorted(cell.profile.name for cell in parts[0].cells) == ["smoke", "smoke"]
    assert {parts[2].cells[0].name, parts[3].cells[0].name} == {"interference/t1", "mooncake/t0.5"}
    files = sorted(path.name for path in pair.glob("requests*"))
    assert files == ["requests-2.jsonl", "requests-3.jsonl", "requests-4.jsonl", "requests.jsonl"]


def test_every_row_knows_its_conversation(pair: Path) -> None:
    keys = [(row["part"], row["session"], row["turn"]) for row in rows_of(pair)]
    assert len(set(keys)) == len(keys)
    live = [row for row in rows_of(pair) if row["part"] == 2]
    assert [row["turn"] for row in live] == [0, 1, 2] * (len(live) // 3)
    assert len({row["session"] for row in live}) == len(live) // 3
    (part,) = (part for part in parts_of(pair) if part.format == "dag_jsonl")
    assert part.cells[0].request_count == 6 and part.cells[0].conversations == 2
    assert part.warmup_lines == 3 * part.warmup_conversations


def test_conversations_are_written_as_such(pair: Path) -> None:
    lines = [json.loads(line) for line in (pair / "requests-2.jsonl").read_text().splitlines()]
    assert [line["session_id"] for line in lines] == [f"session_{n:06d}" for n in range(len(lines))]
    assert all(len(line["turns"]) == 3 for line in lines)
    asked = {row["session"]: row["cell"] for row in rows_of(pair) if row["part"] == 2}
    warm = [line["session_id"] for line in lines if asked.get(line["session_id"]) == WARMUP]
    assert len(warm) == parts_of(pair)[1].warmup_conversations
    dropped = [line["session_id"] for line in lines if line["session_id"] not in asked]
    assert dropped == [f"session_{len(warm):06d}"], "the one that AIPerf draws at the end of the warm-up"
    assert lines[0]["turns"][1]["delay"] >= 20 and lines[0]["turns"][0]["extra"]["max_tokens"] == 32


def test_a_traces_warm_up_comes_before_it(pair: Path) -> None:
    rows = [row for row in rows_of(pair) if row["part"] == 3]
    warm = [row["timestamp_ms"] for row in rows if row["cell"] == WARMUP]
    trace = [row["timestamp_ms"] for row in rows if row["cell"] != WARMUP]
    assert warm == [0.0, 1000.0] and trace == sorted(trace)
    assert trace[0] == 2000.0 + WARMUP_PAUSE_MS
    lines = [json.loads(line) for line in (pair / "requests-3.jsonl").read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == warm + trace
    assert all(line["payload"]["stream"] for line in lines)


def test_aiperf_is_told_each_parts_own_way(pair: Path) -> None:
    parts = parts_of(pair)
    visit = Visit(plan(PROFILES), "a", 1, 0, parts, pair / "a")
    told = [aiperf_config(visit, part, "d")["benchmark"] for part in parts]
    assert [one["dataset"]["format"] for one in told] == [part.format for part in parts]
    assert [one["artifacts"]["dir"] for one in told] == ["aiperf", "aiperf-2", "aiperf-3", "aiperf-4"]
    warmup, live = told[1]["phases"]
    assert (warmup["sessions"], live["sessions"], live["concurrency"]) == (parts[1].warmup_conversations, 2, 2)
    (trace,) = told[2]["phases"]
    assert trace["type"] == "fixed_schedule" and trace["autoOffset"] is False
    assert visit.requests == len(rows_of(pair))


def record(session: str, turn: int, text: str) -> dict[str, Any]:
    event = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    packet = {"name": "data", "value": orjson.dumps(event).decode()}
    return {
        "metadata": {"conversation_id": session, "turn_index": turn, "request_start_ns": 10**18},
        "start_perf_ns": 0, "status": 200, "responses": [{"perf_ns": 10**6, "packets": [packet]}],
    }  # fmt: skip


def export(pair: Path, visit: Path) -> None:
    """What AIPerf would leave: every answer says which line it is for; conversations interleaved, processes apart."""
    for row in sorted(rows_of(pair), key=lambda row: (row["part"], row["turn"], row["session"])):
        folder = visit / ("aiperf" if row["part"] == 1 else f"aiperf-{row['part']}")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "profile_export_raw.jsonl").open("ab") as file:
            file.write(orjson.dumps(record(row["session"], row["turn"], f"line {row['line']}")) + b"\n")


def test_answers_of_all_processes_find_their_lines(pair: Path, tmp_path: Path) -> None:
    export(pair, tmp_path)
    write_requests(tmp_path / "aiperf", pair / "workload.parquet", toy_tokenizer(), tmp_path / "requests.parquet")
    found = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert len(found) == len(rows_of(pair))
    assert all(row["text"] == f"line {row['line']}" and row["status"] == "ok" for row in found)
    assert write_conversations(pair / "workload.parquet", tmp_path / "requests.parquet", tmp_path / "own.parquet")
    own = {row["line"]: row for row in pq.read_table(tmp_path / "own.parquet").to_pylist()}
    last = next(row for row in rows_of(pair) if row["turn"] == 2)
    said = json.loads(own[last["line"]]["messages"])
    assert [m["role"] for m in said][-5:] == ["user", "assistant", "user", "assistant", "user"]
    assert said[-2]["content"] == f"line {last['line'] - 1}"
    assert said[-1] == json.loads(last["messages"])[-1]


def test_an_answer_of_another_process_is_refused(pair: Path, tmp_path: Path) -> None:
    folder = tmp_path / "aiperf"
    folder.mkdir()
    (folder / "profile_export_raw.jsonl").write_bytes(orjson.dumps(record("session_000000", 1, "x")))
    with pytest.raises(InvalidRun, match=r"session_000000, turn 1, was answered twice or never asked"):
        write_requests(folder, pair / "workload.parquet", toy_tokenizer(), tmp_path / "requests.parquet")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_history_grows_by_the_replies_and_starts_anew(turns: list[int]) -> None:
    rows, line = [], 0
    for count in turns:
        for turn in range(count):
            said = [{"role": "user", "content": f"q{line}"}]
            rows.append({"line": line, "turn": turn, "messages": json.dumps(said)})
            line += 1
    whole = with_history(rows, {n: f"a{n}" for n in range(line)})
    for row, one in zip(rows, whole, strict=True):
        told = json.loads(one["messages"])
        assert len(told) == 2 * row["turn"] + 1
        assert [m["content"] for m in told[-3:]][-1] == f"q{row['line']}"
        assert row["turn"] == 0 or told[-2]["content"] == f"a{row['line'] - 1}"


def test_uses_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="driven by its trace"):
        make_cells(plan([{"name": "mooncake", "concurrency": [4]}]))
    text = (Path("traffic_profiles") / "agentic-growing-prefix.yaml").read_text()
    text = text.replace("count: 3", "count: {mean: 3, stddev: 1, min: 1, max: 5}")
    (tmp_path / "odd.yaml").write_text(text.replace("name: agentic-growing-prefix", "name: odd"))
    with pytest.raises(UsageError, match=r"give turns\.count as one number"):
        make_cells(plan([str(tmp_path / "odd.yaml")]))

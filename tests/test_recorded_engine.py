"""Recorded answers are played as they were given, and only to what was asked; a parade is each engine's visit alone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness.cells import Cell
from harness.raw_export import write_requests
from harness.run_store import read_json, write_json
from tests.engines.dialects import DIALECTS
from tests.engines.generate import record
from tests.engines.parade import Parade, Turn, carve, parade_cells, write_parade
from tests.engines.prompts import SCHEMA, workload
from tests.engines.recorded import Recorded, key_of, read_bank
from tests.engines.server import serving
from tests.engines.stream import Engine, Event, Request, Stream
from tests.engines.toy import Pace, Toy, toy_tokenizer
from tests.engines.visit import body_of, visit
from tests.test_audits import TEMPLATE
from tests.test_golden_server import ask
from tests.tiny_model import tiny_folder

QUICK = Pace(1, 0, 0.1)


def test_what_a_real_model_said_is_played_back(tmp_path: Path) -> None:
    rows = workload(3, max_tokens=12, long_share=0) + workload(
        2, 5, first_line=3, max_tokens=8, temperature=0.8, fixed_length=True, long_share=0
    )
    file = tmp_path / "answers.jsonl"
    bodies = [body_of(row, {}) for row in rows]
    assert record(tiny_folder(), bodies, file) == len(rows)
    assert record(tiny_folder(), bodies, file) == 0  # nothing is decoded twice
    bank, tokenizer = read_bank(file), Tokenizer.from_file(str(tiny_folder() / "tokenizer.json"))
    recorded = Recorded(bank, tokenizer, QUICK)
    table = visit(Engine(), [recorded], DIALECTS["vllm"], rows, tmp_path / "visit", tokenizer).sort_by("line")
    said = [bank[key_of(Request(body))] for body in bodies]
    decoded = [tokenizer.decode(answer["ids"]) for answer in said]
    played = table["text"].to_pylist()
    assert all(text.startswith(came) and came for text, came in zip(decoded, played, strict=True))
    assert table["usage_completion_tokens"].to_pylist() == [len(a["ids"]) + (a["finish"] == "stop") for a in said]
    assert table["usage_prompt_tokens"].to_pylist() == [answer["prompt_tokens"] for answer in said]
    assert table["status"].to_pylist() == ["ok"] * len(rows)


def test_stop_strings_and_limits_cut_a_recorded_answer() -> None:
    request = Request(body_of(workload(1, max_tokens=50)[0], {}))
    ids = toy_tokenizer().encode("one two. three four five").ids
    bank = {key_of(request): {"ids": ids, "finish": "length", "prompt_tokens": 9}}
    recorded = Recorded(bank, toy_tokenizer(), QUICK)

    async def played(asked: Request) -> tuple[str, str | None]:
        events = [event async for event in recorded.events(asked)]
        return "".join(event.text for event in events), events[-1].finish

    assert asyncio.run(played(request.but(stop=[". "]))) == ("one two", "stop")
    text, finish = asyncio.run(played(request.but(max_tokens=2)))
    assert finish == "length" and len(toy_tokenizer().encode(text).ids) == 2


def test_a_recording_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(b'{"key": "a", "ids": [5], "finish": "stop", "prompt_tokens": 3}\n{"key": "c", "id')
    assert set(read_bank(file)) == {"a"}


def test_what_was_never_asked_is_answered_by_the_toy() -> None:
    toy = Recorded({}, toy_tokenizer(), Pace(5, 0, 1))

    async def answers() -> list[Event]:
        return [e async for e in toy.events(Request(body_of(workload(1)[0], {})))]

    assert "".join(event.text for event in asyncio.run(answers()))


def test_greedy_answers_have_one_key_and_samples_one_each() -> None:
    greedy, sampled = (Request(body_of(workload(1, temperature=t)[0], {})) for t in (0.0, 0.8))
    assert key_of(greedy) == key_of(greedy.but(seed=99, logprobs=True))
    assert key_of(sampled) != key_of(sampled.but(seed=99)) != key_of(greedy)


class _Counting(Engine):
    """Says which of its own requests it answers."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            yield Event(event.at_ms, text=f"{self.letter}{request.index}", finish="stop", usage=event.usage)
            return


def _turns(*letters: str, bodies: tuple[bytes, ...] = (b"2", b"3", b"4")) -> list[Turn]:
    cells: tuple[Cell, ...] = (TEMPLATE,)
    toy: list[Any] = [Toy(toy_tokenizer(), QUICK)]
    return [Turn(letter, _Counting(letter), DIALECTS["vllm"], toy, bodies, cells) for letter in letters]


def test_engines_of_a_parade_take_turns_and_count_for_themselves() -> None:
    body = {**body_of(workload(1)[0], {}), "stream": True}
    parade = Parade(_turns("A", "B"), warmup=2, model="toy")
    with serving(parade) as url:
        for _ in range(8):
            ask(url, body)
    texts = [note["events"][0]["text"] for note in parade.sends]
    assert texts == ["A0", "A0", "A0", "A1", "A2", "B0", "B1", "B2"]


def test_a_turn_cut_out_of_a_parade_is_its_visit(tmp_path: Path) -> None:
    """Two engines driven one after another, cut apart, read as if each had been driven alone."""
    tokenizer = toy_tokenizer()
    rows = workload(2, kind="warmup", cell="warmup") + workload(3, 1, first_line=2)
    bodies = [orjson.dumps(body_of(row, {})) for row in rows]
    turns = _turns("A", "B", bodies=tuple(bodies[2:]))
    order = [0, 1, 2, 3, 4, 2, 3, 4]
    parade = tmp_path / "parade"
    driven = [{**rows[line], "line": at} for at, line in enumerate(order)]
    visit(Engine(), [Toy(tokenizer)], DIALECTS["vllm"], driven, parade / "aiperf", tokenizer)
    _with_end_times(parade / "aiperf" / "profile_export_raw.jsonl")
    write_json(parade / "visit.json", {"pair": 1, "role": "x", "slot": 0, "started_at": 0.0, "ended_at": 9.0})
    write_parade(parade, bodies[:2], turns)
    assert (parade / "requests.jsonl").read_bytes().splitlines() == [bodies[line] for line in order]
    assert len({cell.name for cell in parade_cells(turns)}) == 2
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "workload.parquet")
    texts = []
    for number in range(2):
        made = tmp_path / f"turn-{number}"
        carve(parade, turns, 2, number, made, {"pair": 7, "role": "candidate", "slot": 1})
        write_requests(made / "aiperf", tmp_path / "workload.parquet", tokenizer, made / "requests.parquet")
        table = pq.read_table(made / "requests.parquet").sort_by("line")
        assert table["line"].to_pylist() == [0, 1, 2, 3, 4] and set(table["status"].to_pylist()) == {"ok"}
        about = read_json(made / "visit.json")
        assert about["pair"] == 7 and about["ended_at"] > about["started_at"] > 1e9
        texts.append(table["text"].to_pylist())
    assert texts[0] == texts[1]
    shutil.rmtree(parade)


def _with_end_times(export: Path) -> None:
    records = [orjson.loads(line) for line in export.read_bytes().splitlines()]
    for record_ in records:
        record_["metadata"]["request_end_ns"] = record_["metadata"]["request_start_ns"] + 10**9
    export.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in records))

"""Recorded answers are played as they were given, and only to what was asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.engines.dialects import DIALECTS
from tests.engines.prompts import SCHEMA, workload
from tests.engines.recorded import Recorded, bank
from tests.engines.stream import Engine, Event, Request
from tests.engines.toy import Pace, Toy, toy_tokenizer
from tests.engines.visit import body_of, visit


def test_a_bank_of_a_run_answers_as_the_run_did(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    rows = workload(20, max_tokens=40) + workload(10, 5, first_line=20, temperature=0.8, stop=(" letter",))
    folder = tmp_path / "pairs" / "01"
    table = visit(Engine(), [Toy(tokenizer)], DIALECTS["vllm"], rows, folder / "baseline", tokenizer)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "workload.parquet")
    recorded = Recorded(json.loads(json.dumps(bank(tmp_path, "baseline"))), tokenizer, Pace(5, 0, 1))
    again = visit(Engine(), [recorded], DIALECTS["vllm"], rows, tmp_path / "again", tokenizer)
    for column in ("text", "finish_reason", "usage_completion_tokens", "usage_prompt_tokens"):
        assert again[column].to_pylist() == table[column].to_pylist()


def test_what_was_never_asked_is_answered_by_the_toy() -> None:
    toy = Recorded({}, toy_tokenizer(), Pace(5, 0, 1))

    async def ask() -> list[Event]:
        return [e async for e in toy.events(Request(body_of(workload(1)[0], {})))]

    assert "".join(event.text for event in asyncio.run(ask()))

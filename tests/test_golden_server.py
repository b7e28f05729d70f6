"""The golden server: what it says it sent is what the reader counts, in all four dialects."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from harness import sweep
from harness.progress import silent
from harness.run_store import RunStore
from harness.sweep_plan import make_sweep
from tests.engines.dialects import DIALECTS
from tests.engines.prompts import workload
from tests.engines.server import Server, serving
from tests.engines.stream import Engine, Event, Request
from tests.engines.toy import Pace, Toy, save_tokenizer, toy_tokenizer
from tests.engines.visit import body_of, visit

FAST = Pace(ttft_ms=5, prefill_ms=0, itl_ms=1, jitter=0)


def ask(url: str, body: dict[str, object]) -> tuple[int, list[tuple[float, str]]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    started = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"X-Request-ID": "r1"})
    response = connection.getresponse()
    events = []
    for line in response:
        if line.startswith(b"data: "):
            events.append(((time.monotonic() - started) * 1e3, line[6:].strip().decode()))
    return response.status, events


BODY = {
    "messages": [{"role": "user", "content": "Tell me about tram 4711 in Porto"}],
    "max_tokens": 24,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_streams_its_known_tokens_and_logs_when_it_sent_them(tmp_path: Path) -> None:
    toy = Toy(toy_tokenizer(), FAST)
    server = Server(Engine(), [toy], send_log=tmp_path / "sends.jsonl")
    with serving(server) as url:
        status, events = ask(url, BODY | {"return_token_ids": True})
    assert status == 200 and events[-1][1] == "[DONE]"
    note = json.loads((tmp_path / "sends.jsonl").read_text())
    chunks = [json.loads(value) for _, value in events[:-1]]
    received = [token for c in chunks if c["choices"] for token in c["choices"][0].get("token_ids", [])]
    assert received == [token for event in note["events"] for token in event["ids"]]
    assert note["x_request_id"] == "r1" and note["output_tokens"] == 24 == chunks[-1]["usage"]["completion_tokens"]
    sent = [event["sent_ns"] for event in note["events"]]
    assert sent == sorted(sent) and sent[0] - note["received_ns"] >= 5e6


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_reader_counts_what_the_engine_made(dialect: str, tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    toy = Toy(tokenizer, FAST)
    rows = workload(40, max_tokens=60)
    table = visit(Engine(), [toy], DIALECTS[dialect], rows, tmp_path, tokenizer)
    assert set(table["status"].to_pylist()) == {"ok"}
    for row, line in zip(table.to_pylist(), rows, strict=True):
        ids, finish = toy.answer(Request(body_of(line, {})))
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        # A character cut by max_tokens is never sent.
        assert whole.startswith(row["text"]) and whole[len(row["text"]) :].strip() in ("", "\ufffd")
        assert row["finish_reason"] == finish
        if dialect != "llama-cpp-python":
            assert row["output_tokens"] == len(ids) + (finish == "stop")
            assert row["output_tokens_source"] == "usage"
        else:
            assert row["usage_completion_tokens"] is None and row["output_tokens_source"] == "retokenised"


def test_strict_dialect_refuses_unknown_fields() -> None:
    with serving(Server(Engine(), [Toy(toy_tokenizer(), FAST)], DIALECTS["transformers-serve"])) as url:
        status, _ = ask(url, BODY | {"ignore_eos": True})
    assert status == 422


def test_role_chunk_comes_before_any_compute_in_transformers_serve() -> None:
    slow = Pace(ttft_ms=80, prefill_ms=0, itl_ms=1, jitter=0)
    with serving(Server(Engine(), [Toy(toy_tokenizer(), slow)], DIALECTS["transformers-serve"])) as url:
        _, events = ask(url, BODY)
    assert json.loads(events[0][1])["choices"][0]["delta"] == {"role": "assistant"} and events[0][0] < 60
    assert events[1][0] >= 80


def test_llama_cpp_merges_split_characters_and_leaves_out_the_role_chunk() -> None:
    tokenizer = toy_tokenizer()
    encoder = DIALECTS["llama.cpp"].encoder(Request({"messages": [], "stream": True}), "toy")
    ids = tokenizer.encode("📚").ids
    assert len(ids) > 1
    chunks = [*encoder.encode(Event(0, role=True))]
    for i, token in enumerate(ids):
        chunks += encoder.encode(Event(i, ids=(token,), text="📚" if i == len(ids) - 1 else ""))
    assert len(chunks) == 1 and "role" not in json.loads(chunks[0][6:])["choices"][0]["delta"]


def test_saved_tokenizer_gives_the_same_ids_through_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save_tokenizer(tmp_path / "tok")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The harbour keeps a long letter. 🙂 港口"
    assert loaded.encode(text, add_special_tokens=False) == toy_tokenizer().encode(text).ids
    messages = [{"role": "user", "content": "Hello 2024"}]
    rendered = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert len(toy_tokenizer().encode(rendered).ids) == Toy(toy_tokenizer()).count_prompt(
        Request({"messages": messages})
    )


@pytest.mark.acceptance
def test_aiperf_and_the_reader_find_what_was_sent(tmp_path: Path) -> None:
    """Real AIPerf over loopback: tokens exact, first and last event within a few milliseconds of the send log."""
    tokenizer = save_tokenizer(tmp_path / "tok")
    server = Server(Engine(), [Toy(toy_tokenizer(), Pace(ttft_ms=40, prefill_ms=0, itl_ms=5, jitter=0))], precise=True)
    with serving(server) as url:
        data = {
            "model": "toy",
            "tokenizer": str(tokenizer),
            "endpoints": {"golden": {"url": url}},
            "profiles": [{"name": "decode-easy", "request_count": 12}],
            "tier": "smoke",
            "calibrate": False,
        }
        plan = make_sweep(data, source="test", folder=tmp_path)
        (row,) = sweep.sweep(plan, RunStore.create(tmp_path / "run"), silent)
    rows = pq.read_table(tmp_path / "run/pairs/01/golden/requests.parquet").to_pylist()
    sent = {note["x_request_id"]: note for note in server.sends}
    export = tmp_path / "run/pairs/01/golden/aiperf/profile_export_raw.jsonl"
    names = {r["conversation_id"]: r["x_request_id"] for r in (json.loads(x)["metadata"] for x in export.open())}
    assert row.served == 12 and {one["status"] for one in rows} == {"ok"}
    for one in rows:
        note = sent[names[f"session_{one['line']:06d}"]]
        moments = [event["sent_ns"] for event in note["events"]]
        assert one["output_tokens"] == note["output_tokens"] + (one["finish_reason"] == "stop")
        assert len(one["event_ms"]) == len(moments)
        assert 0 < one["ttft_ms"] - (moments[0] - note["received_ns"]) / 1e6 < 50
        decode_ms = (moments[-1] - moments[0]) / 1e6
        assert one["event_ms"][-1] - one["event_ms"][0] == pytest.approx(decode_ms, abs=20)


@pytest.mark.acceptance
def test_aiperf_asks_every_live_conversation_once_in_every_cell(tmp_path: Path) -> None:
    """Real AIPerf: warm-up and two cells of conversations in one process; none is skipped, none asked twice."""
    tokenizer = save_tokenizer(tmp_path / "tok")
    with serving(Server(Engine(), [Toy(toy_tokenizer(), FAST)])) as url:
        use = {"name": "agentic-growing-prefix", "concurrency": [1, 2], "request_count": 9}
        data = {"model": "toy", "tokenizer": str(tokenizer), "endpoints": {"golden": {"url": url}}, "profiles": [use]}
        plan = make_sweep(data | {"tier": "smoke", "calibrate": False}, source="test", folder=tmp_path)
        rows = sweep.sweep(plan, RunStore.create(tmp_path / "run"), silent)
    assert [(row.asked, row.served) for row in rows] == [(9, 9), (9, 9)]
    seen = pq.read_table(tmp_path / "run/pairs/01/golden/requests.parquet").to_pylist()
    asked = pq.read_table(tmp_path / "run/pairs/01/workload.parquet").to_pylist()
    assert len(seen) == len(asked) > 18 and {one["status"] for one in seen} == {"ok"}

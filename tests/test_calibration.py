"""The client's bias: exact from known numbers, a mock that keeps its word, a cache that is this client's own."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness import calibration
from harness.calibration import (
    Bias,
    block_sentences,
    calibrate,
    calibration_table,
    client_fingerprint,
    compare,
    in_blocks,
)
from harness.calibration_visit import Shape
from harness.doctor import candidate_shapes
from harness.errors import InvalidRun
from tests.engines.server import Server, serving
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, toy_tokenizer

SHAPE = Shape(ttft_ms=10, tpot_ms=2, concurrency=1, output_tokens=11)


def known(
    count: int = 16, *, late_ms: float = 1.0, slower: float = 1.01, block: int = 1
) -> tuple[list[Any], list[Any]]:
    """Requests 100 ms apart: the mock keeps its shape; the client reads `late_ms` and `slower` on top."""
    rows, truth = [], []
    for line in range(count):
        events = [1] + [block] * (10 // block)
        sent_ms = [10 + 2 * sum(events[1 : i + 1]) for i in range(len(events))]
        start_ms = 100 * line
        truth.append(
            {
                "line": line,
                "received_ns": int(start_ms * 1e6),
                "sent_ns": [int((start_ms + ms) * 1e6) for ms in sent_ms],
                "event_tokens": events,
            }
        )
        rows.append(
            {
                "line": line,
                "status": "ok",
                "start_s": start_ms / 1e3,
                "ttft_ms": sent_ms[0] + late_ms,
                "tpot_ms": 2 * slower,
                "request_latency_ms": sent_ms[0] + late_ms + 20 * slower,
                "output_tokens": 11,
            }
        )
    return rows, truth


@pytest.mark.parametrize("block", [1, 5])
def test_bias_is_the_difference_from_the_mocks_own_log(block: int) -> None:
    bias = compare(SHAPE, *known(block=block), load=0.5)
    assert bias.ttft_ms == pytest.approx(10)
    assert bias.ttft_bias_ms == pytest.approx(1.0)
    assert bias.tpot_ms == pytest.approx(2)
    assert bias.tpot_bias == pytest.approx(0.01)
    assert bias.schedule_slip == pytest.approx(0, abs=1e-9)
    assert bias.output_throughput == pytest.approx(16 * 11 / 1.530)
    assert bias.output_throughput_bias == pytest.approx(1.530 / (1.530 + 0.0012) - 1)
    assert bias.achieved_concurrency == pytest.approx(16 * 0.030 / 1.530)
    assert bias.fed == pytest.approx((16 * 11 / 1.530) / (11 / 0.030))
    assert (bias.requests, bias.failed) == (16, 0)


def test_relative_errors_are_named_like_the_gates_metrics() -> None:
    bias = compare(SHAPE, *known(), load=0)
    assert bias.error("ttft.p50") == pytest.approx(0.1)
    assert bias.error("tpot.p50") == pytest.approx(0.01)
    assert bias.error("output_throughput") == pytest.approx(abs(bias.output_throughput_bias))  # one in flight rests
    two = bias.model_copy(update={"shape": SHAPE.model_copy(update={"concurrency": 2})})
    assert two.error("output_throughput") == pytest.approx(1 - bias.fed)
    assert bias.error("goodput") is None


def test_ttft_has_an_allowance_that_can_only_hide_a_speed_up() -> None:
    bias = compare(SHAPE, *known(late_ms=1.4), load=0)
    assert bias.over(0.05) == {}
    late = compare(SHAPE, *known(late_ms=1.6, slower=1.06), load=0).over(0.05)
    assert late == {"ttft.p50": pytest.approx(0.16), "tpot.p50": pytest.approx(0.06)}
    assert compare(SHAPE, *known(late_ms=1.6), load=0).over(0.05, ["tpot.p50"]) == {}


@given(st.floats(0.02, 5000), st.floats(0.02, 500), st.integers(1, 256), st.integers(1, 400))
def test_a_shape_is_never_slower_than_what_it_imitates_and_answers_soon(
    ttft: float, tpot: float, concurrency: int, tokens: int
) -> None:
    shape = Shape.imitating(ttft_ms=ttft, tpot_ms=tpot, concurrency=concurrency, output_tokens=tokens)
    assert shape.ttft_ms <= max(ttft, 0.1) * 1.001 and shape.tpot_ms <= max(tpot, 0.01) * 1.001
    assert shape.ttft_ms >= ttft * 0.9 and shape.tpot_ms >= tpot * 0.9
    assert shape.tpot_ms * shape.output_tokens <= 1500 or shape.output_tokens <= 16
    again = Shape.imitating(
        ttft_ms=shape.ttft_ms, tpot_ms=shape.tpot_ms, concurrency=concurrency, output_tokens=shape.output_tokens
    )
    assert again.output_tokens == shape.output_tokens


def test_failed_requests_and_lost_lines_are_counted_not_dropped_silently() -> None:
    rows, truth = known()
    rows[3]["status"] = "connection_error"
    bias = compare(SHAPE, rows, truth[:-1], load=0)
    assert bias.failed == 2
    assert "2 of 16 requests to the mock failed" in bias.sentence(0.5)


def test_nothing_to_compare_is_no_zero_bias() -> None:
    rows, _ = known()
    with pytest.raises(InvalidRun, match="no calibration request came through"):
        compare(SHAPE, rows, [], load=0)


def test_the_sentence_says_what_may_be_published() -> None:
    good = compare(SHAPE, *known(late_ms=0.05, slower=1.001), load=0)
    assert "measurable here; every error is within 2.0%" in good.sentence(0.02)
    assert "not measurable here (ttft.p50 20.0%" in compare(SHAPE, *known(late_ms=2), load=0).sentence(0.02)


def test_where_events_are_too_many_it_says_what_larger_ones_change() -> None:
    busy = SHAPE.model_copy(update={"concurrency": 32})
    bad = compare(SHAPE, *known(slower=1.2), load=0).model_copy(update={"shape": busy, "fed": 0.7})
    assert in_blocks(bad, 0.05) == busy.model_copy(update={"tokens_per_event": 4})
    good = compare(SHAPE, *known(slower=1.01), load=0).model_copy(update={"shape": in_blocks(bad, 0.05), "fed": 0.98})
    assert in_blocks(good, 0.05) is None and in_blocks(compare(SHAPE, *known(slower=1.2), load=0), 0.05) is None
    (told,) = block_sentences([bad, good], 0.05)
    assert "4 tokens an event instead of 1: " in told and told.endswith("measurable here.")
    assert "tpot.p50 +20.0% -> +1.0%" in told and "kept busy 70% -> 98%" in told
    assert block_sentences([good], 0.05) == block_sentences([bad], 0.05) == ()


def test_a_mock_that_was_starved_is_not_the_clients_bias() -> None:
    rows, truth = known()
    for entry in truth:
        entry["sent_ns"] = [entry["sent_ns"][0] + 2 * (ns - entry["sent_ns"][0]) for ns in entry["sent_ns"]]
    bias = compare(SHAPE, rows, truth, load=9.5)
    assert bias.starved
    assert "too busy to imitate it (the mock sent 100% too slowly, load average 9.5)" in bias.sentence(0.02)


def test_offered_rate_is_the_engines_when_it_is_kept_busy() -> None:
    shape = Shape(ttft_ms=12, tpot_ms=3.105, concurrency=32, output_tokens=256)
    assert shape.offered_tokens_per_s == pytest.approx(10192, abs=1)
    assert shape.requests == 128


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An own cache, and drives that only count how many shapes they were asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[int] = []

    def drive(shapes: Any, *_: Any) -> list[Any]:
        asked.append(len(shapes))
        return [known() for _ in shapes]

    monkeypatch.setattr(calibration, "drive_mock", drive)
    return asked


def test_only_what_is_new_is_measured(cache: list[int]) -> None:
    other = SHAPE.model_copy(update={"concurrency": 8})
    first = calibrate([SHAPE], Path())
    assert calibrate([SHAPE, other, SHAPE], Path())[0] == first[0]
    calibrate([SHAPE, other], Path())
    calibrate([SHAPE], Path(), connection_reuse="pooled")  # another client
    calibrate([SHAPE], Path(), fresh=True)
    assert cache == [1, 1, 1, 1]


def test_a_broken_cache_entry_is_measured_again(cache: list[int], tmp_path: Path) -> None:
    calibrate([SHAPE], Path())
    for entry in (tmp_path / "enginegate" / "calibration").iterdir():
        entry.write_text(entry.read_text().replace('"fed"', '"fet"'))
    calibrate([SHAPE], Path())
    assert cache == [1, 1]


def test_another_client_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = client_fingerprint("never")
    monkeypatch.setattr(calibration, "AIPERF_VERSION", "9")
    assert client_fingerprint("never") != before


def test_the_table_has_a_row_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=160).print(calibration_table([compare(SHAPE, *known(), load=0)]))
    shown = capsys.readouterr().out
    assert "+1.00 / +1.0 ms" in shown
    assert "+1.00% / +1.0%" in shown


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("mock")
    ready, log = folder / "url", folder / "sends.jsonl"
    command = [sys.executable, "-m", "harness.calibration_mock", "--ready", str(ready), "--log", str(log)]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 30
            while not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield ready.read_text(), log
        finally:
            process.terminate()
            assert process.wait(timeout=10) == 0


def stream(url: str, line: int, *, tokens: int = 12, block: int = 1) -> list[Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    shape = {"line": line, "ttft_ms": 20, "interval_ms": 3, "tokens_per_event": block}
    message = {"role": "user", "content": "one two"}
    body = {"messages": [message], "max_tokens": tokens, "calibration": shape, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(text.removeprefix("data: ")) for text in lines[:-2]]


@pytest.mark.parametrize("block", [1, 4])
def test_the_mock_sends_what_it_logs_and_never_early(mock: tuple[str, Path], block: int) -> None:
    url, log = mock
    line = 70 + block
    *events, usage = stream(url, line, block=block)
    ids = [token for event in events for token in event["choices"][0]["token_ids"]]
    assert len(ids) == usage["usage"]["completion_tokens"] == 12
    assert usage["usage"]["prompt_tokens"] == 2
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    logged = _logged(log, line)
    assert logged["event_tokens"] == [block] * (12 // block)
    assert len(logged["sent_ns"]) == len(events)
    assert logged["sent_ns"][0] - logged["received_ns"] >= 20e6
    assert logged["sent_ns"][-1] - logged["sent_ns"][0] >= 3e6 * (len(events) - 1) - 20e6  # a late start may catch up
    assert logged["sent_ns"] == sorted(logged["sent_ns"])


def test_the_mock_answers_a_readiness_check(mock: tuple[str, Path]) -> None:
    parts = urlsplit(mock[0])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read())["data"][0]["id"] == "calibration"


def test_the_mock_says_that_it_answers_without_a_stream(mock: tuple[str, Path]) -> None:
    parts = urlsplit(mock[0])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("POST", "/v1/chat/completions", json.dumps({"max_tokens": 1}))
    assert json.loads(connection.getresponse().read())["object"] == "chat.completion"


def test_a_shape_is_taken_from_the_candidate() -> None:
    toy = Toy(toy_tokenizer(), pace=Pace(ttft_ms=30, prefill_ms=0, itl_ms=5, jitter=0))
    with serving(Server(Engine(), [toy])) as url:
        one, two = candidate_shapes(url, "toy", [1, 2])
    assert (one.concurrency, two.concurrency) == (1, 2)
    assert one.ttft_ms >= 27  # rounded down to the grid
    assert one.tpot_ms > 3
    assert one.tokens_per_event == 1


def test_a_candidate_that_cannot_stream_has_no_shape() -> None:
    with pytest.raises(InvalidRun, match="cannot be imitated"):
        candidate_shapes("http://127.0.0.1:9", "m", [1])


@pytest.mark.acceptance
def test_aiperf_against_the_mock() -> None:
    """The real thing, about half a minute: every request comes back, and the mock's counts are read exactly."""
    from harness.demo_models import prepare_models

    shape = Shape(ttft_ms=50, tpot_ms=10, concurrency=2, output_tokens=32)
    (bias,) = calibrate([shape], prepare_models().reference, fresh=True)
    assert isinstance(bias, Bias)
    assert (bias.failed, bias.requests) == (0, 16)
    assert bias.ttft_ms >= 50
    assert bias.ttft_bias_ms > 0


def _logged(log: Path, line: int) -> dict[str, Any]:
    """The mock's own entry for one request; it is written just after the last byte was sent."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        entries = [json.loads(text) for text in log.read_text().splitlines() if text.endswith("}")]
        found = [entry for entry in entries if entry["line"] == line]
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"the mock logged nothing of line {line}")

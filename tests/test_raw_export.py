"""AIPerf's traps, each from a recorded export (tests/recorded/make.py): what it calls success is judged again here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.errors import InvalidRun
from harness.measurement import measure_visit
from harness.raw_export import write_requests
from harness.workload import SCHEMA as WORKLOAD_SCHEMA

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """One token a word: counts can be checked by eye."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _workload(folder: Path, lines: int, warmup: int = 1) -> Path:
    rows = [
        {
            "line": i,
            "cell": "warmup" if i < warmup else "smoke/c2",
            "profile": "smoke",
            "kind": "warmup" if i < warmup else "load",
            "item": f"item-{i}",
            "stratum": "en-chat",
            "seed": i,
            "temperature": 0.0,
            "max_tokens": 8,
            "fixed_length": False,
            "stop": [],
            "messages": "[]",
        }
        for i in range(lines)
    ]
    path = folder / "workload.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=WORKLOAD_SCHEMA), path)
    return path


def _rows(name: str, tmp_path: Path, words: Tokenizer) -> dict[int, dict]:
    lines = len((RECORDED / name / "requests.jsonl").read_text().splitlines())
    write_requests(RECORDED / name / "aiperf", _workload(tmp_path, lines), words, tmp_path / "requests.parquet")
    return {row["line"]: row for row in pq.read_table(tmp_path / "requests.parquet").to_pylist()}


def test_exit_code_zero_hides_half_of_the_failures(tmp_path: Path, words: Tokenizer) -> None:
    assert (RECORDED / "faults" / "exit_code").read_text() == "0\n"
    summary = json.loads((RECORDED / "faults/aiperf/phases/smoke--c2/profile_export_aiperf.json").read_text())
    assert summary["is_complete"] is True
    rows = _rows("faults", tmp_path, words)
    ways = [
        json.loads(line)["messages"][0]["content"].split()[0] for line in (RECORDED / "faults/requests.jsonl").open()
    ]
    fate = {
        "good": "ok",
        "no_usage": "ok",
        "no_object": "ok",  # AIPerf alone calls it empty
        "http_500": "http_error",
        "error_event": "stream_error",  # AIPerf counts it as success
        "named_error": "stream_error",
        "truncated": "truncated",  # AIPerf counts it as success
        "reset": "truncated",
        "empty": "empty",
        "hang": "timeout",
    }
    assert {line: row["status"] for line, row in rows.items()} == {line: fate[way] for line, way in enumerate(ways)}
    assert all((row["error"] == "") == (row["status"] == "ok") for row in rows.values())


def test_counts_times_and_sources(tmp_path: Path, words: Tokenizer) -> None:
    rows = _rows("faults", tmp_path, words)
    good, without_usage = rows[1], rows[8]
    assert (good["output_tokens"], good["output_tokens_source"], good["usage_prompt_tokens"]) == (8, "usage", 12)
    assert (without_usage["output_tokens"], without_usage["output_tokens_source"]) == (8, "retokenised")
    assert good["event_tokens"] == [1] * 8
    # The server sends the role at once, the first word after 30 ms and then one word every 10 ms.
    assert 29 < good["ttft_ms"] < 60
    assert good["tpot_ms"] == pytest.approx((good["event_ms"][-1] - good["event_ms"][0]) / 7, rel=1e-5)
    assert 9 < good["tpot_ms"] < 16


def test_warmup_is_kept_but_not_measured(tmp_path: Path, words: Tokenizer) -> None:
    rows = _rows("faults", tmp_path, words)
    assert rows[0]["kind"] == "warmup" and rows[0]["status"] == "ok"
    visit = measure_visit(pq.read_table(tmp_path / "requests.parquet"), pair=1, role="candidate", slot=0, slos={})
    cell = visit.cells["smoke/c2"]
    assert (cell.asked, cell.served) == (len(rows) - 1, 6)
    assert sum(cell.failures.values()) == cell.asked - cell.served


def test_failures_are_infinitely_late(tmp_path: Path, words: Tokenizer) -> None:
    _rows("faults", tmp_path, words)
    visit = measure_visit(pq.read_table(tmp_path / "requests.parquet"), pair=1, role="candidate", slot=0, slos={})
    ttft = visit.cells["smoke/c2"].ttft_ms
    assert ttft.p95 is None and ttft.p99 is None
    assert ttft.max is not None


def test_refused_connections_leave_only_unmerged_parts(tmp_path: Path, words: Tokenizer) -> None:
    assert not (RECORDED / "refused/aiperf/profile_export_raw.jsonl").exists()
    rows = _rows("refused", tmp_path, words)
    assert {row["status"] for row in rows.values()} == {"connection_error"}
    cell = measure_visit(pq.read_table(tmp_path / "requests.parquet"), pair=1, role="candidate", slot=0, slos={}).cells
    assert cell["smoke/c2"].served == 0 and cell["smoke/c2"].output_throughput is None


def test_a_cancelled_run_leaves_the_rest_missing(tmp_path: Path, words: Tokenizer) -> None:
    assert (RECORDED / "cancelled" / "exit_code").read_text() == "0\n"
    rows = _rows("cancelled", tmp_path, words)
    missing = [row for row in rows.values() if row["status"] == "missing"]
    assert len(missing) > 100
    assert all(row["status"] in {"ok", "missing", "cancelled"} for row in rows.values())


def test_a_cut_export_is_refused_by_name(tmp_path: Path, words: Tokenizer) -> None:
    shutil.copytree(RECORDED / "faults" / "aiperf", tmp_path / "aiperf")
    export = tmp_path / "aiperf" / "profile_export_raw.jsonl"
    export.write_bytes(export.read_bytes()[:-200])
    with pytest.raises(InvalidRun, match=r"profile_export_raw.jsonl, line \d+: not a whole AIPerf record"):
        write_requests(tmp_path / "aiperf", _workload(tmp_path, 15), words, tmp_path / "requests.parquet")


def test_an_export_of_another_run_is_refused(tmp_path: Path, words: Tokenizer) -> None:
    with pytest.raises(InvalidRun, match="answered twice or never asked"):
        write_requests(RECORDED / "faults/aiperf", _workload(tmp_path, 3), words, tmp_path / "requests.parquet")

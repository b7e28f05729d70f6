from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InvalidRun, UsageError
from harness.gate import decide
from harness.history import (
    GENESIS,
    Attempt,
    begin,
    check_contains,
    end,
    ended,
    head,
    looks_left,
    poolable,
    read,
    standing,
    table,
    trend,
)  # fmt: skip
from harness.verdict import Status, Verdict
from tests.gate_runs import gate_run

PASSES, FAILS = decide(gate_run(1.5), power_draws=0), decide(gate_run(1.0), power_draws=0)


def add(path: Path, verdict: Verdict = FAILS, **changes: Any) -> Attempt:
    note = changes.pop("note", "")
    fields = {"run": "runs/1", "plan": "p", "engine": "e", "mode": verdict.mode, "sealed": True} | changes
    return end(path, begin(path, **fields), verdict, note=note)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "history.jsonl"
    for run in ("runs/1", "runs/2", "runs/3"):
        add(path, run=run, note="tried a wider tile")
    return path


def test_attempts_are_chained_and_read_back(history: Path) -> None:
    attempts = read(history)
    assert [a.number for a in attempts] == [1, 2, 3, 4, 5, 6]
    assert [a.attempt for a in attempts] == [1, 1, 3, 3, 5, 5], "each is written down when it starts and when it ends"
    assert attempts[0].previous == GENESIS
    assert attempts[1].previous == attempts[0].hash
    assert attempts[0].status is None
    assert (attempts[1].status, attempts[1].passed, attempts[1].judged) == (Status.FAIL, 8, 23)
    assert attempts[1].worst == FAILS.failed_first[0]
    assert head(attempts) == attempts[5].hash
    assert [a.number for a in ended(attempts)] == [2, 4, 6]
    assert read(history.with_name("none.jsonl")) == ()


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"passed":8', b'"passed":9'), *lines[2:]], 2),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[0], lines[0], *lines[1:]], 2),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [*lines[:2], lines[2][:-20] + b"\n"], 3),
        (lambda lines: [*lines, b"{}\n"], 7),
        (lambda lines: [*lines, b"x" * 20_000 + b"\n"], 7),
        (lambda lines: [lines[0].replace(b'"sealed":true', b'"sealed":true,"extra":1'), *lines[1:]], 1),
    ],
)
def test_a_broken_chain_names_its_line(history: Path, edit: Any, line: int) -> None:
    history.write_bytes(b"".join(edit(history.read_bytes().splitlines(keepends=True))))
    with pytest.raises(InvalidRun, match=rf"history.jsonl, line {line}\b"):
        read(history)
    with pytest.raises(InvalidRun):
        add(history)


def test_a_cut_end_shows_against_a_verdicts_memory(history: Path) -> None:
    newest = head(read(history))
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(b"".join(lines[:2]))
    with pytest.raises(InvalidRun, match="lost the record"):
        check_contains(read(history), newest)
    check_contains(read(history), GENESIS)


def test_two_processes_appending_at_once_keep_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    threads = [threading.Thread(target=add, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a.number for a in read(path)] == list(range(1, 17))


def test_looks_at_held_out_prompts_are_counted_whatever_came_of_them(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    add(path, engine="a")
    add(path, engine="b", verdict=PASSES)
    add(path, sealed=False)
    add(path, verdict=FAILS.model_copy(update={"mode": "quick"}))
    begin(path, run="runs/9", plan="p", engine="e", mode="full", sealed=True)  # killed before its verdict
    assert looks_left(read(path), 5) == 2
    assert looks_left(read(path), 1) == 0


def test_a_repeat_pools_and_a_decided_build_stands(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    open_ = FAILS.model_copy(update={"status": Status.INCONCLUSIVE})
    add(path, verdict=open_, run="runs/1")
    add(path, verdict=FAILS.model_copy(update={"status": Status.INVALID}), run="runs/2")
    add(path, verdict=FAILS, run="runs/3", engine="another")
    assert [a.run for a in poolable(read(path), engine="e", plan="p")] == ["runs/1"]
    assert standing(read(path), engine="e", plan="p", max_pairs=12) is None
    spent = open_.model_copy(update={"power": open_.power.model_copy(update={"pairs": 12})})
    add(path, verdict=spent, run="runs/4")
    found = standing(read(path), engine="e", plan="p", max_pairs=12)
    assert found is not None
    assert found.run == "runs/4"
    assert standing(read(path), engine="another", plan="p", max_pairs=12) is not None
    assert standing(read(path), engine="e", plan="another", max_pairs=12) is None


def test_the_table_shows_the_trend(history: Path) -> None:
    add(history, verdict=PASSES)
    begin(history, run="runs/5", plan="p", engine="e", mode="full", sealed=False)
    rows = table(read(history))
    assert rows.pop()[3] == "no verdict"
    assert trend(read(history)) == (
        "5 attempts, 4 of them looks at held-out prompts; best: attempt 7, full PASS, 23/23; "
        "last: 8/23 -> 8/23 -> 8/23 -> 23/23."
    )
    assert trend(()) == "0 attempts, none with a verdict."
    assert [row[4:6] for row in rows] == [("8/23", ""), ("8/23", "+0"), ("8/23", "+0"), ("23/23", "+15")]


def test_a_long_note_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="500 characters"):
        add(tmp_path / "h.jsonl", note="x" * 501)


@settings(max_examples=150)
@given(st.data())
def test_no_byte_can_be_changed_in_silence(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        for run in ("runs/1", "runs/2"):
            add(path, run=run)
        whole, before = path.read_bytes(), read(path)
        where = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[where]))
        path.write_bytes(whole[:where] + bytes([byte]) + whole[where + 1 :])
        try:
            after = read(path)
        except InvalidRun:
            return
        assert after == before, "what still reads must say the same (1e-05 is 1E-05)"

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import InvalidRun, UsageError
from harness.run_store import RunStore, read_json, write_bytes, write_json


def _run(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path / "run")
    write_bytes(store.root / "plan.yaml", b"model: m\n")
    write_json(store.root / "pairs/01/pair.json", {"pair": 1})
    store.record("workload/01", [store.root / "pairs/01/pair.json"])
    return store


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    store = _run(tmp_path)
    with pytest.raises(UsageError, match="already exists"):
        RunStore.create(store.root)


def test_a_step_is_finished_only_while_its_files_are_what_it_wrote(tmp_path: Path) -> None:
    store = _run(tmp_path)
    assert store.finished("workload/01") and not store.finished("workload/02")
    write_json(store.root / "pairs/01/pair.json", {"pair": 2})
    assert not store.finished("workload/01")


def test_a_journal_line_cut_by_a_kill_is_not_finished(tmp_path: Path) -> None:
    store = _run(tmp_path)
    journal = store.root / "journal.jsonl"
    whole = journal.read_bytes()
    for length in range(len(whole) - 1):
        journal.write_bytes(whole[:length])
        assert not store.finished("workload/01")
    journal.write_bytes(whole[:20])
    store.record("workload/01", [store.root / "pairs/01/pair.json"])
    assert store.finished("workload/01"), "a step recorded after a cut line counts"


def test_the_manifest_names_what_was_changed_removed_and_added(tmp_path: Path) -> None:
    store = _run(tmp_path)
    write_bytes(store.root / "raw.bin", bytes(1000))
    store.write_manifest()
    assert store.altered() == []
    data = bytearray((store.root / "raw.bin").read_bytes())
    data[500] ^= 1
    (store.root / "raw.bin").write_bytes(data)
    (store.root / "plan.yaml").unlink()
    (store.root / "extra").write_text("x")
    assert store.altered() == ["raw.bin (changed)", "plan.yaml (missing)", "extra (not in the manifest)"]


def test_nan_is_never_written_and_broken_json_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": None}, "NaN becomes a missing number"
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InvalidRun, match=r"a\.json is not valid JSON"):
        read_json(tmp_path / "a.json")

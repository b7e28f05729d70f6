"""The matrix counts honestly: caught is not named, and an honest engine is none of the cheats."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engines import banks, gates
from tests.engines.cheats.combined import AND
from tests.engines.matrix import STAGES, Entry, Row, Stage, page, summary


def _row(expected: str, *fired: str, verdict: str = "FAIL") -> Row:
    return Row(Entry("e", "vllm"), "does it", expected, fired, verdict, 1000, 2.0)


def test_a_check_is_named_by_its_own_name_only() -> None:
    assert _row("loops", "protocol.same-answers", "protocol.loops").named
    assert _row("token_margin", "token_margin").named
    assert _row("ttft", "ttft.p50@zoo/c4").named
    assert not _row("loops", "protocol.same-answers").named
    assert not _row("repeats", "protocol.repeats-of-something").named
    assert not _row("failures", "served@zoo/c4").named


def test_several_cheats_must_all_be_named() -> None:
    both = AND.join(("loops", "repeats"))
    assert _row(both, "audit.repeats", "protocol.loops").named
    assert not _row(both, "protocol.loops").named


def test_a_trick_that_moves_no_number_is_told_apart_and_not_counted() -> None:
    rows = [_row("ttft", verdict="INCONCLUSIVE"), _row("loops", "protocol.loops")]
    assert summary(rows) == "caught=1/1 named=1/1 honest_failed=0/0" and "Not counted: e." in page(rows, "recorded")


def test_the_summary_and_the_page() -> None:
    rows = [_row("", verdict="INCONCLUSIVE"), _row("loops", "protocol.loops"), _row("loops", "token_margin")]
    assert summary(rows) == "caught=2/2 named=1/2 honest_failed=0/1"
    text = page(rows, "recorded")
    assert "`caught=2/2 named=1/2 honest_failed=0/1`" in text and "95.0%" in text
    assert text.count("| e (vllm) |") == 3


def test_an_honest_engine_is_told_by_family_and_with_what_is_no_pass() -> None:
    """INVALID for every honest engine would show nothing: the page must tell what was judged and what was not."""
    sound = {"honesty": (40, 40), "accuracy": (1, 1), "speed": (3, 3), "validity": (7, 7)}
    rows = [Row(Entry("honest", "vllm", n), "serves", "", (), "PASS", 1, 1.0, passed=sound) for n in range(3)]
    odd = {"speed": (0, 3), "validity": (6, 7)}
    why = "kept-busy@zoo/c4: 3.5 of 4."
    rows.append(Row(Entry("two", "vllm"), "serves", "", (), "INVALID", 1, 1.0, passed=odd, standing=why))
    text = page(rows, "recorded")
    assert "| honest (vllm) | serves | 1 | 1 PASS | 40/40 | 1/1 | 3/3 | 7/7 | none |" in text
    assert "| honest (vllm), again | serves | 2 | 2 PASS | 80/80 |" in text
    assert f"| two (vllm) | serves | 1 | 1 INVALID | - | - | 0/3 | 6/7 | {why} |" in text
    assert "vllm 0/3 (under 63.2%)" in text


def test_one_honest_failure_takes_the_bound_away() -> None:
    rows = [_row("", verdict="INCONCLUSIVE"), _row("", "protocol.loops")]
    assert "No honest engine failed" not in page(rows, "live")


@pytest.mark.parametrize("only", [*STAGES, None])
def test_a_stage_alone_leaves_the_others_undone(only: Stage | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traffic wants a quiet machine, answers and verdicts do not: each can be made at its own time."""
    done: list[str] = []
    driven = only == "judge"
    zoo = SimpleNamespace(live=False)
    monkeypatch.setattr(gates, "open_zoo", lambda *_, **__: zoo)
    monkeypatch.setattr(banks, "record_banks", lambda _: done.append("record"))
    monkeypatch.setattr(gates, "_driven", lambda *_: driven or "drive" in done)
    monkeypatch.setattr(gates, "drive", lambda *_: done.append("drive"))
    monkeypatch.setattr(gates, "judge_one", lambda _, entry, scored: done.append("judge") or entry)
    list(gates.judge_all([Entry("letter-a", "vllm")], Path(), only=only))
    assert done == {"record": ["record"], "drive": ["record", "drive"], "judge": ["judge"]}.get(
        str(only), ["record", "drive", "judge"]
    )


def test_a_run_is_driven_beside_its_own_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes lie between two AIPerf processes: both arms of a gate belong into one."""
    monkeypatch.setattr(gates, "_driven", lambda *_: False)
    entries = [Entry(engine, "vllm", run) for engine in ("baseline", "honest") for run in range(24)]
    first = list(gates._groups(SimpleNamespace(), entries))[1]  # type: ignore[arg-type]
    assert {entry.run for entry in first} == set(range(12))

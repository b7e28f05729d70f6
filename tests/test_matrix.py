"""The matrix counts honestly: caught is not named, and an honest engine is none of the cheats."""

from __future__ import annotations

from tests.engines.cheats.combined import AND
from tests.engines.matrix import Entry, Row, page, summary


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
    assert summary(rows) == "caught=1/1 named=1/1 honest_failed=0/0" and "Not counted: e." in page(rows, fast=False)


def test_the_summary_and_the_page() -> None:
    rows = [_row("", verdict="INCONCLUSIVE"), _row("loops", "protocol.loops"), _row("loops", "token_margin")]
    assert summary(rows) == "caught=2/2 named=1/2 honest_failed=0/1"
    text = page(rows, fast=False)
    assert "`caught=2/2 named=1/2 honest_failed=0/1`" in text and "95.0%" in text
    assert text.count("| e (vllm) |") == 3

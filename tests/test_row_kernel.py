"""The Triton kernel by Triton's interpreter: the same numbers as the plain computation. Skipped without Triton."""

from __future__ import annotations

import pytest
import torch

from oracles.row_kernel import SWITCH, kernel_statistics, wanted
from oracles.token_statistics import _one_pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "k"), [(640, 0), (4096, 1), (4700, 20), (9000, 20)])
def test_one_read_gives_the_same(vocab: int, k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(vocab + k)
    logits = (torch.randn((3, vocab), generator=generator) * 5).to(dtype)
    logits[1, 7] = -1e30
    targets = torch.randint(0, vocab, (3,), generator=generator)
    found, expected = kernel_statistics(logits, targets, k), _one_pass(logits, targets, k)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if number != 5:  # among equal logits which id is kept is not defined
            torch.testing.assert_close(one.float(), other.float(), atol=2e-5, rtol=0)
    assert torch.equal(logits.gather(1, found[5]), logits.gather(1, expected[5]))


def test_it_is_off_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert not wanted()

"""How a long stage tells people where it is: one callback with a sentence and, when known, the share done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Called often; the receiver decides how often to draw."""

    def __call__(self, doing: str, share: float | None = None) -> None:
        """Say what is being done; `share` is between 0 and 1, or None when it is not known."""


def silent(doing: str, share: float | None = None) -> None:
    """Say nothing."""


def counting(doing: str, what: str, progress: Progress) -> Callable[[int, int], None]:
    """A callback for (done, total) that says the rate and the time left."""
    began = time.monotonic()

    def counted(done: int, total: int) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        left = (total - done) * seconds / max(done, 1)
        progress(
            f"{doing}: {done:,} of {total:,} {what}, {done / seconds:,.0f} {what}/s, {left:.0f} s left",
            done / max(total, 1),
        )

    return counted

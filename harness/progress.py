"""How a long stage tells people where it is: one callback with a sentence and, when known, the share done."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often; the receiver decides how often to draw."""

    def __call__(self, doing: str, share: float | None = None) -> None:
        """Say what is being done; `share` is between 0 and 1, or None when it is not known."""


def silent(doing: str, share: float | None = None) -> None:
    """Say nothing."""

"""Values of foreign JSON, taken for what they are or not at all."""

from __future__ import annotations

import math
from typing import Any


def as_number(value: Any) -> float | None:
    """A finite number, or None: never zero for missing."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_dict(value: Any) -> dict[str, Any]:
    """`value` when it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """`value` when it is a list, else an empty one."""
    return value if isinstance(value, list) else []

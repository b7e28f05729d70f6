"""What the words of the command line mean: NAME=URL, 1,2,4..256, a timing shape, a share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from harness.errors import UsageError

# A name becomes a folder of the run and a label in every chart.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:([x+])(\d+))?")
MOST_CONCURRENCIES = 64


def named_urls(values: Sequence[str]) -> dict[str, str]:
    """`NAME=URL` or a bare URL, each -> name: URL; a bare one is named after its host and port.

    Raises UsageError for anything else and for a name given twice.
    """
    found: dict[str, str] = {}
    for value in values:
        name, separator, url = value.partition("=")
        if not separator or "://" in name:
            name, url = urlsplit(value).netloc.replace(":", "-"), value
        if not url.startswith(("http://", "https://")) or not urlsplit(url).netloc:
            raise UsageError(f"--endpoint: {value!r} is no NAME=URL such as vllm=http://127.0.0.1:8000")
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--endpoint: the name {name!r} must be 1 to 40 letters, digits, dots, dashes or underscores."
            )
        if name in found:
            raise UsageError(f"--endpoint: the name {name} is given twice; give each endpoint its own.")
        found[name] = url
    return found


def extra_inputs(values: Sequence[str]) -> dict[str, Any]:
    """`KEY:VALUE` as AIPerf's flag of that name has them, a value as JSON has it or else a text; or a JSON object.

    Raises UsageError for anything else.
    """
    found: dict[str, Any] = {}
    for value in values:
        key, separator, text = value.partition(":")
        whole = _json(value) if value.startswith("{") else None
        if isinstance(whole, dict):
            found |= whole
        elif whole is None and separator and key.isidentifier():
            found[key] = _json(text)
        else:
            raise UsageError(f"--extra-inputs: {value!r} is no KEY:VALUE such as return_token_ids:true.")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def concurrencies(flag: str, text: str) -> tuple[int, ...]:
    """`1,2,4..256` (doubling), `1..256x2` (times 2), `8..64+8` (plus 8): each once, rising.

    Raises UsageError for anything else.
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        series = _RANGE.fullmatch(part)
        values = _series(flag, series) if series else [int(part)] if part.isascii() and part.isdigit() else []
        if not values or min(values) < 1 or max(values) > 100_000:
            raise UsageError(f"{flag}: {text!r} is no list of numbers from 1 on, such as 1,2,4..256 or 1..256x2.")
        found |= set(values)
    if len(found) > MOST_CONCURRENCIES:
        raise UsageError(f"{flag}: {text!r} names {len(found)} numbers; {MOST_CONCURRENCIES} are enough.")
    return tuple(sorted(found))


def _series(flag: str, match: re.Match[str]) -> list[int]:
    first, last, how, by = int(match[1]), int(match[2]), match[3] or "x", int(match[4] or 2)
    if first < 1 or last < first or by < (2 if how == "x" else 1) or last > 100_000:
        raise UsageError(f"{flag}: {match[0]!r} does not rise; write 1..256x2 (times 2) or 8..64+8 (plus 8).")
    if how == "+":
        return list(range(first, last + 1, by))
    values = [first]
    while values[-1] * by <= last:
        values.append(values[-1] * by)
    return values


def timing(text: str) -> dict[str, float]:
    """`TTFT_MS,TPOT_MS,CONCURRENCY[,TOKENS_PER_EVENT]` -> the keys of `harness.calibration_visit.Shape`."""
    try:
        numbers = [float(part) for part in text.split(",")]
        ttft_ms, tpot_ms, concurrency, *rest = numbers
        whole = [concurrency, *rest]
        if len(rest) > 1 or not all(0 < n < 1e6 for n in numbers) or any(n != int(n) for n in whole):
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(
            f"--shape: {text!r} is no TTFT_MS,TPOT_MS,CONCURRENCY[,TOKENS_PER_EVENT] such as 12,0.56,1 or 12,3.1,32,4."
        ) from None
    return {
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "concurrency": int(concurrency),
        "tokens_per_event": int(rest[0]) if rest else 1,
    }

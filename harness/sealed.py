"""Held-out prompts: their seed comes from a secret that the engine's author does not have."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import sys
from pathlib import Path

from harness.errors import UsageError

MIN_BYTES, MAX_BYTES = 16, 4096
_PR_SET_DUMPABLE = 4
_taken: dict[str, bytes] = {}  # what was in the environment when it was first asked for


def read_secret(source: str) -> bytes:
    """The secret behind `env:NAME` or `file:PATH`, without surrounding white space.

    A variable leaves the environment when it is first read, before engines and AIPerf inherit it. Raises UsageError
    when it is not there or shorter than 16 bytes. Its value is in no message, file or log.
    """
    kind, _, name = source.partition(":")
    if kind == "env" and name:
        if name in os.environ:
            _taken[name] = os.environ.pop(name).encode()
        if name not in _taken:
            raise UsageError(f"The secret seed's environment variable {name} is not set.")
        secret = _taken[name]
    elif kind == "file" and name:
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"There is no secret seed file {name}.")
        with path.open("rb") as file:
            secret = file.read(MAX_BYTES)
    else:
        raise UsageError("A secret seed is given as env:NAME (an environment variable) or file:PATH.")
    secret = secret.strip()
    if len(secret) < MIN_BYTES:
        raise UsageError(
            f"The secret seed in {source} has {len(secret)} bytes and needs {MIN_BYTES}; "
            "make one with: python -c 'import secrets; print(secrets.token_hex(32))'."
        )
    return secret


def hide_process() -> None:
    """On Linux, make this process's /proc/PID/environ and memory readable by root alone.

    What a process was started with stays in that file, whatever it later does to its environment.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def sealed_seed(secret: bytes, *, plan: str, attempt: int) -> int:
    """Seed of one attempt's prompts, below 2**63; fresh for each attempt, so that no look teaches the next one's.

    Args:
        secret: of `read_secret`.
        plan: SHA-256 of the resolved plan.
        attempt: number in the history.
    """
    digest = hmac.new(secret, f"enginegate held-out prompts {plan} {attempt}".encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def fingerprint(secret: bytes) -> str:
    """What may be written down: tells two secrets apart and gives none away."""
    return hmac.new(secret, b"enginegate fingerprint", hashlib.sha256).hexdigest()[:16]

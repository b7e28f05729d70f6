"""What can go wrong for a user, and the exit code each kind ends in (docs: README, "Exit codes")."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes. 1 stays Python's own: an uncaught exception is a bug, never a verdict."""

    PASS = 0
    BUG = 1
    USAGE = 2
    FAIL = 3
    INCONCLUSIVE = 4
    INVALID = 5


class EnginegateError(Exception):
    """A problem the user can act on. The message is one sentence or two: what, where, what to do next."""

    exit_code: ExitCode = ExitCode.INVALID


class UsageError(EnginegateError):
    """Bad arguments, plan, profile or criteria: the user's text must change before anything can run."""

    exit_code = ExitCode.USAGE


class InvalidRun(EnginegateError):  # noqa: N818 - the word users read
    """A precondition of judging broke: endpoint down, AIPerf failed, evidence missing or altered."""

    exit_code = ExitCode.INVALID

"""The command line. The only package that knows click, prints, or turns an error into an exit code.

One module for each kind of question; this one only names them.
"""

from __future__ import annotations

import signal

import click

from harness import __version__, processes
from harness.cli.accuracy import floor, score, verify
from harness.cli.gating import demo, gate
from harness.cli.judging import history, recheck, report
from harness.cli.measuring import doctor, sweep
from harness.cli.profiles import profiles


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="enginegate")
def main() -> None:
    """Judge whether an LLM inference engine is really better: the bytes that are timed are the bytes that are graded.

    Exit codes: 0 PASS, 1 a bug here, 2 bad arguments or plan, 3 FAIL, 4 INCONCLUSIVE, 5 INVALID.
    """
    processes.leave_on_sigterm()
    # A shell starts background jobs with SIGINT ignored, and AIPerf, which is asked to stop by it, would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


for command in (gate, demo, sweep, verify, doctor, floor, score, recheck, report, history, profiles):
    main.add_command(command)

"""A coding agent at work: the task with its file, and what the tools answer, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator

from traffic_profiles.text import code
from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw


def task(draw: Draw) -> Ask:
    """The first turn: what is wanted, and the file as it is now."""
    module = code.new_name(draw)
    shown = code.renamed(draw)
    wanted = draw.choice(
        (
            f"`{shown.name}` loses its last element in one of {draw.between(3, 900)} calls. Find out why, repair it.",
            f"`{shown.name}` takes {draw.between(2, 90)} ms for {draw.between(10, 900)} rows. Make it faster.",
            f"Add tests for `{shown.name}` that cover at least {draw.between(80, 99)} percent of its lines.",
            f"Split `{shown.name}` into two functions and keep the old name until release {draw.between(2, 40)}.",
        )
    )
    opening = f"You work on `{module}.py`, and you have tools. Task {draw.between(100, 99999)}: {wanted}\n\n```python"
    units = code.more(draw, "\n\n")
    return Ask(
        f"{opening}\n{shown.source}",
        "```\n\nSay in two or three sentences what you will do first, then name one tool to call.",
        units,
        joiner="",
        frame="\n",
    )


def tool_result(draw: Draw) -> Ask:
    """A later turn: what a tool printed, and the wish to go on."""
    seconds = f"{draw.between(0, 99)}.{draw.between(0, 9)}"
    if draw.below(2):
        opening = f"`run_tests` ended after {seconds} s with exit code {draw.below(3)}:\n\n```"
        return Ask(opening, f"```\n\n{_go_on(draw)}", _log(draw), joiner="\n", frame="\n")
    opening = f"`read_file` took {seconds} s and returned `{code.new_name(draw)}.py`:\n\n```python"
    return Ask(opening, f"```\n\n{_go_on(draw)}", code.more(draw, "\n\n"), joiner="", frame="\n")


def _go_on(draw: Draw) -> str:
    return draw.choice(
        (
            "What does this tell you, and what is the next step? Two or three sentences.",
            "Go on with the next step and name the tool to call.",
            "Is the task done? If not, say briefly what is missing.",
            "State your current explanation in two sentences and how you would test it.",
        )
    )


def _log(draw: Draw) -> Iterator[str]:
    while True:
        name, rows = code.new_name(draw), draw.between(2, 9000)
        clock = f"{draw.below(24):02d}:{draw.below(60):02d}:{draw.below(60):02d}"
        yield draw.choice(
            (
                f"{clock} INFO {name}: {rows} rows in {draw.between(1, 900)} ms, {draw.below(40)} skipped",
                f"{clock} WARNING {name}: retry {draw.between(2, 9)} after {draw.between(100, 900)} ms",
                f"tests/test_{name}.py::test_{code.new_name(draw)} PASSED [{draw.between(1, 99):3d}%]",
                f"tests/test_{name}.py::test_{code.new_name(draw)} FAILED [{draw.between(1, 99):3d}%]",
                f"E       AssertionError: assert {rows} == {rows + draw.between(1, 9)}",
                f'  File "src/{name}.py", line {draw.between(3, 990)}, in {code.new_name(draw)}',
            )
        )

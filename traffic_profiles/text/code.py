"""Code to edit, complete and explain: functions of Python's own standard library, read from this interpreter.

Nothing of it is copied into the package. Every function is shown under a new name, so that no two seeds share a
prompt and no engine answers from memory. The text depends on the interpreter's minor version, and on nothing else.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw


@dataclass(frozen=True)
class Function:
    """One function or method, dedented, with the names it assigns."""

    name: str
    source: str
    locals: tuple[str, ...]


def edit(draw: Draw) -> Ask:
    """A function and an edit to make: the answer repeats most of the prompt, which a speculator likes."""
    shown = _renamed(draw)
    order = draw.choice(_words("edits")).format(local=draw.choice(shown.locals or (shown.name,)), new=_new_name(draw))
    return _listing(draw, f"Here is code from our module `{_new_name(draw)}.py`:", shown, f"In `{shown.name}`: {order}")


def explain(draw: Draw) -> Ask:
    """Code and a question about it."""
    shown = _renamed(draw)
    question = draw.choice(_words("questions")).format(new=_new_name(draw))
    return _listing(draw, f"I am reviewing `{_new_name(draw)}.py`:", shown, f"Look at `{shown.name}`. {question}")


def complete(draw: Draw) -> Ask:
    """A file up to the cursor: what an editor sends for completion."""
    last = _renamed(draw)
    lines = last.source.splitlines()
    name = _new_name(draw)
    opening = (
        f"Complete the Python file `{name}.py`. Answer with the code that follows the cursor and nothing else.\n\n"
        f"```python\n# {name}.py"
    )
    return Ask(opening, "\n".join(lines[: max(1, len(lines) // 3)]), _more(draw), joiner="\n\n", frame="\n\n")


@cache
def functions() -> tuple[Function, ...]:
    """Every function of 4 to 60 lines in the listed modules, in a fixed order.

    Raises FileNotFoundError where the interpreter ships no source (a frozen or zipped standard library).
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [root / f"{module}.py" for module in _words("modules")]
    found = [
        function
        for path in paths
        if path.is_file()
        for function in _functions_of(path.read_text(encoding="utf-8", errors="replace"))
    ]
    if not found:
        raise FileNotFoundError(f"{root} holds no Python source; text 'code' reads the standard library's own files")
    return tuple(found)


def _functions_of(source: str) -> Iterator[Function]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        if not 4 <= (node.end_lineno or 0) - node.lineno <= 60:
            continue
        body = "\n".join(line[node.col_offset :].rstrip() for line in lines[node.lineno - 1 : node.end_lineno])
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        yield Function(node.name, body, tuple(sorted(names)))


def _listing(draw: Draw, introduction: str, shown: Function, request: str) -> Ask:
    opening = f"{introduction}\n\n```python\n{shown.source}"
    return Ask(opening, f"```\n\n{request}", _more(draw, "\n\n"), joiner="", frame="\n")


def _renamed(draw: Draw) -> Function:
    shown = draw.choice(functions())
    name = _new_name(draw)
    return replace(shown, name=name, source=re.sub(rf"\b{re.escape(shown.name)}\b", name, shown.source))


def _more(draw: Draw, before: str = "") -> Iterator[str]:
    while True:
        yield before + _renamed(draw).source


def _new_name(draw: Draw) -> str:
    nouns = _words("nouns")
    return f"{draw.choice(_words('verbs'))}_{draw.choice(nouns)}_{draw.choice(nouns)}{draw.between(2, 99)}"


@cache
def _words(key: str) -> tuple[str, ...]:
    with (Path(__file__).parent / "code.yaml").open(encoding="utf-8") as file:
        return tuple(yaml.safe_load(file)[key])

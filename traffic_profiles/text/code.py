"""Code to edit, complete and explain: functions of Python's own standard library, read from this interpreter.

Nothing of it is copied into the package. Every function is shown under a new name, so that no two seeds share a
prompt and no engine answers from memory. The text depends on the interpreter's minor version, and on nothing else.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw


@dataclass(frozen=True)
class Function:
    """One function or method, dedented, under its new name."""

    name: str
    source: str


def edit(draw: Draw) -> Ask:
    """A function and an edit to make: the answer repeats most of the prompt, which a speculator likes."""
    shown = renamed(draw)
    local = draw.choice(_assigned(shown.source) or [shown.name])
    order = draw.choice(_words("edits")).format(local=local, new=new_name(draw))
    return _listing(draw, f"Here is code from our module `{new_name(draw)}.py`:", shown, f"In `{shown.name}`: {order}")


def explain(draw: Draw) -> Ask:
    """Code and a question about it."""
    shown = renamed(draw)
    question = draw.choice(_words("questions")).format(new=new_name(draw))
    return _listing(draw, f"I am reviewing `{new_name(draw)}.py`:", shown, f"Look at `{shown.name}`. {question}")


def complete(draw: Draw) -> Ask:
    """A file up to the cursor: what an editor sends for completion."""
    last = renamed(draw)
    lines = last.source.splitlines()
    name = new_name(draw)
    opening = (
        f"Continue `{name}.py` at the cursor. Answer with the code that follows and nothing else.\n\n"
        f"```python\n# {name}.py"
    )
    return Ask(opening, "\n".join(lines[: max(1, len(lines) // 3)]), more(draw), joiner="\n\n", frame="\n\n")


@cache
def _modules() -> tuple[Path, ...]:
    """Files of the listed modules that this interpreter has, in a fixed order.

    Raises FileNotFoundError where it ships no source (a frozen or zipped standard library).
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = tuple(path for path in (root / f"{module}.py" for module in _words("modules")) if path.is_file())
    if not found:
        raise FileNotFoundError(
            f"{root} holds no Python source, and text 'code' reads the standard library's own files"
        )
    return found


@cache
def _functions(path: Path) -> tuple[str, ...]:
    """Sources of the module's functions and methods of 4 to 60 lines, dedented."""
    source = path.read_text(encoding="utf-8", errors="replace")
    lines = source.splitlines()
    return tuple(
        "\n".join(line[node.col_offset :].rstrip() for line in lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("__")
        and 4 <= (node.end_lineno or 0) - node.lineno <= 60
    )


def _assigned(source: str) -> list[str]:
    """Names that the function assigns."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a text block in it may reach further left than the function
        return []
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return sorted({node.id for node in names if isinstance(node.ctx, ast.Store)})


def _listing(draw: Draw, introduction: str, shown: Function, request: str) -> Ask:
    opening = f"{introduction}\n\n```python\n{shown.source}"
    return Ask(opening, f"```\n\n{request}", more(draw, "\n\n"), joiner="", frame="\n")


def renamed(draw: Draw) -> Function:
    """A function of the standard library under a new name."""
    sources: tuple[str, ...] = ()
    while not sources:
        sources = _functions(draw.choice(_modules()))
    source = draw.choice(sources)
    old, new = source.split("def ", 1)[1].split("(", 1)[0], new_name(draw)
    return Function(new, re.sub(rf"\b{re.escape(old)}\b", new, source))


def more(draw: Draw, before: str = "") -> Iterator[str]:
    """Functions without end, each after `before`."""
    while True:
        yield before + renamed(draw).source


def new_name(draw: Draw) -> str:
    """An identifier such as merge_ledger_column17."""
    nouns = _words("nouns")
    return f"{draw.choice(_words('verbs'))}_{draw.choice(nouns)}_{draw.choice(nouns)}{draw.between(2, 99)}"


@cache
def _words(key: str) -> tuple[str, ...]:
    with (Path(__file__).parent / "code.yaml").open(encoding="utf-8") as file:
        return tuple(yaml.safe_load(file)[key])

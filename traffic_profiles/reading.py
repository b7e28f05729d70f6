"""Reading a profile's YAML, and saying in one sentence what is wrong with it. A profile is hostile input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from traffic_profiles.shape import ProfileError

MAX_BYTES = 65_536
MAX_DEPTH = 12


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases (a few lines of them expand without bound), repeated keys and deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not used here", problem_mark=self.get_mark())
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if (name := str(key.value)) in seen:
                raise yaml.MarkedYAMLError(problem=f"key {name!r} appears twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file; ProfileError when it is unreadable, too large, or not plain YAML."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ProfileError(f"{path} is larger than {MAX_BYTES // 1024} KiB: that is not a profile.")
        loaded = yaml.load(data.decode("utf-8"), Loader=_PlainLoader)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, RecursionError):
        raise ProfileError(f"{path} is not UTF-8 YAML that can be read.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ProfileError(f"{path}{line}: {getattr(error, 'problem', None) or 'not valid YAML'}.") from None
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ProfileError(f"{path} must hold keys such as name, text, isl, osl and concurrency.")
    return loaded


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean A or B?` when something is close, otherwise `; known: ...`."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else f"; known: {', '.join(names)}."


def sentence(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """The first problem of a validation as one sentence: file, key, what is allowed.

    Unknown keys come first: a misspelt key is the reason why another one is missing.
    """
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    key = ".".join(path) or "profile"
    more = f" ({error.error_count() - 1} more after this one)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{where}: key {key!r} is not known{near(path[-1], _fields(model, path[:-1]))}{more}"
    if first["type"] == "missing":
        return f"{where}: key {key!r} is missing; see `enginegate profiles show chat-steady` for an example.{more}"
    return f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}.{more}"


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Names allowed in the part of the model that the path leads to."""
    for part in path:
        field = model.model_fields.get(part)
        inner = _models(field.annotation) if field else []
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for arg in get_args(annotation) for found in _models(arg)]

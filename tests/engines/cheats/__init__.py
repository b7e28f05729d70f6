"""The catalogue of dishonest engines: one behaviour a class, the check that must name it beside it."""

from __future__ import annotations

from inspect import isclass

from tests.engines import bugs, honest
from tests.engines.cheats import answers, combined, memory, service, timing, weights
from tests.engines.stream import Engine

# Rows of docs/threat-model.md that no HTTP endpoint can be caught at, and why there is no engine for them.
UNCOMMITTABLE = {
    38: "bytes do not say which machine made them; needs the engine's network and the GPU's counters",
    40: "whoever can write the judge's files can write the verdict; needs access to the judge's machine",
}


def cheats() -> dict[str, type[Engine]]:
    """Every dishonest engine by name."""
    found = [c for m in (answers, timing, service, memory, weights, combined) for c in vars(m).values() if isclass(c)]
    return {c.name: c for c in found if issubclass(c, Engine) and c is not Engine}


def catalogue() -> dict[str, type[Engine]]:
    """Every engine by name: honest ones, cheats, bugs."""
    return honest.engines() | cheats() | bugs.engines()

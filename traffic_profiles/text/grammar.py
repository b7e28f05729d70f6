"""Sentences from templates: `{city}` draws from a list, `{3-40}` a number, `{a|b}` one of the words.

A grammar file (one YAML a language or genre) holds `lists` and `scenarios`. A scenario has `let` (names bound
once for the whole prompt, so that the same person or place comes back), `ask` (how the prompt opens), `detail`
(sentences of material, drawn without end) and `close` (the request itself).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from traffic_profiles.text.draw import Draw

_SLOT = re.compile(r"\{([^{}]+)\}")
_RANGE = re.compile(r"^(\d+)-(\d+)(?:x(\d+))?$")


@dataclass(frozen=True)
class Scenario:
    """One kind of thing a person asks."""

    ask: tuple[str, ...]
    detail: tuple[str, ...]
    close: tuple[str, ...]
    reply: tuple[str, ...] = ()
    let: Mapping[str, str] = field(default_factory=dict)
    system: str = ""


@dataclass(frozen=True)
class Grammar:
    """A language or genre: its word lists and its scenarios."""

    lists: Mapping[str, tuple[str, ...]]
    scenarios: tuple[Scenario, ...]
    joiner: str = " "

    def scene(self, draw: Draw) -> Scene:
        """One scenario with its names bound."""
        scenario = draw.choice(self.scenarios)
        bound: dict[str, str] = {}
        for name, source in scenario.let.items():
            bound[name] = self._fill(source if "{" in source else f"{{{source}}}", draw, bound)
        return Scene(self, scenario, bound)

    def _fill(self, template: str, draw: Draw, bound: Mapping[str, str]) -> str:
        return _SLOT.sub(lambda match: self._slot(match[1], draw, bound), template)

    def _slot(self, slot: str, draw: Draw, bound: Mapping[str, str]) -> str:
        if slot in bound:
            return bound[slot]
        if slot in self.lists:
            return self._fill(draw.choice(self.lists[slot]), draw, bound)
        if span := _RANGE.match(slot):
            low, high, step = int(span[1]), int(span[2]), int(span[3] or 1)
            return str(low + step * draw.below((high - low) // step + 1))
        if "|" in slot:
            return self._fill(draw.choice(slot.split("|")), draw, bound)
        raise KeyError(slot)


@dataclass(frozen=True)
class Scene:
    """A scenario in one telling: the same names throughout."""

    grammar: Grammar
    scenario: Scenario
    bound: Mapping[str, str]

    def say(self, templates: tuple[str, ...], draw: Draw) -> str:
        """One of the templates, filled; empty when there are none."""
        return self.grammar._fill(draw.choice(templates), draw, self.bound) if templates else ""

    def details(self, draw: Draw) -> Iterator[str]:
        """Sentences of material without end: every template once before any comes back."""
        while self.scenario.detail:
            for template in draw.sample(self.scenario.detail, len(self.scenario.detail)):
                yield self.grammar._fill(template, draw, self.bound)


@cache
def load_grammar(name: str) -> Grammar:
    """The grammar of that name from this folder."""
    with (Path(__file__).parent / f"{name}.yaml").open(encoding="utf-8") as file:
        raw: dict[str, Any] = yaml.safe_load(file)
    lists = {key: tuple(words) for key, words in raw["lists"].items()}
    scenarios = tuple(_scenario(entry) for entry in raw["scenarios"])
    return Grammar(lists, scenarios, raw.get("joiner", " "))


def _scenario(entry: dict[str, Any]) -> Scenario:
    return Scenario(
        ask=tuple(entry["ask"]),
        detail=tuple(entry.get("detail", ())),
        close=tuple(entry.get("close", ())),
        reply=tuple(entry.get("reply", ())),
        let=entry.get("let", {}),
        system=entry.get("system", ""),
    )

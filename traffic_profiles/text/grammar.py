"""Sentences from templates: `{city}` draws from a list, `{3-40}` a number, `{a|b}` one of the words.

A grammar file (one YAML a language or genre) holds `lists` and `scenarios`. A scenario has `let` (names bound
once for the whole prompt, so that the same person or place comes back), `ask` (how the prompt opens), `detail`
(sentences of material, drawn without end), `close` (the request itself) and `reply` (what an assistant answered).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from traffic_profiles.text.draw import Draw

_SLOT = re.compile(r"\{([^{}]+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio])")  # a archivist -> an archivist
_RANGE = re.compile(r"^(\d+)-(\d+)(?:x(\d+))?$")


class Bridge(str):
    """A sentence that changes the subject: what follows it does not belong to what came before."""

    __slots__ = ()


@dataclass(frozen=True)
class Scenario:
    """One kind of thing a person asks."""

    ask: tuple[str, ...]
    detail: tuple[str, ...]
    close: tuple[str, ...]
    reply: tuple[str, ...] = ()
    let: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grammar:
    """A language or genre: its word lists and its scenarios."""

    lists: Mapping[str, tuple[str, ...]]
    scenarios: tuple[Scenario, ...]
    joiner: str = " "
    bridge: tuple[str, ...] = ()

    def scene(self, draw: Draw, after: Scenario | None = None) -> Scene:
        """One scenario with its names bound, another than `after` where there is one."""
        scenario = draw.choice([one for one in self.scenarios if one is not after] or self.scenarios)
        bound: dict[str, str] = {}
        for name, source in scenario.let.items():
            bound[name] = self.fill(f"{{{source}}}", draw, bound)
        return Scene(self, scenario, bound)

    def fill(self, template: str, draw: Draw, bound: Mapping[str, str] = MappingProxyType({})) -> str:
        """The template with every slot drawn, the innermost first."""
        while _SLOT.search(template):
            template = _SLOT.sub(lambda match: self._slot(match[1], draw, bound), template)
        return _ARTICLE.sub(r"\1n ", template)

    def _slot(self, slot: str, draw: Draw, bound: Mapping[str, str]) -> str:
        if slot in bound:
            return bound[slot]
        if slot in self.lists:
            return draw.choice(self.lists[slot])
        if span := _RANGE.match(slot):
            low, high, step = int(span[1]), int(span[2]), int(span[3] or 1)
            return str(low + step * draw.below((high - low) // step + 1))
        if "|" in slot:
            return draw.choice(slot.split("|"))
        raise KeyError(slot)


@dataclass(frozen=True)
class Scene:
    """A scenario in one telling: the same names throughout."""

    grammar: Grammar
    scenario: Scenario
    bound: Mapping[str, str]

    def say(self, template: str, draw: Draw) -> str:
        """The template with the scene's names."""
        return self.grammar.fill(template, draw, self.bound)

    def details(self, draw: Draw) -> Iterator[str]:
        """Sentences of material without end: every template once before any comes back.

        Where the grammar has `bridge` sentences a person would sooner change the subject than repeat himself: after
        one round comes a bridge, another scene, and its details.
        """
        scene = self
        while scene.scenario.detail:
            for template in draw.sample(scene.scenario.detail, len(scene.scenario.detail)):
                yield scene.say(template, draw)
            if self.grammar.bridge:
                scene = self.grammar.scene(draw, after=scene.scenario)
                opening = scene.say(draw.choice(scene.scenario.ask), draw)
                yield Bridge(f"{draw.choice(self.grammar.bridge)}{self.grammar.joiner}{opening}")


@cache
def load_grammar(name: str) -> Grammar:
    """The grammar of that name from this folder."""
    with (Path(__file__).parent / f"{name}.yaml").open(encoding="utf-8") as file:
        raw: dict[str, Any] = yaml.safe_load(file)
    lists = {key: tuple(words) for key, words in raw["lists"].items()}
    scenarios = tuple(_scenario(entry) for entry in raw["scenarios"])
    return Grammar(lists, scenarios, raw.get("joiner", " "), tuple(raw.get("bridge", ())))


def _scenario(entry: dict[str, Any]) -> Scenario:
    return Scenario(
        ask=tuple(entry["ask"]),
        detail=tuple(entry.get("detail", ())),
        close=tuple(entry.get("close", ())),
        reply=tuple(entry.get("reply", ())),
        let=entry.get("let", {}),
    )

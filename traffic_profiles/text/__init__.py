"""Text that is text: real language by stratum, written for enginegate or read from this Python's own files.

`write(stratum, draw)` gives an Ask. Every stratum is unbounded by seed: names, numbers and the choice and order of
sentences are drawn, so two seeds do not meet in a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from traffic_profiles.text import code
from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.grammar import Scene, load_grammar

GRAMMARS = ("en-chat", "creative", "maths")


def told(grammar: str, draw: Draw) -> Ask:
    """A prompt from a grammar file: opening, details, the request; replies and follow-ups where it has them."""
    scene = load_grammar(grammar).scene(draw)
    scenario = scene.scenario
    return Ask(
        opening=scene.say(scenario.ask, draw),
        closing=scene.say(scenario.close, draw),
        units=scene.details(draw),
        joiner=scene.grammar.joiner,
        frame=scene.grammar.joiner,
        replies=_replies(scene, draw),
        follow_ups=iter(draw.sample([scene.say((close,), draw) for close in scenario.close], len(scenario.close))),
    )


def _replies(scene: Scene, draw: Draw) -> Iterator[str]:
    """Assistant turns of two to five sentences each."""
    while scene.scenario.reply:
        sentences = draw.sample(scene.scenario.reply, draw.between(2, 5))
        yield " ".join(scene.say((sentence,), draw) for sentence in sentences)


STRATA: Mapping[str, Callable[[Draw], Ask]] = {
    **{name: partial(told, name) for name in GRAMMARS},
    "code": code.edit,
    "code-review": code.explain,
    "code-completion": code.complete,
}


def system_prompt(draw: Draw) -> Ask:
    """House rules of a service, as long as one likes: the prefix that prompts share."""
    ask = told("system", draw)
    return Ask(ask.opening, "", ask.units, joiner="\n", frame="\n")

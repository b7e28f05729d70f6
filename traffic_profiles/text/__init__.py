"""Text that is text: real language by stratum, written for enginegate or read from this Python's own files.

`STRATA[name](draw)` gives an Ask. Every stratum is unbounded by seed: names, numbers and the choice and order of
sentences are drawn, so two seeds do not meet in a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from traffic_profiles.text import agent, code, documents, records
from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.grammar import Scene, load_grammar

GRAMMARS = ("en-chat", "creative", "maths", "reasoning", "zh", "ja", "ru", "ar", "hi")


def told(grammar: str, draw: Draw) -> Ask:
    """A prompt from a grammar file: opening, details, the request; replies and follow-ups where it has them."""
    scene = load_grammar(grammar).scene(draw)
    scenario = scene.scenario
    first, *others = draw.sample(scenario.close, len(scenario.close)) or [""]
    return Ask(
        opening=scene.say(draw.choice(scenario.ask), draw),
        closing=scene.say(first, draw),
        units=scene.details(draw),
        joiner=scene.grammar.joiner,
        frame=scene.grammar.joiner,
        least=1,
        replies=_replies(scene, draw),
        follow_ups=(scene.say(other, draw) for other in others),
    )


def _replies(scene: Scene, draw: Draw) -> Iterator[str]:
    """Assistant turns of two to five sentences each."""
    while scene.scenario.reply:
        chosen = draw.sample(range(len(scene.scenario.reply)), draw.between(2, 5))
        yield " ".join(scene.say(scene.scenario.reply[at], draw) for at in sorted(chosen))


STRATA: Mapping[str, Callable[[Draw], Ask]] = {
    **{name: partial(told, name) for name in GRAMMARS},
    "code": code.edit,
    "code-review": code.explain,
    "code-completion": code.complete,
    "agent-task": agent.task,
    "tool-result": agent.tool_result,
    "json": records.call,
    "extract": records.extract,
    "rag": documents.question,
    "documents": documents.briefing,
    "manual": documents.manual,
}


def system_prompt(kind: str, draw: Draw) -> Ask:
    """What prompts share, as long as one likes: house rules, tool definitions, or the file being edited."""
    if kind == "tools":
        opening = f"You are agent {draw.between(100, 9999)}. You can call these functions:\n"
        return Ask(opening, "", records.definitions(draw), joiner="\n", frame="\n")
    if kind == "code":
        opening = f"You complete Python code. The user has `{code.new_name(draw)}.py` open as well:\n"
        return Ask(opening, "", code.more(draw), joiner="\n\n", frame="\n")
    rules = told("system", draw)
    return Ask(rules.opening, "", rules.units, joiner="\n", frame="\n")

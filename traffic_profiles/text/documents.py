"""Long documents with a question whose answer stands in them: reports written by grammar, and Python's own manual."""

from __future__ import annotations

import importlib
from functools import cache

from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.grammar import load_grammar

CHUNK_LETTERS = 1500


def question(draw: Draw) -> Ask:
    """Reports and a question about one sentence somewhere in them, to be answered briefly."""
    return _with_needle(draw, "Answer in one or two sentences and name the note you took it from.")


def briefing(draw: Draw) -> Ask:
    """Reports, one exact question, and a task that needs all of them: a summary, a ranking, a briefing."""
    scene = load_grammar("report").scene(draw)
    return _with_needle(draw, "Then: " + scene.say(draw.choice(scene.scenario.close), draw))


def manual(draw: Draw) -> Ask:
    """Parts of Python's language reference, read from this interpreter, and a question about one of them."""
    (topic, first), *rest = draw.sample(_manual(), 400)
    opening = f"From the Python manual, printout {draw.between(10_000, 999_999)}:\n\n{first}"
    request = draw.choice(
        (
            f"Explain what the first part, about {topic}, says, with a short example of your own.",
            f"List the rules that the first part, about {topic}, gives, one a line.",
            f"Which mistakes does the first part, about {topic}, help to avoid? Show one and its repair.",
        )
    )
    return Ask(opening, request, (text for _, text in rest), joiner="\n\n", frame="\n\n")


def _with_needle(draw: Draw, task: str) -> Ask:
    grammar = load_grammar("report")
    scene = grammar.scene(draw)
    who, part, site = (grammar.fill(f"{{{name}}}", draw) for name in ("person", "part", "site"))
    needle = grammar.fill(
        f"Note {{1000-9999}}. {who} keeps the key to the {part} at {site} in locker {{100-9999}}; "
        "the code is {10000-99999}, and it was changed on {weekday}.",
        draw,
    )
    return Ask(
        scene.say(draw.choice(scene.scenario.ask), draw),
        f"Question: in which locker does {who} keep the key to the {part} at {site}, and what is the code? {task}",
        scene.details(draw),
        joiner="\n\n",
        frame="\n\n",
        needle=needle,
        depth=draw.unit(),
    )


@cache
def _manual() -> tuple[tuple[str, str], ...]:
    """(topic, text) in parts of up to 1,500 letters, cut between paragraphs.

    Raises FileNotFoundError where the interpreter ships no `pydoc_data`.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise FileNotFoundError("this interpreter has no pydoc_data; text 'manual' reads it") from None
    parts: list[tuple[str, str]] = []
    for topic, text in sorted(topics.items()):
        part = ""
        for paragraph in text.strip().split("\n\n"):
            if part and len(part) + len(paragraph) > CHUNK_LETTERS:
                parts.append((topic, part))
                part = ""
            part = f"{part}\n\n{paragraph}" if part else paragraph
        parts.append((topic, part))
    return tuple(parts)

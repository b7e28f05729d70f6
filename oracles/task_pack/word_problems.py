"""Arithmetic in words and the output of short programs, with numbers drawn anew for every item."""

from __future__ import annotations

from oracles.task_pack import Item
from oracles.task_pack.draw import Draw

NAMES = (
    "Anna", "Ben", "Carla", "David", "Elena", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Klara", "Leo", "Marta",
)  # fmt: skip
THINGS = ("apples", "books", "coins", "pencils", "marbles", "stamps", "cards", "shells", "tickets", "buttons")
BOXES = ("boxes", "bags", "baskets", "jars", "crates")


def arithmetic(draw: Draw, index: int) -> Item:
    """One or two steps; the level is the template."""
    level = index % 5
    (a, b), thing, box = draw.sample(NAMES, 2), draw.pick(THINGS), draw.pick(BOXES)
    x, y, z = draw.between(3, 19), draw.between(2, 9), draw.between(2, 6)
    story, answer = (
        (f"{a} has {x} {thing}. {b} gives {a} {y} more. How many {thing} does {a} have now?", x + y),
        (f"{a} has {x + y} {thing} and gives {y} of them to {b}. How many {thing} does {a} have left?", x),
        (f"There are {y} {box} with {z} {thing} in each. How many {thing} are there in all?", y * z),
        (f"{a} has {x} {thing}, finds {y} more and then loses {z}. How many {thing} does {a} have now?", x + y - z),
        (f"{a} has {y} {box} with {z} {thing} in each, and {x} {thing} more. How many {thing} is that?", y * z + x),
    )[level]
    return Item(f"{story}\nAnswer with a number.", str(answer), f"template-{level}-{index // 5 // 4}", str(level + 1))


def code_output(draw: Draw, index: int) -> Item:
    """What a Python program of one to four lines prints: a whole number. Levels go from reading to running it."""
    level = index % 5
    x, y, z = draw.between(2, 40), draw.between(2, 9), draw.between(2, 5)
    values = [draw.between(1, 20) for _ in range(draw.between(3, 5))]
    program, answer = (
        (f"x = {x}\nprint(x)", x),
        (f"values = {values}\nprint(values[0])", values[0]),
        (f"values = {values}\nprint(max(values))", max(values)),
        (f"x = {y}\nprint(x + {z})", y + z),
        (f"total = {x}\nfor i in range({z}):\n    total = total + {y}\nprint(total)", x + z * y),
    )[level]
    question = f"What does this Python program print? Answer with the number only.\n\n{program}"
    return Item(question, str(answer), f"template-{level}-{index // 5 // 4}", str(level + 1))

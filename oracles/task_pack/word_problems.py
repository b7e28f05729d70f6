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


# Small models describe a program unless they have seen what is wanted.
WORKED = "Program:\na = 4\nprint(a + 9)\nOutput: 13\n\nProgram:\nitems = [7, 1, 3]\nprint(min(items))\nOutput: 1"


def code_output(draw: Draw, index: int) -> Item:
    """What a Python program of two to five lines prints: a whole number."""
    level = index % 5
    x, y, z = draw.between(2, 12), draw.between(2, 9), draw.between(2, 5)
    values = [draw.between(1, 20) for _ in range(draw.between(3, 5))]
    program, answer = (
        (f"x = {x}\nprint(x + {y})", x + y),
        (f"x = {x}\ny = {y}\nprint(x * y)", x * y),
        (f"values = {values}\nprint(len(values))", len(values)),
        (f"values = {values}\nprint(max(values))", max(values)),
        (f"total = {x}\nfor i in range({z}):\n    total = total + {y}\nprint(total)", x + z * y),
    )[level]
    question = f"What does the last Python program print?\n\n{WORKED}\n\nProgram:\n{program}\nOutput:"
    return Item(question, str(answer), f"template-{level}-{index // 5 // 4}", str(level + 1))

"""What stands where in a long prompt: key-value lists and needles at five depths and several lengths."""

from __future__ import annotations

from oracles.task_pack import Item
from oracles.task_pack.draw import Draw

DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)
PAIRS = (6, 12, 24, 48)
SENTENCES = (6, 14, 28, 50)
WORDS = (
    "anchor", "barrel", "candle", "donkey", "engine", "feather", "garden", "hammer", "island", "jacket", "kettle",
    "ladder", "mirror", "needle", "orange", "pepper", "quarry", "ribbon", "saddle", "tunnel", "umbrella", "violin",
    "window", "yogurt", "zipper", "basket", "cactus", "drawer", "elbow", "fountain", "guitar", "helmet", "igloo",
    "jungle", "kitten", "lantern", "magnet", "napkin", "olive", "parrot", "rabbit", "scarf", "turtle", "uniform",
    "valley", "walnut", "blanket", "canyon", "desert", "eagle", "falcon", "goblet", "harbour", "insect", "jigsaw",
    "kernel", "lemon", "meadow", "nugget", "oyster", "pillow", "quiver", "rocket", "sponge", "thimble", "urchin",
    "velvet", "wagon", "bamboo", "cherry", "dragon", "ember", "forest", "glacier", "honey", "ivory", "jasmine",
    "koala", "lizard", "mango", "noodle", "otter", "pebble", "radish", "salmon", "tulip", "vanilla", "willow",
)  # fmt: skip
PLACES = ("harbour", "library", "station", "garden", "archive", "bakery", "workshop", "theatre", "museum", "laundry")
FILLER = (
    "The rain had stopped by noon and the street began to dry.",
    "A cart with vegetables stood in front of the old shop.",
    "Two children were counting the swallows on the wire.",
    "Nobody had opened the blue shutters for many years.",
    "The clock on the tower was slow, and everybody knew it.",
    "An old man read his newspaper under the lime tree.",
    "From the river came the smell of wet wood and tar.",
    "The teacher had promised a story and kept the promise.",
    "Late in the afternoon the wind turned to the west.",
    "A grey cat slept on the wall beside the gate.",
    "The baker swept the step and went back inside.",
    "Somewhere a piano was played, always the same four bars.",
)


def key_value(draw: Draw, index: int) -> Item:
    """A list of words with numbers; the asked one stands at one of five depths."""
    depth, size = DEPTHS[index % 5], PAIRS[index // 5 % 4]
    keys = draw.sample(WORDS, size)
    values = [str(draw.between(100, 999)) for _ in keys]
    asked = min(size - 1, int(depth * size))
    rows = "\n".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    question = f"{rows}\n\nWhat is the number of {keys[asked]} in this list? Answer with the number only."
    return Item(question, values[asked], f"{index}", f"{size} pairs at {depth:.0%}")


def needles(draw: Draw, index: int) -> Item:
    """A text with three codes in it, each at a depth of its own; one is asked for, in every third item two."""
    depth, size = DEPTHS[index % 5], SENTENCES[index // 5 % 4]
    places = draw.sample(PLACES, 3)
    codes = [str(draw.between(1000, 9999)) for _ in places]
    others = draw.sample([d for d in DEPTHS if d != depth], 2)
    lines = [draw.pick(FILLER) for _ in range(size)]
    told = sorted(zip((depth, *others), places, codes, strict=True), reverse=True)
    for where, place, code in told:
        lines.insert(round(where * size), f"The door code of the {place} is {code}.")
    text = " ".join(lines)
    if index % 3 == 2:
        ask = f"What are the door codes of the {places[0]} and of the {places[1]}, in this order?"
        return Item(f"{text}\n\n{ask}", f"{codes[0]} {codes[1]}", f"{index}", f"two of three, {size} sentences")
    ask = f"What is the door code of the {places[0]}?"
    return Item(f"{text}\n\n{ask}", codes[0], f"{index}", f"{size} sentences at {depth:.0%}")

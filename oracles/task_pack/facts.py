"""Facts in minimal pairs: two questions that differ in one word and have different answers.

Half are facts of the world, half are told in the question itself, so that a sealed split can be drawn without end.
"""

from __future__ import annotations

from oracles.task_pack import Item
from oracles.task_pack.draw import Draw

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Portugal": "Lisbon", "Italy": "Rome",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Hungary": "Budapest", "Ireland": "Dublin",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Belgium": "Brussels",
    "Russia": "Moscow", "Ukraine": "Kyiv", "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Japan": "Tokyo", "China": "Beijing", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta",
    "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Australia": "Canberra",
    "Iran": "Tehran", "Iraq": "Baghdad", "Nepal": "Kathmandu", "Romania": "Bucharest", "Bulgaria": "Sofia",
    "Serbia": "Belgrade", "Croatia": "Zagreb", "Iceland": "Reykjavik", "Cyprus": "Nicosia", "Tunisia": "Tunis",
}  # fmt: skip
ASKING = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "The government of {} sits in its capital. What is the capital of {}?",
    "A traveller wants to see the capital of {}. Which city is that?",
)
NAMES = ("Ada", "Boris", "Clara", "Dmitri", "Edith", "Frank", "Gina", "Henry", "Ingrid", "Jacob", "Karin", "Louis")
OPPOSITES = (("older", "younger"), ("taller", "shorter"), ("faster", "slower"), ("richer", "poorer"))
COLOURS = ("Red", "Blue", "Green", "Yellow", "Black", "White", "Brown", "Purple", "Orange", "Pink")
THINGS = ("door", "car", "hat", "boat", "lamp", "bag", "cup", "coat", "chair", "bicycle")


def minimal_pairs(draw: Draw, index: int) -> Item:
    """Items 2k and 2k+1 come from the same draws and differ in one word."""
    pair, second = divmod(index, 2)
    question, target, level = (_capital, _told_colour, _capital, _told_order)[pair % 4](draw, second)
    return Item(f"{question}\nAnswer with one word.", target, f"pair-{pair}", level)


def _capital(draw: Draw, second: int) -> tuple[str, str, str]:
    asking, countries = draw.pick(ASKING), draw.sample(sorted(CAPITALS), 2)
    country = countries[second]
    return asking.replace("{}", country), CAPITALS[country], "capital"


def _told_colour(draw: Draw, second: int) -> tuple[str, str, str]:
    things, colours = draw.sample(THINGS, 3), draw.sample(COLOURS, 3)
    told = ", ".join(f"the {thing} is {colour.lower()}" for thing, colour in zip(things, colours, strict=True))
    return f"{told.capitalize()}. What colour is the {things[second]}?", colours[second], "colour told"


def _told_order(draw: Draw, second: int) -> tuple[str, str, str]:
    names, words = draw.sample(NAMES, 2), draw.pick(OPPOSITES)
    return f"{names[0]} is {words[0]} than {names[1]}. Who is {words[second]}?", names[second], "order told"

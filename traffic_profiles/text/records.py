"""Structured text: records to extract and functions to call. Answers copy much of the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from traffic_profiles.text.ask import Ask
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.grammar import load_grammar


def extract(draw: Draw) -> Ask:
    """Notes with one record a line, to be turned into JSON, CSV or a table: repetitive and easy to check."""
    line, what, keys = draw.choice(_RECORDS)
    request = draw.choice(
        (
            f"Turn every line into a JSON object with the keys {', '.join(keys)}. Print one JSON array, nothing else.",
            f"Print this as CSV with the header {','.join(keys)}, in the same order, and nothing else.",
            f"Make a Markdown table with the columns {', '.join(keys)}. Copy the values exactly.",
            f"Repeat the list, sorted by {draw.choice(keys)}, in the same wording. Do not leave out any line.",
        )
    )
    opening = f"Here are {what} from list {_say('{A|B|C|D|E|F}-{1000-9999}', draw)}:\n\n{line(draw)}"
    return Ask(opening, f"\n{request}", _lines(line, draw), joiner="\n", frame="\n")


def orders(draw: Draw) -> Ask:
    """Orders without end and nothing else: a block that several prompts share."""
    return Ask(f"Orders, part {draw.between(100, 99999)}:", "", _lines(_order, draw), joiner="\n", frame="\n")


def call(draw: Draw) -> Ask:
    """Tool definitions and a request: the answer is one function call as JSON."""
    tools = draw.sample(_TOOLS, 2)
    wanted = draw.choice(tools)
    opening = (
        "You can call the functions below. Answer with one JSON object that has the keys name and arguments, "
        "and write nothing else.\n\n" + "\n".join(_schema(tool, draw) for tool in tools)
    )
    return Ask(opening, f"\n{_say(wanted[3], draw)}", definitions(draw), joiner="\n", frame="\n")


def _lines(line: Callable[[Draw], str], draw: Draw) -> Iterator[str]:
    while True:
        yield line(draw)


def definitions(draw: Draw) -> Iterator[str]:
    """Function definitions without end, one JSON object each."""
    while True:
        verb, noun = draw.choice(("list", "find", "update", "close", "export", "count")), draw.choice(_NOUNS)
        fields = dict.fromkeys(draw.sample(_FIELDS, draw.between(2, 4)), "string")
        yield _schema((f"{verb}_{noun}_{draw.between(2, 99)}", f"{verb.title()} {noun}.", fields, ""), draw)


def _schema(tool: tuple[str, str, dict[str, str], str], draw: Draw) -> str:
    name, description, fields, _ = tool
    properties = {key: {"type": kind} for key, kind in fields.items()}
    required = list(fields)[: draw.between(1, len(fields))]
    parameters = {"type": "object", "properties": properties, "required": required}
    return json.dumps({"name": name, "description": description, "parameters": parameters}, ensure_ascii=False)


def _say(template: str, draw: Draw) -> str:
    return load_grammar("report").fill(template, draw)


def _order(draw: Draw) -> str:
    return _say(
        "Order {10000-99999}: {person}, {city}, {2-40} x {material} at {3-98}.{10-95x5} EUR, "
        "due {2025-2027}-{10-12}-{10-28}",
        draw,
    )


def _visit(draw: Draw) -> str:
    return _say(
        "{person} visits {site} on {weekday} at {8-17}:{10-50x10} with {2-14} guests, badge {100-999}, host {person}",
        draw,
    )


def _stock(draw: Draw) -> str:
    return _say("Shelf {A|B|C|D}{10-99}: {part}, serial {100000-999999}, {2-80} pieces, checked by {person}", draw)


_RECORDS: tuple[tuple[Callable[[Draw], str], str, tuple[str, ...]], ...] = (
    (_order, "open orders", ("order", "customer", "city", "quantity", "item", "price_eur", "due")),
    (_visit, "visits", ("visitor", "site", "weekday", "time", "guests", "badge", "host")),
    (_stock, "stock entries", ("shelf", "part", "serial", "pieces", "checked_by")),
)
_NOUNS = ("orders", "visits", "invoices", "rooms", "parcels", "permits", "meters", "alerts")
_FIELDS = ("id", "city", "date", "status", "owner", "limit", "note", "amount_eur", "priority")
_TOOLS: tuple[tuple[str, str, dict[str, str], str], ...] = (
    (
        "book_room",
        "Reserve a meeting room.",
        {"city": "string", "people": "integer", "weekday": "string", "time": "string", "name": "string"},
        "Please book a room in {city} for {3-24} people on {weekday} at {8-17}:{10-50x10}, in the name of {person}.",
    ),
    (
        "create_work_order",
        "Open a work order for a broken part.",
        {"site": "string", "part": "string", "priority": "integer", "reported_by": "string"},
        "{person} reports that the {part} at {site} has stopped. Open a work order with priority {1-5}.",
    ),
    (
        "order_material",
        "Order material from a supplier.",
        {"material": "string", "kilograms": "number", "city": "string", "budget_eur": "number"},
        "We need {40-960x10} kilograms of {material} from {city} for at most {200-9800x100} euros.",
    ),
    (
        "convert_currency",
        "Convert an amount between two currencies.",
        {"amount": "number", "from": "string", "to": "string", "date": "string"},
        "How much are {120-98000} {EUR|USD|JPY|SEK|INR} in {GBP|CHF|NOK|BRL|KRW} on {1-28} {month} {2016-2025}?",
    ),
    (
        "send_message",
        "Send a short message to a colleague.",
        {"to": "string", "subject": "string", "body": "string"},
        "Tell {person} that {person} will be at {site} on {weekday} at {8-17}:{10-50x10} and needs the {part}.",
    ),
)

"""Text into JSON by a schema, and copying and editing in four scripts."""

from __future__ import annotations

import json

from oracles.task_pack import Item
from oracles.task_pack.draw import Draw

FIRST = ("Maria", "Tomas", "Aisha", "Viktor", "Lena", "Omar", "Nora", "Pavel", "Rosa", "Simon", "Yuki", "Emil")
LAST = ("Berger", "Costa", "Duran", "Eriksen", "Farkas", "Garcia", "Horvat", "Ivanov", "Jensen", "Keller")
CITIES = ("Lisbon", "Oslo", "Vienna", "Prague", "Dublin", "Athens", "Warsaw", "Zurich", "Porto", "Ghent")
JOBS = ("teacher", "baker", "nurse", "pilot", "farmer", "painter", "plumber", "lawyer", "driver", "cook")

# script -> words that are drawn into sentences: who, does, what, where
SCRIPTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "latin": (
        ("The old farmer", "My sister", "A young sailor", "The quiet student"),
        ("carried", "painted", "found", "repaired", "sold"),
        ("a wooden chair", "a red boat", "a broken lamp", "a heavy basket", "a small bell"),
        ("near the river", "in the market", "behind the school", "on the hill"),
    ),
    "cyrillic": (
        ("Старый рыбак", "Моя сестра", "Молодой врач", "Тихий ученик"),
        ("нашёл", "купил", "принёс", "продал", "забыл"),
        ("красную книгу", "новый стол", "старую лампу", "белый чемодан"),
        ("у реки", "на рынке", "за школой", "в саду"),
    ),
    "han": (
        ("老渔夫", "我的姐姐", "年轻的医生", "安静的学生"),
        ("找到了", "买了", "带来了", "卖掉了", "忘记了"),
        ("一本红书", "一张新桌子", "一盏旧灯", "一个白箱子"),
        ("在河边", "在市场", "在学校后面", "在花园里"),
    ),
    "arabic": (
        ("الصياد العجوز", "أختي الكبيرة", "الطبيب الشاب", "الطالب الهادئ"),
        ("وجد", "اشترى", "أحضر", "باع", "نسي"),
        ("كتابا أحمر", "طاولة جديدة", "مصباحا قديما", "حقيبة بيضاء"),
        ("قرب النهر", "في السوق", "خلف المدرسة", "في الحديقة"),
    ),
}


def json_record(draw: Draw, index: int) -> Item:
    """A sentence with two to four fields, and the object to make of it; one worked example comes first."""
    fields = 2 + index % 3
    example, asked = (_person(draw) for _ in range(2))
    keys = list(asked)[:fields]
    question = (
        f"Extract a JSON object with the keys {', '.join(keys)} from the text.\n\n"
        f"Text: {_told(example)}\nJSON: {_json(example, keys)}\n\nText: {_told(asked)}\nJSON:"
    )
    return Item(question, _json(asked, keys), f"{index}", f"{fields} fields")


def copy_edit(draw: Draw, index: int) -> Item:
    """Repeat a sentence, or repeat it with one word changed; the script changes from item to item."""
    script = list(SCRIPTS)[index % 4]
    who, does, what, where = (draw.pick(words) for words in SCRIPTS[script])
    words = (who, "" if script == "han" else " ", does, "" if script == "han" else " ", what)
    sentence = "".join(words) + ("" if script == "han" else " ") + where
    if index // 4 % 2 == 0:
        question = f"Repeat this sentence exactly and write nothing else:\n{sentence}"
        return Item(question, sentence, f"{script}-{index // 32}", f"copy {script}")
    new = draw.pick([word for word in SCRIPTS[script][2] if word != what])
    question = (
        f'In the sentence below, replace "{what}" with "{new}". Write the new sentence and nothing else.\n{sentence}'
    )
    return Item(question, sentence.replace(what, new), f"{script}-{index // 32}", f"edit {script}")


def _person(draw: Draw) -> dict[str, str | int]:
    name = f"{draw.pick(FIRST)} {draw.pick(LAST)}"
    return {"name": name, "age": draw.between(19, 88), "city": draw.pick(CITIES), "job": draw.pick(JOBS)}


def _told(person: dict[str, str | int]) -> str:
    return f"{person['name']} is {person['age']} years old, lives in {person['city']} and works as a {person['job']}."


def _json(person: dict[str, str | int], keys: list[str]) -> str:
    return json.dumps({key: person[key] for key in keys})

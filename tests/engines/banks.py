"""Which answers of which model the zoo's engines play, recorded once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.workload import request_body
from oracles.convert import write_reference_folder
from tests.engines.cheats import catalogue
from tests.engines.generate import record
from tests.engines.matrix import Entry
from tests.engines.recorded import Recorded, key_of, read_bank
from tests.engines.stream import Engine, Refusal, Request
from tests.engines.toy import Pace
from tests.engines.zoo import BASELINES, MODEL, PAIRS, Zoo

# As engines route to them: the reference's own weights, a quantisation that ruins them, one that does not.
QUANTISATIONS = {"claimed": "Q4_1", "cheaper": "Q4_0", "other-numerics": "Q8_0"}
# A gate compares a new engine with one that serves a good quantisation: honest candidates are at least as right.
SERVED_TODAY = "other-numerics"
# 32 tokens at 2 ms take 64 ms, AIPerf's turn between two answers 10 to 20: at a faster baseline it would not keep four
# requests in flight, and the gate would not judge speed (`kept-busy`, which looks at the baseline alone).
BASELINE_PACE = Pace(24, 0.0, 6.0, jitter=0.0, load_ms=0.0)
CANDIDATE_PACE = Pace(16, 0.0, 2.5, jitter=0.0, load_ms=0.0)


def sources(zoo: Zoo, entry: Entry) -> list[Any]:
    """The models that an engine can route to; a baseline has the one it serves."""
    baseline = entry.engine in BASELINES
    thinks = entry.engine in ("no-thinking", "baseline-thinks")
    pace = BASELINE_PACE if baseline else CANDIDATE_PACE
    roles = (SERVED_TODAY,) if baseline else tuple(QUANTISATIONS)
    return [Recorded(read_bank(_bank(zoo, role, entry.prompts)), zoo.tokenizer(), pace, thinks) for role in roles]


def record_banks(zoo: Zoo) -> None:
    """Ask the models everything that any engine will be asked; what is recorded already is not asked again."""
    for prompts in zoo.stores:
        rows = [row for pair in PAIRS for row in zoo.workload(pair, prompts) if row["kind"] != "warmup"]
        asked = [request_body(zoo.plan(prompts), row, MODEL, "chat") for row in rows]
        rewritten = [] if prompts else [body for engine in catalogue().values() for body in _rewritten(engine, asked)]
        for role, name in QUANTISATIONS.items():
            if prompts and role == "cheaper":
                continue  # others than the first are for honest engines
            bodies = asked + (rewritten if role == "claimed" else [])
            file = _bank(zoo, role, prompts)
            known = read_bank(file)
            if all(key_of(Request(body)) in known for body in bodies):
                continue
            print(f"decoding the answers of {name} to prompts {prompts}", file=sys.stderr, flush=True)
            record(_weights(zoo, name), bodies, file)


def _rewritten(engine: type[Engine], bodies: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What an engine asks its model in place of what it was asked."""
    if engine.rewrite is Engine.rewrite:
        return
    cheat = engine()
    for body in bodies:
        try:
            changed = cheat.rewrite(Request(body)).body
        except Refusal:
            continue
        if key_of(Request(changed)) != key_of(Request(body)):
            yield changed


def _weights(zoo: Zoo, name: str) -> Path:
    """A quantisation as a folder that can be decoded: its values, in BF16."""
    folder = zoo.models.reference if name == "Q4_1" else zoo.out / "models" / name
    if not (folder / "config.json").exists():
        write_reference_folder(zoo.models.gguf[name], folder)
    return folder


def _bank(zoo: Zoo, role: str, prompts: int) -> Path:
    return zoo.out / (f"answers-{role}-{prompts}.jsonl" if prompts else f"answers-{role}.jsonl")

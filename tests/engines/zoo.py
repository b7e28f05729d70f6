"""What all engines of the zoo are sent, and where everything of a matrix lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness import pipeline
from harness.cells import make_cells
from harness.demo_models import DemoModels, prepare_models
from harness.plan import Plan, make_plan
from harness.progress import silent
from harness.run_store import RunStore
from tests.engines.matrix import Entry

MODEL = "smollm2-135m"
PROFILES = Path(__file__).parent / "profiles"
PAIRS = (1, 2)
PORT = 18431
SEED = 11
# Weaker than transformers serve is no dialect: it takes neither fixed lengths nor a wish for token ids.
PLAIN = "transformers-serve"
BASELINES = ("baseline", "baseline-thinks")


@dataclass(frozen=True)
class Zoo:
    """One matrix. Every engine is sent prompts 0; further gates of an honest engine can have others."""

    out: Path
    models: DemoModels
    stores: dict[int, RunStore]
    live: bool = False

    def workload(self, pair: int, prompts: int = 0) -> list[dict[str, Any]]:
        """Rows of the pair's workload.parquet."""
        rows: list[dict[str, Any]] = pq.read_table(self.pair(pair, prompts) / "workload.parquet").to_pylist()
        return rows

    def pair(self, pair: int, prompts: int = 0) -> Path:
        """The pair's folder of a workload."""
        return self.stores[prompts].root / "pairs" / f"{pair:02d}"

    def visit(self, entry: Entry, pair: int) -> Path:
        """Where an engine's visit lies."""
        return self.out / "visits" / entry.label / f"{pair:02d}"

    def plan(self, prompts: int = 0, *, plain: bool = False, scored: bool = True) -> Plan:
        """The plan of one gate. plain: what transformers serve takes. scored: by the reference."""
        return _plan(self.models.reference, prompts, plain=plain or self.live, scored=scored, live=self.live)

    def tokenizer(self) -> Tokenizer:
        """The reference's tokenizer, which the judge counts by too."""
        return Tokenizer.from_file(str(self.stores[0].root / "tokenizer.json"))


def open_zoo(out: Path, prompts: Iterable[int] = (0,), *, live: bool = False) -> Zoo:
    """The zoo in a folder, with every workload made or found."""
    zoo = Zoo(out, prepare_models(), {}, live)
    for number in sorted({0, *prompts}):
        folder = out / (f"workload-{number}" if number else "workload")
        store = RunStore.open(folder) if (folder / "plan.yaml").exists() else RunStore.create(folder)
        plan = zoo.plan(number)
        pipeline.prepare(plan, store)
        for pair in PAIRS:
            pipeline.make_workload(plan, make_cells(plan), pair, store, silent)
        zoo.stores[number] = store
    return zoo


def _plan(reference: Path, prompts: int, *, plain: bool, scored: bool, live: bool) -> Plan:
    profiles = ["zoo", "zoo-stops"] + ([] if plain else ["zoo-fixed"])
    data = {
        "model": MODEL,
        "reference": {"path": str(reference)} if scored else None,
        "tokenizer": str(reference),
        "endpoints": {arm: {"url": f"http://127.0.0.1:{PORT}"} for arm in ("baseline", "candidate")},
        "profiles": [{"name": str(PROFILES / f"{name}.yaml")} for name in profiles],
        "policy": "no-regression",
        "pairs": [len(PAIRS)],
        "extra_inputs": {} if plain else {"return_token_ids": True},
        # Every family has to show in two pairs; a real gate has six and more, and the default share.
        "audit_share": 1.0,
        "audit_logprobs": not live,
        "floor_tokens": 512,
        "seed": SEED + prompts,
    }
    return make_plan(data, source="zoo", folder=PROFILES)

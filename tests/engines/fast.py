"""The fast gate: an engine's visit on the virtual clock, judged by the honesty oracles against a honest baseline."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from oracles.audit import judge_audit
from oracles.protocol import check_arm
from oracles.result import Finding
from tests.engines.dialects import DIALECTS
from tests.engines.prompts import SCHEMA, zoo_workload
from tests.engines.stream import Engine, Request
from tests.engines.toy import Pace, Toy, toy_tokenizer
from tests.engines.visit import body_of, visit

BASELINE = Pace(40, 0.05, 8)
CANDIDATE = Pace(30, 0.04, 6)
NEEDS_PIPELINE = {"token_margin", "ttft"}  # the BF16 reference and the gate's own speed criteria: not to be had here


class FastGate:
    """One workload, one baseline visit, and any number of candidates against it."""

    def __init__(self, seed: int = 1, load: int = 60, share: float = 0.9, thinks: bool = False) -> None:
        self.rows = zoo_workload(seed, load, share)
        self.workload = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        self.thinks = thinks
        counted = [Toy(toy_tokenizer()).count_prompt(Request(body_of(row, {}))) for row in self.rows]
        lines = [row["line"] for row in self.rows]
        self.prompt_tokens = pa.table({"pair": [1] * len(lines), "line": lines, "prompt_tokens": counted})
        self.baseline = self.visit(Engine(), "vllm", BASELINE, "a")

    def visit(self, engine: Engine, dialect: str, pace: Pace = CANDIDATE, numerics: str = "b") -> pa.Table:
        """The engine before the claimed toy and a cheaper one; requests.parquet as a table."""
        tokenizer = toy_tokenizer()
        toys = [
            Toy(tokenizer, pace, numerics=numerics, thinks=self.thinks),
            Toy(tokenizer, pace, weights="smaller", thinks=self.thinks),
            Toy(tokenizer, pace, numerics="c", thinks=self.thinks),
        ]
        extra = {"return_token_ids": True} if dialect == "vllm" else {}
        rows = self.rows if dialect != "transformers-serve" else [r for r in self.rows if not r["fixed_length"]]
        with TemporaryDirectory() as folder:
            return visit(engine, toys, DIALECTS[dialect], rows, Path(folder), tokenizer, extra=extra)

    def judge(self, candidate: pa.Table) -> tuple[Finding, ...]:
        """Findings of both honesty oracles on the candidate."""
        tokenizer = toy_tokenizer()
        protocol = check_arm(
            candidate,
            self.workload,
            "candidate",
            self.baseline,
            prompt_tokens=self.prompt_tokens,
            decode=lambda lists: [tokenizer.decode(list(ids)) for ids in lists],
        )
        audit = judge_audit(candidate, self.workload, "candidate", self.baseline)
        assert protocol.status == audit.status == "scored", protocol.reason + audit.reason
        return protocol.findings + audit.findings

    def broken(self, engine: Engine, dialect: str = "vllm") -> dict[str, Finding]:
        """What the engine is found guilty of."""
        findings = self.judge(self.visit(engine, dialect))
        return {finding.name: finding for finding in findings if finding.status == "broken"}


@cache
def fast_gate(thinks: bool = False) -> FastGate:
    """The gate that the zoo's unit tests share."""
    return FastGate(thinks=thinks)

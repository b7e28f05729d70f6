"""Take out one honesty check at a time and see that the zoo notices.

    python scripts/mutate_checks.py [CHECK ...]

A check whose removal no engine of the catalogue notices is either dead or untested; the script names it and exits 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracles import audit, evidence, protocol
from tests.engines.cheats import catalogue
from tests.engines.fast import fast_gate

JUDGE = evidence.judge


def without(check: str) -> None:
    """Make both oracles forget one check."""

    def judge(made: Sequence[evidence.Evidence], alpha: float = evidence.ALPHA) -> tuple[evidence.Finding, ...]:
        return JUDGE([evidence.unscored(e.name, "taken out") if e.name == check else e for e in made], alpha)

    protocol.judge = audit.judge = judge  # type: ignore[assignment]


def main() -> None:
    """Mutate, judge, report."""
    gate = fast_gate()
    honest = gate.judge(gate.visit(catalogue()["honest"](), "vllm"))
    checks = sys.argv[1:] or [finding.name for finding in honest]
    survivors = []
    for check in checks:
        without("")
        meant = [e for e in catalogue().values() if e.check == check]
        red = []
        for engine in meant:
            judged_by = fast_gate(engine.name == "no-thinking")
            visit = judged_by.visit(engine(), "vllm")
            without("")
            before = {f.name for f in judged_by.judge(visit) if f.status == "broken"}
            without(check)
            after = {f.name for f in judged_by.judge(visit) if f.status == "broken"}
            if check in before and check not in after:
                red.append(engine.name)
        print(f"without {check}: {', '.join(red) or 'NOTHING'} would no longer be named")
        survivors += [] if red else [check]
    print(f"mutations={len(checks)} noticed={len(checks) - len(survivors)} survivors={','.join(survivors) or 'none'}")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()

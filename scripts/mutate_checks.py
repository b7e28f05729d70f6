"""Take out one honesty check at a time and see that the zoo notices: docs/mutations.md.

    python scripts/mutate_checks.py [--page docs/mutations.md] [CHECK ...]

Every engine of the catalogue is judged once on the fast path, and what each check saw of it is kept; then one check
after another is taken out and all engines are judged again from what is left. A check whose removal turns no test of
the zoo red is either dead or untested: the script names it and exits 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracles import audit, evidence, protocol
from tests.engines.cheats import catalogue
from tests.engines.fast import NEEDS_PIPELINE, fast_gate

JUDGE = evidence.judge
Oracle = list[evidence.Evidence]


@dataclass(frozen=True)
class Mutation:
    """One check taken out. `red`: engines no longer named by it; `free`: engines nothing else accuses."""

    check: str
    red: tuple[str, ...]
    free: tuple[str, ...]


def seen_of(name: str) -> list[Oracle]:
    """What the checks of each oracle saw of one engine."""
    kept: list[Oracle] = []

    def judge(made: Sequence[evidence.Evidence], alpha: float = evidence.ALPHA) -> tuple[evidence.Finding, ...]:
        kept.append(list(made))
        return JUDGE(made, alpha)

    gate = fast_gate(name == "no-thinking")
    protocol.judge = audit.judge = judge
    try:
        gate.judge(gate.visit(catalogue()[name](), "vllm"))
    finally:
        protocol.judge = audit.judge = JUDGE
    return kept


def broken(oracles: Sequence[Oracle], without: str = "") -> set[str]:
    """Checks that accuse, with one of them taken out."""
    left = [[evidence.unscored(e.name, "taken out") if e.name == without else e for e in oracle] for oracle in oracles]
    return {finding.name for oracle in left for finding in JUDGE(oracle) if finding.status == "broken"}


def mutate(check: str, zoo: dict[str, list[Oracle]]) -> Mutation:
    """Take one check out and judge the whole zoo again."""
    meant = {name: oracles for name, oracles in zoo.items() if catalogue()[name].check == check}
    red = [n for n, oracles in meant.items() if check in broken(oracles) and check not in broken(oracles, check)]
    free = [n for n, oracles in zoo.items() if broken(oracles) and not broken(oracles, check)]
    return Mutation(check, tuple(red), tuple(free))


def page(mutations: Sequence[Mutation]) -> str:
    """docs/mutations.md."""
    lines = [
        "# Mutations: what the zoo notices when a check is taken out",
        "",
        "Made by `python scripts/mutate_checks.py` (fast path). A test of the zoo asks that an engine is named by its",
        "own check, so it turns red when that check is gone; the last column: engines that no other check accuses.",
        "",
        f"`{summary(mutations)}`",
        "",
        "| check taken out | tests that turn red | caught by nothing else |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {m.check} | {', '.join(m.red) or 'NONE'} | {', '.join(m.free) or 'none'} |" for m in mutations]
    return "\n".join(lines) + "\n"


def summary(mutations: Sequence[Mutation]) -> str:
    """The last line."""
    survivors = [m.check for m in mutations if not m.red]
    noticed = len(mutations) - len(survivors)
    return f"mutations={len(mutations)} noticed={noticed} survivors={','.join(survivors) or 'none'}"


def main() -> None:
    """Mutate, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help="default: every check of both honesty oracles")
    parser.add_argument("--page", type=Path, help="write the table here")
    args = parser.parse_args()
    honest = seen_of("honest")
    checks = args.checks or [e.name for oracle in honest for e in oracle]
    wanted = {n for n, e in catalogue().items() if e.check and e.check not in NEEDS_PIPELINE}
    if args.checks:
        wanted = {name for name in wanted if catalogue()[name].check in args.checks}
    zoo = {name: seen_of(name) for name in sorted(wanted)}
    mutations = [mutate(check, zoo) for check in checks]
    for m in mutations:
        print(f"without {m.check}: {', '.join(m.red) or 'NOTHING'} would no longer be named", flush=True)
    if args.page:
        args.page.write_text(page(mutations))
    print(summary(mutations))
    sys.exit(1 if any(not m.red for m in mutations) else 0)


if __name__ == "__main__":
    main()

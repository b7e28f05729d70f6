"""The detection matrix as data and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracles.evidence import detectable
from tests.engines.cheats.combined import AND


@dataclass(frozen=True)
class Entry:
    """Who is judged: an engine of the catalogue in one dialect; `run` tells repetitions apart."""

    engine: str
    dialect: str
    run: int = 0

    @property
    def label(self) -> str:
        """As folders and progress have it."""
        return f"{self.engine}-{self.dialect}-{self.run}"


@dataclass(frozen=True)
class Row:
    """One line of the matrix. `fired`: ids of the checks that accused it, the verdict's own order."""

    entry: Entry
    does: str
    expected: str
    fired: tuple[str, ...]
    verdict: str
    tokens: int
    seconds: float
    scored: bool = True  # by the reference

    @property
    def honest(self) -> bool:
        """Nothing must be said of it."""
        return not self.expected

    @property
    def neutralised(self) -> bool:
        """A trick that moves no number: there is nothing to accuse it of."""
        return self.expected == "ttft"

    @property
    def named(self) -> bool:
        """Was every check that must notice among those that did?"""
        return all(any(_is(expected, check) for check in self.fired) for expected in self.expected.split(AND))


def _is(expected: str, check: str) -> bool:
    """Is `protocol.loops` or `token_margin` or `ttft.p50@zoo/c4` the check that is meant by its bare name?"""
    return (
        check == expected
        or check.removeprefix("protocol.").removeprefix("audit.") == expected
        or (check.split(".", maxsplit=1)[0] == expected)
    )


def summary(rows: Sequence[Row]) -> str:
    """The last line: how many were caught, by the check named for them, and how many honest ones failed."""
    bad, honest = [r for r in rows if not r.honest and not r.neutralised], [r for r in rows if r.honest]
    caught, named = sum(r.verdict == "FAIL" for r in bad), sum(r.named for r in bad)
    failed = sum(r.verdict == "FAIL" for r in honest)
    return f"caught={caught}/{len(bad)} named={named}/{len(bad)} honest_failed={failed}/{len(honest)}"


def page(rows: Sequence[Row], *, fast: bool) -> str:
    """docs/zoo.md."""
    how = (
        "the honesty oracles alone on the virtual clock (`make zoo-fast`), without the engines that only the BF16 "
        "reference or the speed criteria can name"
        if fast
        else "AIPerf, sockets, the BF16 reference and the gate (`make zoo`). Engines play answers that three real "
        "models gave once; one AIPerf process drives several engines, each in its own phases, and all that were sent "
        "the same requests share one baseline visit. A whole verdict is made for each"
    )
    honest = [row for row in rows if row.honest]
    failed = sum(row.verdict == "FAIL" for row in honest)
    bound = detectable(len(honest), 1) if not failed else None
    unscored = sum(not row.scored for row in rows)
    if unscored:
        how += f" ({unscored} of them without the reference, which the check that must name them does not need)"
    lines = ["# The zoo: which engines the gate tells apart", "", f"Made by {how}.", "", f"`{summary(rows)}`", ""]
    if bound is not None:
        lines += [
            f"No honest engine failed in {len(honest)} gates: with 95 % confidence fewer than {bound:.1%} do.",
            "",
        ]
    if tricks := [row.entry.engine for row in rows if row.neutralised]:
        why = (
            "TTFT counts from the first content, so an early chunk without any gains nothing and nobody need be accused"
        )
        lines += [f"Not counted: {', '.join(tricks)}. {why} (tests/test_engines.py).", ""]
    lines += ["| engine | what it does | must be named by | was named by | verdict | tokens | s |", "|" + " --- |" * 7]
    for row in rows:
        expected = row.expected.split(AND)
        named = [check for check in row.fired if any(_is(one, check) for one in expected)]
        first = sorted(row.fired, key=lambda check: check not in named)[: max(1, len(named))]
        others = f" and {len(row.fired) - len(first)} more" if len(row.fired) > len(first) else ""
        was = ", ".join(first) + others if first else "nothing"
        lines.append(
            f"| {row.entry.engine} ({row.entry.dialect}) | {row.does} | {row.expected or 'nothing'} | {was} | "
            f"{row.verdict} | {row.tokens:,} | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"

"""The detection matrix as data and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from oracles.evidence import detectable
from tests.engines.cheats.combined import AND

Path = Literal["recorded", "live", "fast"]
Stage = Literal["record", "drive", "judge"]
STAGES: tuple[Stage, ...] = get_args(Stage)
HOW: dict[Path, str] = {
    "recorded": "Made by `make zoo`: AIPerf, sockets, the BF16 reference and the gate are real. Engines play, at a set "
    "pace, what three real models answered once to the very same prompts: the reference's own weights (`claimed`), "
    "Q4_0 of them (`cheaper`, ruined) and Q8_0 of them, which the baseline serves. One AIPerf process drives several "
    "engines, each in its own phases, and all that were sent the same requests share one baseline visit. A whole "
    "verdict is made for each",
    "live": "Made by `make zoo-live`: the same judge, and each engine is a proxy before llama.cpp servers that decode "
    "while AIPerf waits: Q4_1 (the reference's weights, which the baseline serves, too) and Q4_0 (`cheaper`), one "
    "thread each. Nothing is recorded and nothing is paced",
    "fast": "Made by `make zoo-fast`: the honesty oracles alone, on a toy model and a virtual clock, without the "
    "engines that only the BF16 reference or the speed criteria can name. No AIPerf, no sockets",
}
OTHERS: dict[Path, str] = {
    "recorded": "A handful of them before running llama.cpp servers: [zoo-live.md](zoo-live.md).",
    "live": "All of them, on recorded answers: [zoo.md](zoo.md).",
    "fast": "All of them, by the whole pipeline: [zoo.md](zoo.md).",
}
FAMILIES = ("honesty", "accuracy", "speed", "validity")


@dataclass(frozen=True)
class Entry:
    """Who is judged: an engine of the catalogue in one dialect; `run` tells repetitions apart.

    prompts: number of the workload it is sent; runs can share one.
    """

    engine: str
    dialect: str
    run: int = 0
    prompts: int = 0

    @property
    def label(self) -> str:
        """As folders and progress have it."""
        return f"{self.engine}-{self.dialect}-{self.run}"


@dataclass(frozen=True)
class Row:
    """One line of the matrix.

    Attributes:
        fired: ids of the checks that accused it, the verdict's own order.
        scored: by the reference.
        passed: family -> checks that passed and checks there are; empty on the fast path.
        standing: the first check that is no PASS, and why.
    """

    entry: Entry
    does: str
    expected: str
    fired: tuple[str, ...]
    verdict: str
    tokens: int
    seconds: float
    scored: bool = True
    passed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    standing: str = ""

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


def page(rows: Sequence[Row], path: Path) -> str:
    """docs/zoo.md, docs/zoo-live.md or docs/zoo-fast.md."""
    how, title = HOW[path], "# The zoo: which engines the gate tells apart"
    unscored = sum(not row.scored for row in rows)
    if unscored:
        how += f" ({unscored} of them without the reference, which the check that must name them does not need)"
    lines = [title, "", f"{how}. {OTHERS[path]}", "", f"`{summary(rows)}`", ""]
    if path != "fast":
        lines += ["Two pairs a gate: fewer than five are a quick run, so every verdict here is PROVISIONAL.", ""]
    honest = [row for row in rows if row.honest]
    lines += [
        *_bound(honest, fresh=path == "fast"),
        *_neutralised(rows),
        *_table_of_honest(honest),
        *_table_of_others(rows),
    ]
    return "\n".join(lines) + "\n"


def _bound(honest: Sequence[Row], *, fresh: bool) -> Iterator[str]:
    """How often an honest engine may fail all the same, over all gates and by dialect.

    fresh: every gate had prompts of its own.
    """
    if not honest or any(row.verdict == "FAIL" for row in honest):
        return
    told = f"No honest engine failed in {len(honest)} gates: with 95 % confidence fewer than "
    yield told + f"{detectable(len(honest), 1):.1%} do."
    runs = Counter(row.entry.dialect for row in honest if row.entry.engine == "honest")
    if min(runs.values(), default=0) > 1:
        each = ", ".join(f"{dialect} 0/{n} (under {detectable(n, 1):.1%})" for dialect, n in runs.items())
        sets = len({row.entry.prompts for row in honest})
        sent = "prompts of its own" if fresh else f"traffic of its own, {sets} set{'s' * (sets > 1)} of prompts in turn"
        yield f"The plain honest engine, every gate on {sent}: {each}."
        if not fresh:
            yield (
                "So the bound holds for what timing does to a verdict; what the words do is seen on as many texts as "
                "there are sets, and on 20 by `make zoo-fast`."
            )
    yield ""


def _neutralised(rows: Sequence[Row]) -> Iterator[str]:
    if tricks := [row.entry.engine for row in rows if row.neutralised]:
        why = "TTFT counts from the first content, so an early chunk without any gains nothing: nobody is accused"
        yield f"Not counted: {', '.join(tricks)}. {why} (tests/test_engines.py)."
        yield ""


def _table_of_honest(rows: Sequence[Row]) -> Iterator[str]:
    """Honest engines: what of each family passed. Repeated runs of one engine are one line."""
    if not rows:
        return
    yield "## Honest engines"
    yield ""
    yield "| engine | what it does | gates | verdicts | " + " | ".join(FAMILIES) + " | first check that is no PASS |"
    yield "|" + " --- |" * (5 + len(FAMILIES))
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.entry.engine, row.entry.dialect, row.entry.run > 0), []).append(row)
    for (engine, dialect, again), alike in groups.items():
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in Counter(row.verdict for row in alike).items())
        shares = [[row.passed[name] for row in alike if name in row.passed] for name in FAMILIES]
        cells = [f"{sum(p for p, _ in s)}/{sum(n for _, n in s)}" if s else "-" for s in shares]
        why = next((row.standing for row in alike if row.standing), "none").replace("|", "/")
        name = f"{engine} ({dialect})" + (", again" if again else "")
        yield f"| {name} | {alike[0].does} | {len(alike)} | {verdicts} | {' | '.join(cells)} | {why} |"
    yield ""


def _table_of_others(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Dishonest and broken engines"
    yield ""
    yield "| engine | what it does | must be named by | was named by | verdict | tokens | s |"
    yield "|" + " --- |" * 7
    for row in rows:
        if row.honest:
            continue
        expected = row.expected.split(AND)
        named = [check for check in row.fired if any(_is(one, check) for one in expected)]
        first = sorted(row.fired, key=lambda check: check not in named)[: max(1, len(named))]
        others = f" and {len(row.fired) - len(first)} more" if len(row.fired) > len(first) else ""
        was = ", ".join(first) + others if first else "nothing"
        yield (
            f"| {row.entry.engine} ({row.entry.dialect}) | {row.does} | {row.expected} | {was} | "
            f"{row.verdict} | {row.tokens:,} | {row.seconds:.0f} |"
        )

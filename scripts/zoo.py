"""The detection matrix: every engine of tests/engines before the judge, and docs/zoo.md from what came out.

    python scripts/zoo.py                     the whole matrix: AIPerf, the BF16 reference, one verdict an engine
    python scripts/zoo.py --honest-runs 20    19 further gates of the honest engine in each dialect, too
    python scripts/zoo.py --live              a handful of engines before running llama.cpp servers
    python scripts/zoo.py --sample 3          honest ones and a rotating sample of the others
    python scripts/zoo.py --fast              the honesty oracles alone on the virtual clock, no AIPerf, no model
    python scripts/zoo.py --only drive        one stage alone: record, drive (on a quiet machine) or judge

Engines play answers that three real models gave once (Q4_1, Q4_0 and Q8_0 of one small one; tests/engines/recorded.py)
at a set pace, and AIPerf drives several of them in one process, each in its own phases (tests/engines/parade.py). One
baseline visit serves all engines that were sent the same requests. What is in --out is not made again, so a run that
was killed goes on where it stopped.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import processes  # noqa: E402
from tests.engines.cheats import catalogue  # noqa: E402
from tests.engines.dialects import DIALECTS  # noqa: E402
from tests.engines.fast import NEEDS_PIPELINE, FastGate, fast_gate  # noqa: E402
from tests.engines.honest import engines as honest_engines  # noqa: E402
from tests.engines.matrix import STAGES, Entry, Row, page, summary  # noqa: E402

# One for each way in: weights, load, client, text, memory, timing and counting; before real servers (--live).
LIVE = (
    "honest",
    "smaller-model",
    "worse-under-load",
    "knows-the-benchmark",
    "letter-a",
    "memoises-responses",
    "three-at-once",
)


def main() -> None:
    """Judge the chosen engines, write the page, print the summary."""
    processes.leave_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", help="names from the catalogue; default: all")
    parser.add_argument("--fast", action="store_true", help="honesty oracles only, virtual clock")
    parser.add_argument("--live", action="store_true", help="before running llama.cpp servers, a handful of engines")
    parser.add_argument("--sample", type=int, help="so many dishonest engines, another choice every day")
    parser.add_argument("--honest-runs", type=int, default=1, help="gates of the honest engine in each dialect")
    parser.add_argument("--prompt-sets", type=int, default=1, help="workloads that those gates take in turn")
    parser.add_argument("--only", choices=STAGES, help="one stage; judge: those whose visits are in --out")
    parser.add_argument("--score-needed", action="store_true", help="the reference only where a named check needs it")
    parser.add_argument("--out", type=Path, help="default: runs/zoo, or runs/zoo-live")
    parser.add_argument("--page", type=Path, help="where the table goes; default: docs/zoo.md after a whole matrix")
    args = parser.parse_args()
    kind = "fast" if args.fast else "live" if args.live else "recorded"
    name = "zoo" if kind == "recorded" else f"zoo-{kind}"
    gates = args.honest_runs, args.prompt_sets
    chosen = chosen_live(args.engines or LIVE) if args.live else choose(args.engines, args.sample, *gates)
    if args.fast:
        rows = list(fast([entry for entry in chosen if catalogue()[entry.engine].check not in NEEDS_PIPELINE]))
    else:
        from tests.engines.gates import judge_all  # noqa: PLC0415 - torch and the models, which --fast does without

        out = (args.out or ROOT / "runs" / name).resolve()
        made = judge_all(chosen, out, only=args.only, score_all=not args.score_needed, live=args.live)
        rows = list(shown(made))
        if args.only in ("record", "drive"):
            return
    whole = not args.engines and args.sample is None
    if target := args.page or (ROOT / "docs" / f"{name}.md" if whole else None):
        target.write_text(page(rows, kind))
    print(summary(rows))
    sys.exit(0 if all(row.verdict != "FAIL" if row.honest else row.named or row.neutralised for row in rows) else 1)


def chosen_live(names: Sequence[str]) -> list[Entry]:
    """In llama.cpp's own dialect, which is what the upstreams speak."""
    return [Entry(name, "llama.cpp") for name in names]


def choose(names: list[str], sample: int | None, honest_runs: int, prompt_sets: int = 1) -> list[Entry]:
    """Who is judged, honest engines first."""
    honest = [Entry("honest", d, run, run % prompt_sets) for d in DIALECTS for run in range(honest_runs)]
    honest += [Entry(name, "vllm", 0) for name in honest_engines() if name != "honest"]
    others = [Entry(name, "vllm", 0) for name, engine in catalogue().items() if engine.check]
    others.sort(key=lambda entry: catalogue()[entry.engine].check not in NEEDS_PIPELINE)
    if names:
        return [entry for entry in honest + others if entry.engine in names]
    if sample is not None:
        day = int(time.time() // 86400)
        return [honest[day % len(honest)], *random.Random(day).sample(others, min(sample, len(others)))]
    return honest + others


def fast(chosen: list[Entry]) -> Iterator[Row]:
    """The fast path: a fresh workload for each further run of an honest engine, one shared by all others."""
    gates: dict[int, FastGate] = {}
    for entry in sorted(chosen, key=lambda one: one.run):
        began = time.monotonic()
        engine = catalogue()[entry.engine]
        if entry.run and entry.run not in gates:
            gates = {entry.run: FastGate(seed=1000 + entry.run)}
        gate = gates[entry.run] if entry.run else fast_gate(entry.engine == "no-thinking")
        visit = gate.visit(engine(), entry.dialect)
        broken = tuple(f.name for f in gate.judge(visit) if f.status == "broken")
        tokens = sum(visit["output_tokens"].drop_null().to_pylist())
        verdict = "FAIL" if broken else "not accused"
        row = Row(entry, engine.does, engine.check, broken, verdict, tokens, time.monotonic() - began)
        yield from shown([row])


def shown(rows: Iterable[Row]) -> Iterator[Row]:
    """Progress, a line an engine."""
    for row in rows:
        accused = ", ".join(row.fired) or "nothing"
        print(f"{row.entry.label}: {row.verdict}, {accused}, {row.seconds:.0f} s", file=sys.stderr, flush=True)
        yield row


if __name__ == "__main__":
    main()

"""The zoo's gates: drive parades through AIPerf, judge every engine by the pipeline's stages."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness import pipeline
from harness.cells import make_cells
from harness.progress import silent
from harness.run_store import RunStore, read_json, write_bytes, write_json
from harness.traffic import Visit, run_visit
from harness.verdict import Status, Verdict
from harness.workload import plan_pair
from tests.engines import banks, live_models
from tests.engines.cheats import catalogue
from tests.engines.dialects import DIALECTS
from tests.engines.matrix import Entry, Row, Stage
from tests.engines.parade import Parade, Turn, carve, parade_cells, without, write_parade
from tests.engines.remembering import remembering
from tests.engines.server import serving
from tests.engines.stream import Engine
from tests.engines.zoo import BASELINES, MODEL, PAIRS, PLAIN, PORT, Zoo, open_zoo

TURNS = 24  # engines in one AIPerf process
# Weights; speed, which is not judged of a run without accuracy; prompts by its template; ids by its words.
NEED_REFERENCE = {"token_margin", "ttft", "prompt-tokens", "ids-text"}
Sources = Callable[[Entry], list[Any]]


def judge_all(
    chosen: Sequence[Entry], out: Path, *, only: Stage | None = None, score_all: bool = True, live: bool = False
) -> Iterator[Row]:
    """Every chosen engine's row, made or found in `out`.

    only: one stage. Recording and driving make no rows; judging takes those that were driven before. score_all: the
    reference scores every engine, not just honest ones and those that a check must name which needs it. live: before
    llama.cpp, not recorded answers.
    """
    zoo = open_zoo(out, {entry.prompts for entry in chosen}, live=live)
    if only == "judge":
        yield from _judged(zoo, chosen, score_all)
        return
    if not live:
        banks.record_banks(zoo)
    if only == "record":
        return
    baselines = dict.fromkeys(_baseline(entry, live) for entry in chosen)
    with live_models.running(zoo) if live else nullcontext(lambda entry: banks.sources(zoo, entry)) as sources:
        for group in _groups(zoo, [*baselines, *chosen]):
            for pair in PAIRS:
                if waiting := [entry for entry in group if not _driven(zoo, entry, pair)]:
                    drive(zoo, waiting, pair, sources)
            if only is None:
                yield from _judged(zoo, [entry for entry in group if entry not in baselines], score_all)


def _groups(zoo: Zoo, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Those that were driven already, then the others by run, as many as one AIPerf process takes."""
    done = [entry for entry in entries if all(_driven(zoo, entry, pair) for pair in PAIRS)]
    pending = sorted((entry for entry in entries if entry not in done), key=lambda entry: entry.run)
    yield done
    for start in range(0, len(pending), TURNS):
        yield pending[start : start + TURNS]


def _judged(zoo: Zoo, entries: Sequence[Entry], score_all: bool) -> Iterator[Row]:
    for entry in entries:
        if all(_driven(zoo, one, pair) for one in (entry, _baseline(entry, zoo.live)) for pair in PAIRS):
            yield judge_one(zoo, entry, scored=score_all or _needs_reference(entry))


def _needs_reference(entry: Entry) -> bool:
    check = catalogue()[entry.engine].check
    return not check or check in NEED_REFERENCE


def _baseline(entry: Entry, live: bool) -> Entry:
    """The baseline that was sent the same: one that thinks for one that should, no fixed lengths for who refuses."""
    if live:
        return Entry("baseline", "llama.cpp", entry.run, entry.prompts)
    if entry.engine == "no-thinking":
        return Entry("baseline-thinks", "vllm", entry.run, entry.prompts)
    return Entry("baseline", PLAIN if entry.dialect == PLAIN else "vllm", entry.run, entry.prompts)


# --- traffic ---------------------------------------------------------------------------------------------------------


def _driven(zoo: Zoo, entry: Entry, pair: int) -> bool:
    return (zoo.visit(entry, pair) / "visit.json").exists()


def drive(zoo: Zoo, entries: Sequence[Entry], pair: int, sources: Sources) -> None:
    """One AIPerf process over all entries; each one's visit is cut out of it."""
    turns = [_turn(zoo, entry, pair, sources(entry)) for entry in entries]
    first = zoo.pair(pair, entries[0].prompts)
    (part,) = plan_pair(make_cells(zoo.plan(entries[0].prompts)), read_json(first / "pair.json"))
    warmup = (first / "requests.jsonl").read_bytes().splitlines()[: part.warmup_lines]
    with tempfile.TemporaryDirectory(dir=zoo.out, prefix="parade-") as folder:
        write_parade(Path(folder), warmup, turns)
        cells = replace(part, cells=parade_cells(turns))
        visit = Visit(zoo.plan(), "candidate", pair, 0, [cells], Path(folder) / "visit")
        print(f"pair {pair}: AIPerf drives {', '.join(t.name for t in turns)}", file=sys.stderr, flush=True)
        with serving(Parade(turns, len(warmup), MODEL), PORT):
            run_visit(visit, lambda _: None)
        for number, entry in enumerate(entries):
            shutil.rmtree(made := zoo.visit(entry, pair), ignore_errors=True)
            made.parent.mkdir(parents=True, exist_ok=True)
            role = "baseline" if entry.engine in BASELINES else "candidate"
            about = {"pair": pair, "role": role, "slot": 2 * (pair - 1) + (role == "candidate")}
            carve(visit.folder, turns, len(warmup), number, made, about)


def _turn(zoo: Zoo, entry: Entry, pair: int, models: list[Any]) -> Turn:
    folder = zoo.pair(pair, entry.prompts)
    (part,) = plan_pair(make_cells(zoo.plan(entry.prompts)), read_json(folder / "pair.json"))
    # Fixed lengths and token ids are refused by transformers serve: they are not asked, in either arm.
    kept = tuple(c for c in part.cells if entry.dialect != PLAIN or c.profile.stop != "fixed")
    names = {cell.name for cell in kept}
    lines = [row["line"] for row in zoo.workload(pair, entry.prompts) if row["cell"] in names]
    written = (folder / "requests.jsonl").read_bytes().splitlines()
    bodies = tuple(without(written[line], _unasked(entry)) for line in lines)
    baseline = entry.engine in BASELINES
    engine = Engine() if baseline else catalogue()[entry.engine]()
    dialect = DIALECTS["vllm" if baseline and not zoo.live else entry.dialect]
    return Turn(entry.label, engine, dialect, models, bodies, kept)


def _unasked(entry: Entry) -> tuple[str, ...]:
    return ("return_token_ids",) if entry.dialect == PLAIN else ()


# --- verdicts --------------------------------------------------------------------------------------------------------


def judge_one(zoo: Zoo, entry: Entry, *, scored: bool = True) -> Row:
    """The engine's verdict, by the pipeline's own stages from the raw exports on."""
    root = zoo.out / "gates" / entry.label
    baseline = _baseline(entry, zoo.live)
    began = time.monotonic()
    if not (root / "verdict.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        plan = zoo.plan(entry.prompts, plain=entry.dialect == PLAIN, scored=scored)
        store = RunStore.create(root)
        pipeline.prepare(plan, store)
        cells = make_cells(plan)
        for pair in PAIRS:
            _assemble(zoo, entry, baseline, pair, {cell.name for cell in cells})
            pipeline.measure_pair(plan, cells, pair, store, silent)
        # The floor is that of the baseline's words, which a further run of the same prompts does not change.
        said = f"{baseline.engine}-{baseline.dialect}-{baseline.prompts}"
        with remembering(zoo.out / "scores", zoo.out / "floors" / said):
            pipeline.score(plan, len(PAIRS), store, silent)
        pipeline.decide(plan, store, silent)
        write_json(root / "took.json", {"seconds": time.monotonic() - began})
    return _row(zoo, entry, root)


def _row(zoo: Zoo, entry: Entry, root: Path) -> Row:
    verdict = Verdict.model_validate(read_json(root / "verdict.json"))
    visits = [read_json(zoo.visit(entry, pair) / "visit.json") for pair in PAIRS]
    seconds = sum(v["ended_at"] - v["started_at"] for v in visits) + read_json(root / "took.json")["seconds"]
    engine = catalogue()[entry.engine]
    rows = [pq.read_table(root / "pairs" / f"{p:02d}" / "candidate" / "requests.parquet") for p in PAIRS]
    families = dict.fromkeys(check.family.value for check in verdict.checks)
    of = {name: [check for check in verdict.checks if check.family == name] for name in families}
    return Row(
        entry,
        engine.does,
        engine.check,
        tuple(check.check for check in verdict.checks if check.status is Status.FAIL),
        verdict.status.value,
        sum(sum(table["output_tokens"].drop_null().to_pylist()) for table in rows),
        seconds,
        scored=(root / "oracles" / "candidate" / "tokens.parquet").exists(),
        passed={name: (sum(c.status is Status.PASS for c in checks), len(checks)) for name, checks in of.items()},
        standing=next((f"{c.check}: {c.reason}" for c in verdict.checks if c.status is not Status.PASS), ""),
    )


def _assemble(zoo: Zoo, entry: Entry, baseline: Entry, pair: int, cells: set[str]) -> None:
    """One pair of a run directory: what was sent, and the two visits."""
    folder = zoo.out / "gates" / entry.label / "pairs" / f"{pair:02d}"
    folder.mkdir(parents=True)
    sent = zoo.pair(pair, entry.prompts)
    rows = [row for row in zoo.workload(pair, entry.prompts) if row["kind"] == "warmup" or row["cell"] in cells]
    bodies = (sent / "requests.jsonl").read_bytes().splitlines()
    asked = [without(bodies[row["line"]], _unasked(entry)) for row in rows]
    write_bytes(folder / "requests.jsonl", b"".join(body + b"\n" for body in asked))
    numbered = [{**row, "line": line, "session": f"session_{line:06d}"} for line, row in enumerate(rows)]
    table = pa.Table.from_pylist(numbered, schema=pq.read_schema(sent / "workload.parquet"))
    pq.write_table(table, folder / "workload.parquet")
    about = read_json(sent / "pair.json")
    first = sum(row["kind"] == "warmup" for row in rows)
    about["cells"] = [cell for cell in about["cells"] if cell["cell"] in cells]
    for cell in about["cells"]:
        cell["first_line"] = first
        first += cell["lines"]
    write_json(folder / "pair.json", about)
    shutil.copytree(zoo.visit(baseline, pair), folder / "baseline")
    shutil.copytree(zoo.visit(entry, pair), folder / "candidate")

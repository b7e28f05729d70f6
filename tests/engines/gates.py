"""The zoo's gates: record the models, drive parades through AIPerf, judge every engine by the pipeline's stages."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

import harness.score
from harness import pipeline
from harness.cells import Cell, make_cells
from harness.demo_models import DemoModels, prepare_models
from harness.plan import Plan, make_plan
from harness.progress import silent
from harness.run_store import RunStore, read_json, write_bytes, write_json
from harness.traffic import Visit, run_visit
from harness.verdict import Status, Verdict
from harness.workload import plan_pair, request_body
from oracles.convert import write_reference_folder
from oracles.floor import Floor, measure_floor
from oracles.reference import LocalReference, open_reference
from oracles.result import OracleResult
from oracles.store import ScoreStore, score_stored
from tests.engines.cheats import catalogue
from tests.engines.dialects import DIALECTS
from tests.engines.generate import record
from tests.engines.matrix import Entry, Row
from tests.engines.parade import Parade, Turn, carve, parade_cells, without, write_parade
from tests.engines.recorded import Recorded, key_of, read_bank
from tests.engines.server import serving
from tests.engines.stream import Engine, Refusal, Request
from tests.engines.toy import Pace

MODEL = "smollm2-135m"
PROFILES = Path(__file__).parent / "profiles"
PAIRS = (1, 2)
PORT = 18431
QUANTISATIONS = {"claimed": "Q4_1", "cheaper": "Q4_0", "other-numerics": "Q8_0"}  # as engines route to them
BASELINE_PACE = Pace(24, 0.0, 3.75, jitter=0.0, load_ms=0.0)
CANDIDATE_PACE = Pace(16, 0.0, 2.5, jitter=0.0, load_ms=0.0)
TURNS = 24  # engines in one AIPerf process
# Weights; speed, which is not judged of a run without accuracy; prompts by its template; ids by its words.
NEED_REFERENCE = {"token_margin", "ttft", "prompt-tokens", "ids-text"}
BASELINES = (Entry("baseline", "vllm"), Entry("baseline", "transformers-serve"), Entry("baseline-thinks", "vllm"))


@dataclass(frozen=True)
class Zoo:
    """The workload that all engines are sent, and where everything lies."""

    out: Path
    models: DemoModels
    store: RunStore  # of the workload
    plan: Plan

    def workload(self, pair: int) -> list[dict[str, Any]]:
        """Rows of the pair's workload.parquet."""
        rows: list[dict[str, Any]] = pq.read_table(self.pair(pair) / "workload.parquet").to_pylist()
        return rows

    def pair(self, pair: int) -> Path:
        """The pair's folder of the workload."""
        return self.store.root / "pairs" / f"{pair:02d}"

    def visit(self, entry: Entry, pair: int) -> Path:
        """Where an engine's visit lies."""
        return self.out / "visits" / entry.label / f"{pair:02d}"


def judge_all(
    chosen: Sequence[Entry], out: Path, *, only_driven: bool = False, score_all: bool = True
) -> Iterator[Row]:
    """Every chosen engine's row, made or found in `out`.

    only_driven: no traffic, and only engines that were driven before. score_all: the reference scores every engine,
    not just honest ones and those that a check must name which needs it.
    """
    zoo = _open(out)
    if not only_driven:
        needed = dict.fromkeys(_baseline(entry) for entry in chosen)
        record_banks(zoo)
        drive_all(zoo, [*needed, *chosen])
    for entry in chosen:
        if all(_driven(zoo, e, pair) for e in (entry, _baseline(entry)) for pair in PAIRS):
            yield judge_one(zoo, entry, scored=score_all or _needs_reference(entry))


def _open(out: Path) -> Zoo:
    models = prepare_models()
    plan = _plan(models.reference)
    folder = out / "workload"
    store = RunStore.open(folder) if (folder / "plan.yaml").exists() else RunStore.create(folder)
    pipeline.prepare(plan, store)
    for pair in PAIRS:
        pipeline.make_workload(plan, make_cells(plan), pair, store, silent)
    return Zoo(out, models, store, plan)


def _plan(reference: Path, *, fixed: bool = True, scored: bool = True) -> Plan:
    profiles = ["zoo", "zoo-stops"] + (["zoo-fixed"] if fixed else [])
    data = {
        "model": MODEL,
        "reference": {"path": str(reference)} if scored else None,
        "tokenizer": str(reference),
        "endpoints": {arm: {"url": f"http://127.0.0.1:{PORT}"} for arm in ("baseline", "candidate")},
        "profiles": [{"name": str(PROFILES / f"{name}.yaml")} for name in profiles],
        "policy": "no-regression",
        "pairs": [len(PAIRS)],
        # Every family has to show in two pairs; a real gate has six and more, and the default share.
        "extra_inputs": {"return_token_ids": True} if fixed else {},
        "audit_share": 1.0,
        "audit_logprobs": True,
        "floor_tokens": 512,
        "seed": 11,
    }
    return make_plan(data, source="zoo", folder=PROFILES)


def _needs_reference(entry: Entry) -> bool:
    check = catalogue()[entry.engine].check
    return not check or check in NEED_REFERENCE


def _baseline(entry: Entry) -> Entry:
    """The baseline that was sent the same: one that thinks for one that should, no fixed lengths for who refuses."""
    if entry.engine == "no-thinking":
        return BASELINES[2]
    return BASELINES[1] if entry.dialect == "transformers-serve" else BASELINES[0]


# --- answers ---------------------------------------------------------------------------------------------------------


def record_banks(zoo: Zoo) -> None:
    """Ask the three models everything that any engine will be asked; what is recorded already is not asked again."""
    rows = [row for pair in PAIRS for row in zoo.workload(pair) if row["kind"] != "warmup"]
    asked = [request_body(zoo.plan, row, MODEL, "chat") for row in rows]
    rewritten = [body for engine in catalogue().values() for body in _rewritten(engine, asked)]
    for role, name in QUANTISATIONS.items():
        bodies = asked + (rewritten if role == "claimed" else [])
        file = _bank(zoo, role)
        known = read_bank(file)
        if all(key_of(Request(body)) in known for body in bodies):
            continue
        print(f"decoding the answers of {name}", file=sys.stderr, flush=True)
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


def _bank(zoo: Zoo, role: str) -> Path:
    return zoo.out / f"answers-{role}.jsonl"


def zoo_tokenizer(zoo: Zoo) -> Tokenizer:
    """The reference's tokenizer, which the judge counts by too."""
    return Tokenizer.from_file(str(zoo.store.root / "tokenizer.json"))


# --- traffic ---------------------------------------------------------------------------------------------------------


def drive_all(zoo: Zoo, entries: Sequence[Entry]) -> None:
    """Every visit that is not there yet, both pairs of some engines before the next ones."""
    pending = [e for e in entries if not all(_driven(zoo, e, pair) for pair in PAIRS)]
    for start in range(0, len(pending), TURNS):
        for pair in PAIRS:
            group = [e for e in pending[start : start + TURNS] if not _driven(zoo, e, pair)]
            if group:
                drive(zoo, group, pair)


def _driven(zoo: Zoo, entry: Entry, pair: int) -> bool:
    return (zoo.visit(entry, pair) / "visit.json").exists()


def drive(zoo: Zoo, entries: Sequence[Entry], pair: int) -> None:
    """One AIPerf process over all entries; each one's visit is cut out of it."""
    (part,) = plan_pair(make_cells(zoo.plan), read_json(zoo.pair(pair) / "pair.json"))
    rows, warmup = zoo.workload(pair), part.warmup_lines
    turns = [_turn(zoo, entry, rows, part.cells) for entry in entries]
    bodies = (zoo.pair(pair) / "requests.jsonl").read_bytes().splitlines()
    with tempfile.TemporaryDirectory(dir=zoo.out, prefix="parade-") as folder:
        write_parade(Path(folder), bodies, turns, warmup)
        visit = Visit(
            zoo.plan, "candidate", pair, 0, [replace(part, cells=parade_cells(turns))], Path(folder) / "visit"
        )
        print(f"pair {pair}: AIPerf drives {', '.join(t.name for t in turns)}", file=sys.stderr, flush=True)
        with serving(Parade(turns, warmup, MODEL), PORT):
            run_visit(visit, lambda _: None)
        for number, entry in enumerate(entries):
            shutil.rmtree(made := zoo.visit(entry, pair), ignore_errors=True)
            made.parent.mkdir(parents=True, exist_ok=True)
            role = "baseline" if entry in BASELINES else "candidate"
            about = {"pair": pair, "role": role, "slot": 2 * (pair - 1) + (role == "candidate")}
            carve(visit.folder, turns, warmup, number, made, about)


def _turn(zoo: Zoo, entry: Entry, rows: Sequence[dict[str, Any]], cells: Sequence[Cell]) -> Turn:
    # Fixed lengths and token ids are refused by transformers serve: they are not asked, in either arm.
    kept = tuple(c for c in cells if entry.dialect != "transformers-serve" or c.profile.stop != "fixed")
    names = {cell.name for cell in kept}
    lines = tuple(row["line"] for row in rows if row["cell"] in names)
    honest = entry in BASELINES
    pace = BASELINE_PACE if honest else CANDIDATE_PACE
    thinks = entry.engine in ("no-thinking", "baseline-thinks")
    tokenizer = zoo_tokenizer(zoo)
    sources: list[Any] = [Recorded(read_bank(_bank(zoo, role)), tokenizer, pace, thinks) for role in QUANTISATIONS]
    engine = Engine() if honest else catalogue()[entry.engine]()
    dialect = DIALECTS["vllm" if honest else entry.dialect]
    return Turn(entry.label, engine, dialect, sources, lines, kept, _unasked(entry))


def _unasked(entry: Entry) -> tuple[str, ...]:
    return ("return_token_ids",) if entry.dialect == "transformers-serve" else ()


# --- verdicts --------------------------------------------------------------------------------------------------------


def judge_one(zoo: Zoo, entry: Entry, *, scored: bool = True) -> Row:
    """The engine's verdict, by the pipeline's own stages from the raw exports on."""
    root = zoo.out / "gates" / entry.label
    began = time.monotonic()
    if not (root / "verdict.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        plan = _plan(zoo.models.reference, fixed=entry.dialect != "transformers-serve", scored=scored)
        store = RunStore.create(root)
        pipeline.prepare(plan, store)
        cells = make_cells(plan)
        for pair in PAIRS:
            _assemble(zoo, entry, pair, {cell.name for cell in cells}, root)
            pipeline.measure_pair(plan, cells, pair, store, silent)
        with _remembering(zoo, _baseline(entry)):
            pipeline.score(plan, len(PAIRS), store, silent)
        pipeline.decide(plan, store, silent)
        write_json(root / "took.json", {"seconds": time.monotonic() - began})
    verdict = Verdict.model_validate(read_json(root / "verdict.json"))
    visits = [read_json(zoo.visit(entry, pair) / "visit.json") for pair in PAIRS]
    seconds = sum(v["ended_at"] - v["started_at"] for v in visits) + read_json(root / "took.json")["seconds"]
    engine = catalogue()[entry.engine]
    fired = tuple(check.check for check in verdict.checks if check.status is Status.FAIL)
    tokens = sum(
        sum(pq.read_table(root / "pairs" / f"{p:02d}" / "candidate" / "requests.parquet")["output_tokens"]
            .drop_null().to_pylist())
        for p in PAIRS
    )  # fmt: skip
    graded = (root / "oracles" / "candidate" / "tokens.parquet").exists()
    return Row(entry, engine.does, engine.check, fired, verdict.status.value, tokens, seconds, scored=graded)


def _assemble(zoo: Zoo, entry: Entry, pair: int, cells: set[str], root: Path) -> None:
    """One pair of a run directory: what was sent, and the two visits."""
    folder = root / "pairs" / f"{pair:02d}"
    folder.mkdir(parents=True)
    rows = [row for row in zoo.workload(pair) if row["kind"] == "warmup" or row["cell"] in cells]
    bodies = (zoo.pair(pair) / "requests.jsonl").read_bytes().splitlines()
    sent = [without(bodies[row["line"]], _unasked(entry)) for row in rows]
    write_bytes(folder / "requests.jsonl", b"".join(body + b"\n" for body in sent))
    numbered = [{**row, "line": line, "session": f"session_{line:06d}"} for line, row in enumerate(rows)]
    table = pa.Table.from_pylist(numbered,
                                 schema=pq.read_schema(zoo.pair(pair) / "workload.parquet"))  # fmt: skip
    pq.write_table(table, folder / "workload.parquet")
    about = read_json(zoo.pair(pair) / "pair.json")
    first = sum(row["kind"] == "warmup" for row in rows)
    about["cells"] = [cell for cell in about["cells"] if cell["cell"] in cells]
    for cell in about["cells"]:
        cell["first_line"] = first
        first += cell["lines"]
    write_json(folder / "pair.json", about)
    shutil.copytree(zoo.visit(_baseline(entry), pair), folder / "baseline")
    shutil.copytree(zoo.visit(entry, pair), folder / "candidate")


@contextmanager
def _remembering(zoo: Zoo, baseline: Entry) -> Iterator[None]:
    """Most engines say the same words: what the reference scored once, and the floor of one baseline, are kept."""
    floors = zoo.out / "floors" / baseline.label
    opened: Callable[..., LocalReference] = harness.score.open_reference
    measured: Callable[..., Floor] = harness.score.measure_floor

    def floor(visits: Any, reference: Any, out: Path, **options: Any) -> Floor:
        if not (floors / "tie.json").exists():
            made = measure_floor(visits, reference, floors, **options)
            write_json(floors / "tie.json", {"tie_width": made.tie_width, "result": made.result.model_dump()})
        kept = orjson.loads((floors / "tie.json").read_bytes())
        out.mkdir(parents=True, exist_ok=True)
        for file in floors.iterdir():
            if file.name != "tie.json":
                shutil.copy(file, out / file.name)
        return Floor(OracleResult.model_validate(kept["result"]), kept["tie_width"])

    harness.score.open_reference = lambda path, **options: _reference(path, zoo.out / "scores")  # type: ignore[assignment]
    harness.score.measure_floor = floor  # type: ignore[assignment]
    try:
        yield
    finally:
        harness.score.open_reference, harness.score.measure_floor = opened, measured  # type: ignore[assignment]


class _Remembering(LocalReference):
    """A reference that looks up what it scored before."""

    def score(self, requests: Any, *, top_k: int = 0, progress: Any = None, **_: Any) -> Any:
        return score_stored(self, requests, _STORES[self.path], top_k=top_k, progress=progress)


_STORES: dict[Path, ScoreStore] = {}
_OPENED: dict[Path, _Remembering] = {}


def _reference(path: Path, scores: Path) -> _Remembering:
    if path not in _OPENED:
        plain = open_reference(path)
        _OPENED[path] = _Remembering(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
        _STORES[_OPENED[path].path] = ScoreStore(scores)
    return _OPENED[path]

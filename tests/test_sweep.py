"""`enginegate sweep` over an AIPerf played on a virtual clock: the same rows whatever kill came between."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from harness import pipeline, sweep, sweep_results
from harness.calibration import compare
from harness.cells import make_cells
from harness.cli import main
from harness.client_bias import CALIBRATION, ClientBias
from harness.errors import UsageError
from harness.progress import silent
from harness.run_store import RunStore, write_json
from harness.sweep_plan import SweepPlan, make_sweep
from harness.sweep_results import Row
from harness.time_left import TimeLeft, expected_s, in_words
from harness.traffic import Visit
from tests.engines.dialects import DIALECTS
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, save_tokenizer, toy_tokenizer
from tests.engines.visit import Client, _drive
from tests.test_calibration import SHAPE, known

PACES = {
    "slow": Pace(ttft_ms=40, prefill_ms=0, itl_ms=8, jitter=0),
    "fast": Pace(ttft_ms=20, prefill_ms=0, itl_ms=4, jitter=0),
}


class Played:
    """Stands for AIPerf and for the engines: writes the export that a visit would leave, and counts its visits."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, str]] = []

    def run_visit(self, visit: Visit, progress: Any) -> list[Path]:
        self.visits.append((visit.pair, visit.role))
        rows = pq.read_table(visit.folder.parent / "workload.parquet").to_pylist()
        toy = Toy(toy_tokenizer(), PACES[visit.role])
        records: list[Any] = []
        for cell in visit.cells:
            lines = [row for row in rows if row["cell"] in (cell.name, "warmup" if cell is visit.cells[0] else "")]
            played = _drive(Engine(), [toy], DIALECTS["vllm"], lines, cell.concurrency or 1, Client(), {})
            records += asyncio.run(played)
        progress(len(rows))
        (visit.folder / "aiperf").mkdir(parents=True, exist_ok=True)
        export = visit.folder / "aiperf" / "profile_export_raw.jsonl"
        export.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        record = {"pair": visit.pair, "role": visit.role, "slot": visit.slot, "started_at": 0.0, "ended_at": 1.0}
        write_json(visit.folder / "visit.json", record)
        return [export, visit.folder / "visit.json"]

    def calibrate(self, plan: Any, cells: Any, arms: Any, store: RunStore, progress: Any) -> list[Path]:
        """Every cell is fit but the fast endpoint's last one."""
        good = compare(SHAPE, *known(late_ms=0.1, slower=1.0), load=0).model_copy(update={"schedule_slip": 0.0})
        bad = good.model_copy(update={"tpot_bias": 0.2, "measured_at": 0.0})
        good = good.model_copy(update={"measured_at": 0.0})
        last = cells[-1].name
        found = {c.name: {arm: bad if (c.name, arm) == (last, "fast") else good for arm in arms} for c in cells}
        write_json(store.root / CALIBRATION, ClientBias(client={}, cells=found))
        return [store.root / CALIBRATION]

    @contextmanager
    def engines(self, plan: Any, folder: Path) -> Iterator[Any]:
        class Up:
            @contextmanager
            def serving(self, role: str) -> Iterator[None]:
                write_json(folder / f"{role}.json", {"role": role})
                yield

        yield Up()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    one = Played()
    monkeypatch.setattr(pipeline, "run_visit", one.run_visit)
    monkeypatch.setattr(sweep, "Engines", one.engines)
    monkeypatch.setattr(sweep, "calibrate_run", one.calibrate)
    return one


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tok") / "tok")


@pytest.fixture
def plan(tokenizer: Path) -> SweepPlan:
    data = {
        "model": "toy",
        "tokenizer": str(tokenizer),
        "endpoints": {"slow": {"url": "http://127.0.0.1:9"}, "fast": {"url": "http://127.0.0.1:9"}},
        "profiles": [
            {"name": "smoke", "concurrency": [1, 2], "request_count": 4},
            {"name": "decode-easy-fixed", "concurrency": [1], "request_count": 2},
        ],
        "tier": "smoke",
    }
    return make_sweep(data, source="test", folder=tokenizer)


def test_rows_table_charts_and_report_of_every_endpoint_and_cell(
    plan: SweepPlan, played: Played, tmp_path: Path
) -> None:
    rows = sweep.sweep(plan, RunStore.create(tmp_path / "run"), silent)
    assert [(row.cell, row.endpoint) for row in rows] == [
        (cell, arm) for cell in ("smoke/c1", "smoke/c2", "decode-easy-fixed/c1") for arm in ("slow", "fast")
    ]
    by = {(row.cell, row.endpoint): row for row in rows}
    assert by["smoke/c1", "slow"].tpot_p50_ms == pytest.approx(8, rel=0.05)
    assert by["smoke/c1", "fast"].ttft_p50_ms == pytest.approx(20.4, abs=0.5)
    assert all(row.served == row.asked for row in rows)
    assert [row.notes != () for row in rows] == [False] * 5 + [True] and "off by tpot.p50 +20.0%" in rows[-1].notes[0]
    run = tmp_path / "run"
    assert [Row.model_validate(row) for row in json.loads((run / "sweep.json").read_text())["rows"]] == list(rows)
    with (run / "sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["endpoint"] for row in table] == ["slow", "fast"] * 3 and table[0]["goodput"] == ""
    kinds = {path.suffix for path in (run / "charts").iterdir()}
    names = {path.stem for path in (run / "charts").iterdir()}
    assert kinds == {".svg", ".png"}
    assert any("pareto" in name for name in names) and any("ttft" in name for name in names)
    page = (run / "report.html").read_text()
    assert "A sweep measures speed only" in page and "fast" in page
    assert RunStore.open(run).altered() == []


def test_both_endpoints_see_the_same_bytes_and_rounds_fresh_ones(
    plan: SweepPlan, played: Played, tmp_path: Path
) -> None:
    twice = plan.model_copy(update={"rounds": 2, "profiles": plan.profiles[1:]})
    rows = sweep.sweep(twice, RunStore.create(tmp_path / "run"), silent)
    assert {row.rounds for row in rows} == {2}
    first, second = ((tmp_path / "run/pairs" / pair / "requests.jsonl").read_text() for pair in ("01", "02"))
    assert not set(first.splitlines()) & set(second.splitlines())
    orders = [json.loads((tmp_path / "run/pairs" / pair / "pair.json").read_text())["order"] for pair in ("01", "02")]
    assert orders[0] == orders[1][::-1]


class Killed(BaseException):
    """What no except clause of the code under test may catch."""


STEPS = 1 + 2 + 2 * (1 + 2 + 2) + 1  # prepare; preflights; groups of a workload, visits, measurements; calibration


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_step_it_ends_with_the_same_cells(
    plan: SweepPlan, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One run that is killed at each of its steps in turn: before a step is journalled, or just after."""
    monkeypatch.setattr(sweep_results, "draw", lambda root: [])
    whole = sweep.sweep(plan, RunStore.create(tmp_path / "whole"), silent)
    steps = len([line for line in (tmp_path / "whole/journal.jsonl").read_text().splitlines() if line])
    assert steps == STEPS
    played.visits.clear()
    record = RunStore.record
    at_step = 0

    def dying(store: RunStore, step: str, outputs: list[Path]) -> None:
        if moment == "after":
            record(store, step, outputs)
        raise Killed(step)

    store = RunStore.create(tmp_path / "killed")
    for at_step in range(steps):
        monkeypatch.setattr(RunStore, "record", dying)
        with pytest.raises(Killed):
            sweep.sweep(plan, store, silent)
        monkeypatch.setattr(RunStore, "record", record)
        if moment == "before":  # nothing of the step counts: it is done again, and it alone
            finish_one(plan, store, monkeypatch, record)
        store = RunStore.open(tmp_path / "killed")
        assert len(journal(store.root)) == at_step + 1
    assert sweep.sweep(sweep.stored_sweep(store.root), store, silent) == whole
    assert journal(store.root) == journal(tmp_path / "whole")
    expected = 1 if moment == "after" else 2
    assert all(played.visits.count(visit) == expected for visit in played.visits)
    assert (store.root / "sweep.json").read_bytes() == (tmp_path / "whole/sweep.json").read_bytes()


def finish_one(plan: SweepPlan, store: RunStore, monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    """Go on until exactly one more step is in the journal."""

    def once(store: RunStore, step: str, outputs: list[Path]) -> None:
        record(store, step, outputs)
        raise Killed(step)

    monkeypatch.setattr(RunStore, "record", once)
    with pytest.raises(Killed):
        sweep.sweep(plan, store, silent)
    monkeypatch.setattr(RunStore, "record", record)


def journal(root: Path) -> list[str]:
    return [json.loads(line)["step"] for line in (root / "journal.jsonl").read_text().splitlines() if line]


def test_progress_is_of_the_whole_sweep() -> None:
    told: list[float] = []
    left = TimeLeft(lambda doing, share=None: told.append(share), [1.0, 3.0])
    for share in (None, 0.5, 1.0, None, None, 0.5, 1.0, None):
        left("x", share)
    assert told == [0, 0.125, 0.25, 0.25, 0.25, 0.625, 1.0, 1.0]
    assert [in_words(s) for s in (40, 600, 7200)] == ["40 s", "10 min", "2.0 h"]


def test_expected_time_follows_load_and_speed(plan: SweepPlan) -> None:
    one, two, _ = make_cells(plan)
    assert expected_s(one, {1: (10, 5)}) == pytest.approx(2 * expected_s(two, {1: (10, 5)}))
    assert expected_s(one, {1: (10, 10)}) > 1.5 * expected_s(one, {1: (10, 5)})


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_on_the_command_line(played: Played, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_results, "draw", lambda root: [])
    common = ["--endpoint", "slow=http://127.0.0.1:9", "--endpoint", "fast=http://127.0.0.1:9", "-m", "toy"]
    common += ["--tokenizer", str(tokenizer), "--tier", "smoke", "--profile", "smoke", "--request-count", "4"]
    code, text = invoke("sweep", *common, "--concurrency", "1..2", "--run-dir", str(tmp_path / "run"))
    assert code == 0 and "smoke/c2" in text and "fast" in text, text
    code, text = invoke("sweep", "--run-dir", str(tmp_path / "run"), "--resume", "--json")
    assert code == 0 and len(json.loads(text[text.index("[\n") :])) == 4
    assert len(played.visits) == 2, "a finished sweep is not driven again"
    code, text = invoke("sweep", *common, "--dry-run", "--concurrency", "1,2")
    assert code == 0 and "smoke/c1" in text and "does not answer yet" in text
    code, text = invoke("recheck", str(tmp_path / "run"))
    assert code == 2 and "is a sweep" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--endpoint NAME=URL is missing"),
        (["--endpoint", "a=http://h"], "--model is missing"),
        (["--endpoint", "a=http://h", "-m", "m"], "--tokenizer DIR is missing"),
        (["--endpoint", "a=http://h", "-m", "m", "--tokenizer", "nowhere"], "nowhere has no tokenizer.json"),
        (["--endpoint", "a=http://h", "--launch", "b=serve"], "no NAME=COMMAND with the name of an --endpoint (a)"),
        (["--resume"], "--resume needs --run-dir"),
        (["--request-rate", "x"], "no list of requests per second"),
        (["nowhere.yaml"], "There is no plan file"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], sentence: str) -> None:
    code, text = invoke("sweep", *arguments)
    assert code == 2 and sentence in text, text


def test_a_plan_file_and_its_mistakes(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        f"model: m\ntokenizer: {tokenizer}\nendpoints: {{a: {{ulr: http://h}}}}\nprofiles: [smoke]\n"
    )
    code, text = invoke("sweep", str(tmp_path / "sweep.yaml"))
    assert code == 2 and "unknown key endpoints.a.ulr; did you mean url" in text
    with pytest.raises(UsageError, match="is the run of a gate"):
        (tmp_path / "plan.yaml").write_text("model: m\n")
        sweep.stored_sweep(tmp_path)


@pytest.mark.parametrize("command", [["score"], ["gate", "--resume", "--run-dir"], ["verify", "--resume", "--run-dir"]])
def test_another_commands_run_is_refused_in_one_sentence(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "plan.yaml").write_text("kind: sweep\nmodel: m\nrounds: 1\n")
    code, text = invoke(*command, str(tmp_path))
    assert code == 2 and "is the run of a sweep" in text and len(text.splitlines()) == 1


def test_a_broken_stored_plan_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("model: [")
    code, text = invoke("score", str(tmp_path))
    assert code == 2 and "is not readable YAML" in text

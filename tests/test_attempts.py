"""Attempts: counted before anything is sent, pooled, limited, chained; and prompts an author never had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, models

from harness import attempts, history, pipeline
from harness.attempts import RunAttempt, fingerprint_build, finish, plan_sha256, prompt_seed, start
from harness.cells import make_cells
from harness.cli import main
from harness.contracts import withheld
from harness.errors import InvalidRun, UsageError
from harness.gate import decide
from harness.plan import Plan, load_plan
from harness.run_store import RunStore, write_bytes, write_json
from harness.traffic_plan import dump_plan
from harness.verdict import Status, Verdict
from harness.workload import write_pair
from tests.gate_runs import gate_run, oracle
from tests.made_runs import Made, make_run

SECRET = "a secret that nobody has seen yet"
UNDECIDED = decide(gate_run(1.22, noise=0.03), power_draws=0)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A plan beside a model folder and an engine's source, which is its candidate's build."""
    for folder in ("model", "engine", "runs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "engine" / "kernel.cu").write_text("first try")
    data = {
        "model": "m",
        "reference": {"path": "model"},
        "endpoints": {
            "baseline": {"url": "http://127.0.0.1:9"},
            "candidate": {"url": "http://127.0.0.1:9", "build": ["engine"]},
        },
        "profiles": [{"name": "smoke", "request_count": 6}],
    }
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def begun(plan: Plan, run: Path, secret: bytes | None = None) -> tuple[RunStore, RunAttempt]:
    store = RunStore.create(run)
    write_bytes(run / "plan.yaml", dump_plan(plan).encode())
    return store, start(plan, store, secret)


def ended(store: RunStore, attempt: RunAttempt, verdict: Verdict = UNDECIDED) -> None:
    write_json(store.root / "verdict.json", verdict)
    store.write_manifest()
    finish(attempt, store, verdict)


def write_pairs(store: RunStore, pairs: int) -> None:
    """Steps and files as a run leaves them, small."""

    def done(step: str, *names: str) -> None:
        for name in names:
            write_bytes(store.root / name, f"{step} {name}".encode())
        store.record(step, [store.root / name for name in names])

    done("preflight/candidate", "preflight/candidate.json")
    for pair in range(1, pairs + 1):
        folder = f"pairs/{pair:02d}"
        done(f"workload/{pair:02d}", f"{folder}/requests.jsonl", f"{folder}/pair.json")
        for role in ("baseline", "candidate"):
            done(f"visit/{pair:02d}/{role}", f"{folder}/{role}/aiperf/export.jsonl", f"{folder}/{role}/visit.json")
            done(f"measure/{pair:02d}/{role}", f"{folder}/{role}/measurements.json")
    done(f"oracles/{pairs:02d}", "oracles/candidate/tokens.json")


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# --- counting -------------------------------------------------------------------------------------------------------


def test_an_attempt_counts_from_its_start_and_once(plan_file: Path) -> None:
    plan, run = load_plan(plan_file), plan_file.parent / "runs" / "1"
    store, attempt = begun(plan, run)
    file = run.parent / "history.jsonl"
    assert [a.status for a in history.read(file)] == [None], "a run that is killed has been counted"
    assert start(plan, store, None) == attempt, "a resumed run keeps its number"
    ended(store, attempt)
    ended(store, attempt)
    assert [(a.attempt, a.status) for a in history.read(file)] == [(1, None), (1, Status.INCONCLUSIVE)]
    assert history.read(file)[0].run == "1", "named relative to the history"


def test_a_verdict_names_the_record_that_started_it(plan_file: Path) -> None:
    from harness.judge import _hashes

    run = plan_file.parent / "runs" / "1"
    _, attempt = begun(load_plan(plan_file), run)
    assert _hashes(run, (), ())["history"] == attempt.head


def test_the_history_can_lie_where_the_engines_author_cannot_write(plan_file: Path) -> None:
    plan_file.write_text(plan_file.read_text() + "history: kept/history.jsonl\n")
    begun(load_plan(plan_file), plan_file.parent / "runs" / "1")
    (one,) = history.read(plan_file.parent / "kept" / "history.jsonl")
    assert Path(one.run).is_absolute()


def test_history_lists_attempts_and_their_trend(plan_file: Path) -> None:
    plan, runs = load_plan(plan_file), plan_file.parent / "runs"
    for number, verdict in enumerate((UNDECIDED, decide(gate_run(1.0), power_draws=0)), start=1):
        (plan_file.parent / "engine" / "kernel.cu").write_text(f"try {number}")
        ended(*begun(plan, runs / str(number)), verdict)
    (plan_file.parent / "engine" / "kernel.cu").write_text("try 3")
    begun(plan, runs / "3")
    result = invoke("history", str(runs))
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[3] for row in rows[1:]] == ["INCONCLUSIVE", "FAIL", "no"]
    assert rows[2][-1] == "2"
    assert "3 attempts, 0 of them looks at held-out prompts; best: attempt 1" in result.stderr
    assert len(json.loads(invoke("history", str(runs), "--json").stdout)) == 5


def test_a_history_that_does_not_hold_exits_5(plan_file: Path) -> None:
    plan, runs = load_plan(plan_file), plan_file.parent / "runs"
    store, attempt = begun(plan, runs / "1")
    ended(store, attempt)
    file = runs / "history.jsonl"
    whole, verdict = file.read_bytes(), (runs / "1" / "verdict.json").read_bytes()
    breaks = {
        "breaks the chain": (file, whole.replace(b'"passed":', b'"passed":1', 1)),
        "its end was cut off": (file, b""),
        "it was edited since": (runs / "1" / "verdict.json", verdict.replace(b"INCONCLUSIVE", b"PASS")),
    }
    for sentence, (path, content) in breaks.items():
        file.write_bytes(whole)
        path.write_bytes(content)
        result = invoke("history", str(runs))
        assert result.exit_code == 5
        assert sentence in result.output
    assert invoke("history", str(runs / "none")).exit_code == 2
    file.write_bytes(b"")
    with pytest.raises(InvalidRun, match="cut off"):
        start(plan, store, None)


# --- repeats --------------------------------------------------------------------------------------------------------


def test_a_build_is_its_files(plan_file: Path) -> None:
    plan = load_plan(plan_file)
    first = fingerprint_build(plan)
    assert first == fingerprint_build(load_plan(plan_file, {"seed": 9}))
    (plan_file.parent / "engine" / "kernel.cu").write_text("second try")
    assert fingerprint_build(plan) != first
    (plan_file.parent / "engine").rename(plan_file.parent / "gone")
    with pytest.raises(UsageError, match=r"endpoints\.candidate\.build: there is no .*engine"):
        fingerprint_build(plan)


def test_a_repeat_of_a_build_goes_on_from_its_earlier_pairs(plan_file: Path) -> None:
    plan, runs = load_plan(plan_file), plan_file.parent / "runs"
    store, attempt = begun(plan, runs / "1")
    write_pairs(store, 6)
    ended(store, attempt)
    again, pooled = begun(load_plan(plan_file, {"budget_minutes": 500}), runs / "2")
    assert (pooled.pooled, pooled.pooled_pairs, pooled.attempt) == ("1", 6, 3)
    for step in ("preflight/candidate", "workload/06", "visit/06/candidate", "measure/01/baseline"):
        assert again.finished(step), step
    assert not again.finished("workload/07")
    assert not again.finished("oracles/06"), "a repeat scores for itself"
    assert (runs / "2" / "pairs" / "06" / "candidate" / "aiperf" / "export.jsonl").is_file()

    (plan_file.parent / "engine" / "kernel.cu").write_text("another build")
    assert begun(plan, runs / "3")[1].pooled is None
    assert begun(load_plan(plan_file, {"seed": 8}), runs / "4")[1].pooled is None


def test_an_engine_that_names_no_build_is_never_taken_for_a_repeat(plan_file: Path) -> None:
    data = yaml.safe_load(plan_file.read_text())
    del data["endpoints"]["candidate"]["build"]
    plan_file.write_text(yaml.safe_dump(data))
    plan, runs = load_plan(plan_file), plan_file.parent / "runs"
    ended(*begun(plan, runs / "1"))
    assert begun(plan, runs / "2")[1].pooled is None
    assert attempts.standing(plan, runs / "3") is None


@pytest.mark.parametrize("harm", ["altered", "gone"])
def test_earlier_pairs_that_are_not_what_was_judged_cannot_be_pooled(plan_file: Path, harm: str) -> None:
    plan, runs = load_plan(plan_file), plan_file.parent / "runs"
    store, attempt = begun(plan, runs / "1")
    write_pairs(store, 6)
    ended(store, attempt)
    if harm == "altered":
        (runs / "1" / "pairs" / "02" / "candidate" / "visit.json").write_text("faster")
    else:
        (runs / "1").rename(plan_file.parent / "away")
    with pytest.raises(InvalidRun, match=harm):
        begun(plan, runs / "2")


@pytest.mark.parametrize(("speedup", "code"), [(1.5, 0), (1.0, 3)])
def test_a_decided_build_gets_no_other_look(plan_file: Path, speedup: float, code: int) -> None:
    runs = plan_file.parent / "runs"
    verdict = decide(gate_run(speedup), power_draws=0)
    ended(*begun(load_plan(plan_file), runs / "1"), verdict)
    result = invoke("gate", str(plan_file), "--run-dir", str(runs / "2"))
    assert result.exit_code == code
    assert result.stdout.startswith(f"VERDICT {verdict.status} {verdict.passed}/{verdict.judged} ")
    assert "a repeat gets no further look" in result.stderr
    assert not (runs / "2").exists()
    assert len(history.read(runs / "history.jsonl")) == 2


# --- held-out prompts -----------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("HELD_OUT", SECRET)
    plan_file.write_text(plan_file.read_text() + "prompt_secret: env:HELD_OUT\nlooks: 2\n")
    return load_plan(plan_file)


def prompts(plan: Plan, seed: int | None, folder: Path) -> list[str]:
    drawn = plan if seed is None else plan.model_copy(update={"seed": seed})
    write_pair(drawn, make_cells(plan), 1, folder, lambda text: len(text.split()))
    return [str(row) for row in pq.read_table(folder / "workload.parquet")["messages"].to_pylist()]


def test_held_out_prompts_are_fresh_in_each_attempt_and_their_seed_is_written_nowhere(
    sealed: Plan, tmp_path: Path
) -> None:
    import os

    secret = attempts.secret_of(sealed)
    assert secret == SECRET.encode()
    assert "HELD_OUT" not in os.environ, "engines and AIPerf inherit the environment"
    seen = [prompts(sealed, None, tmp_path / "public")]
    for number in ("1", "2"):
        run = tmp_path / "runs" / number
        _, attempt = begun(sealed, run, secret)
        seed = prompt_seed(attempt, secret)
        assert seed is not None
        seen.append(prompts(sealed, seed, run / "pairs" / "01"))
        assert orjson.loads((run / "pairs" / "01" / "pair.json").read_bytes())["seed"] is None
        for file in (path for path in run.rglob("*") if path.is_file()):
            assert SECRET.encode() not in file.read_bytes()
            assert str(seed).encode() not in file.read_bytes()
        for name in attempts.PRIVATE:
            assert (run / name).stat().st_mode & 0o077 == 0, "only the judge's own user reads prompts"
    assert SECRET not in (tmp_path / "runs" / "history.jsonl").read_text()
    assert not set(seen[0]) & set(seen[1])
    assert not set(seen[1]) & set(seen[2])


def test_looks_at_held_out_prompts_are_limited_whatever_the_build(sealed: Plan, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "engine" / "kernel.cu").write_text(f"build {number}")
        begun(sealed, tmp_path / "runs" / str(number), SECRET.encode())  # killed: no verdict, and a look all the same
    (tmp_path / "engine" / "kernel.cu").write_text("build 3")
    result = invoke("gate", str(tmp_path / "plan.yaml"), "--run-dir", str(tmp_path / "runs" / "3"))
    assert result.exit_code == 5
    assert "All 2 looks at held-out prompts are spent" in result.output
    assert not (tmp_path / "runs" / "3").exists()


def test_another_secret_cannot_go_on_with_a_run(sealed: Plan, tmp_path: Path) -> None:
    store, _ = begun(sealed, tmp_path / "runs" / "1", SECRET.encode())
    for other in (b"another secret, as long", None):
        with pytest.raises(UsageError, match="another secret seed"):
            start(sealed, store, other)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("prompt_secret: env:NOT_SET_ANYWHERE\n", "NOT_SET_ANYWHERE is not set"),
        ("prompt_secret: env:SHORT\n", "has 5 bytes and needs 16"),
        ("prompt_secret: file:none\n", "no secret seed file"),
        ("prompt_secret: SHORT\n", "env:NAME"),
        ("prompt_secret: env:SHORT\npairs: [2]\n", "held-out prompts are for full runs"),
    ],
)
def test_a_bad_secret_exits_2_before_anything_is_made(
    plan_file: Path, lines: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "brief")
    plan_file.write_text(plan_file.read_text() + lines)
    result = invoke("gate", str(plan_file), "--run-dir", str(plan_file.parent / "runs" / "1"))
    assert result.exit_code == 2
    assert sentence in result.output
    assert "brief" not in result.output
    assert list((plan_file.parent / "runs").iterdir()) == []


def test_a_quick_run_of_a_sealed_plan_uses_public_prompts(sealed: Plan) -> None:
    from harness.aa_run import as_aa
    from harness.modes import quick

    assert quick(sealed)[0].prompt_secret is None
    baseline = sealed.endpoints.baseline.model_copy(update={"launch": "serve"})
    with_launch = sealed.model_copy(update={"endpoints": sealed.endpoints.model_copy(update={"baseline": baseline})})
    assert as_aa(with_launch).prompt_secret is None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_process_that_holds_a_secret_cannot_be_looked_into() -> None:
    script = (
        "import ctypes, os\n"
        "from harness.sealed import hide_process, read_secret\n"
        "hide_process()\n"
        "read_secret('env:HELD_OUT')\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), 'HELD_OUT' in os.environ)\n"  # PR_GET_DUMPABLE
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"HELD_OUT": SECRET, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "False"]


def test_the_gate_draws_its_workload_from_the_secret(sealed: Plan, tmp_path: Path, monkeypatch: Any) -> None:
    seeds: list[int | None] = []

    def gate(_plan: Plan, store: RunStore, _progress: Any, prompt_seed: int | None = None) -> Verdict:
        seeds.append(prompt_seed)
        write_json(store.root / "verdict.json", UNDECIDED)
        return UNDECIDED

    monkeypatch.setattr(pipeline, "gate", gate)
    for number in ("1", "2"):
        monkeypatch.setenv("HELD_OUT", SECRET)
        (tmp_path / "engine" / "kernel.cu").write_text(number)
        result = invoke("gate", str(tmp_path / "plan.yaml"), "--run-dir", str(tmp_path / "runs" / number))
        assert result.exit_code == 4
        assert SECRET not in result.output
    assert None not in seeds
    assert seeds[0] != seeds[1]
    assert plan_sha256(sealed) == history.read(tmp_path / "runs" / "history.jsonl")[0].plan


def test_no_word_of_an_answer_is_told_about_held_out_prompts(tmp_path: Path) -> None:
    broken = oracle("candidate", "loops")
    finding = broken.findings[0].model_copy(update={"sentence": "It said ZANZIBAR.", "observed": 0.4})
    told = broken.model_copy(update={"findings": (finding, broken.findings[1]), "notes": ("ZANZIBAR",)})
    verdict = decide(gate_run(oracles=withheld((oracle("baseline"), told))), power_draws=0)
    check = next(c for c in verdict.checks if c.check == "protocol.loops")
    assert (check.status, check.observed) == (Status.FAIL, 0.4), "which check and how far is told"
    assert "ZANZIBAR" not in verdict.model_dump_json()


def test_a_report_of_held_out_prompts_shows_no_prompt_and_no_answer(tmp_path: Path) -> None:
    from reports.html import write_report

    run = make_run(
        tmp_path / "run", Made(profiles={"chat": ("c1",)}, margin={"baseline": 0.02, "candidate": 0.5, "floor": 0.004})
    )
    for path in run.glob("oracles/*/*.json"):  # an oracle may quote an answer
        result = json.loads(path.read_text())
        findings = [finding | {"sentence": "It said ZANZIBAR."} for finding in result["findings"]]
        path.write_text(json.dumps(result | {"findings": findings, "notes": ["ZANZIBAR"]}))
    open_page = write_report([run], tmp_path / "open.html").read_text()
    plan = yaml.safe_load((run / "plan.yaml").read_text())
    (run / "plan.yaml").write_text(yaml.safe_dump(plan | {"prompt_secret": "env:HELD_OUT"}))
    sealed_page = write_report([run], tmp_path / "sealed.html").read_text()
    for text in ("left the reference furthest", "ZANZIBAR"):
        assert text in open_page
        assert text not in sealed_page

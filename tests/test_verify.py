"""`enginegate verify`, `floor` and `score` without an engine: what they are asked, and the table they print."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from harness import late_scoring, pipeline, score, verify
from harness.accuracy_table import AccuracyTable, accuracy_table, as_tables
from harness.cli import main
from harness.errors import InvalidRun, UsageError
from harness.run_store import RunStore
from harness.traffic_plan import dump_plan
from harness.verdict import Status
from harness.verify_plan import VerifyPlan, make_verify, verify_data
from tests.test_score import plan as gate_plan
from tests.test_score import small_run
from tests.tiny_model import tiny_folder, tiny_reference

LOCAL = {"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}


def verify_plan(*names: str, **more: Any) -> VerifyPlan:
    endpoints = {name: {"url": f"http://127.0.0.1:{9 + n}"} for n, name in enumerate(names)}
    data = {"model": "m", "reference": LOCAL, "endpoints": endpoints, "profiles": ["smoke"], "floor_tokens": 200}
    return make_verify(data | more, source="test", folder=Path.cwd())


def several(root: Path, **shares: float) -> Path:
    """A run whose endpoints answered `shares` of their tokens with another one than the reference's."""
    small_run(root, 40)
    pair = root / "pairs" / "01"
    table = pq.read_table(pair / "baseline" / "requests.parquet")
    work = pq.read_table(pair / "workload.parquet").to_pylist()
    for row in work:  # every request a document of its own
        row["item"] = f"item-{row['line']}"
    pq.write_table(pa.Table.from_pylist(work, pq.read_schema(pair / "workload.parquet")), pair / "workload.parquet")
    for name, share in shares.items():
        rows = table.to_pylist()
        for row, about in zip(rows, work, strict=True):
            row["usage_prompt_tokens"] = len(tiny_reference().prompt_ids(json.loads(about["messages"])))
            wrong = [int(n * share) != int((n + 1) * share) for n in range(len(row["token_ids"]))]
            row["token_ids"] = [300 + i % 50 if bad else i for i, bad in zip(row["token_ids"], wrong, strict=True)]
            row["text"] = tiny_reference().decode(row["token_ids"])
        (pair / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, table.schema), pair / name / "requests.parquet")
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> AccuracyTable:
    root = several(tmp_path_factory.mktemp("verify") / "run", exact=0.0, wrong=0.2)
    verify._score(verify_plan("exact", "wrong"), root, lambda *_: None)
    return accuracy_table(root, ["exact", "wrong"])


def test_an_endpoint_that_answers_otherwise_fails_beside_one_that_does_not(table: AccuracyTable) -> None:
    exact, wrong = table.endpoints
    assert exact.status is Status.PASS and exact.metrics["top1"].value == 1
    assert wrong.status is Status.FAIL and table.exit_code == 3
    assert wrong.ratio_low is not None and wrong.ratio_low > 1.05
    assert wrong.metrics["margin"].ci_low > exact.metrics["margin"].ci_high  # type: ignore[operator]
    assert exact.tokens == wrong.tokens == 40 * 24
    assert table.floor["margin"].n > 0


def test_the_table_shows_every_endpoint_and_the_floor(table: AccuracyTable) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    for one in as_tables(table):
        console.print(one)
    shown = console.export_text()
    assert all(word in shown for word in ("exact", "wrong", "noise floor", "FAIL", "times the first"))
    assert AccuracyTable.model_validate_json(table.model_dump_json()) == table


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--endpoint NAME=URL is missing"),
        (["--endpoint", "a=http://x"], "--model is missing"),
        (["--endpoint", "a=http://x", "-m", "m"], "Give --reference DIR, or --reference-url"),
        (["--endpoint", "a=http://x", "-m", "m", "--reference", "/none"], "/none has no config.json"),
        (["--endpoint", "a=ftp://x", "-m", "m", "--reference", "/none"], "is no NAME=URL"),
        (
            ["--endpoint", "a=http://x", "-m", "m", "--reference", "r", "--ray", "local", "--tensor-parallel", "2"],
            "tensor_parallel takes the first GPUs of this machine",
        ),
        (["--resume"], "--resume needs --run-dir"),
    ],
)
def test_what_verify_cannot_do_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert done.exit_code == 2, done.output
    assert sentence in done.output


def test_extra_inputs_stand_in_the_plan() -> None:
    flags = dict.fromkeys(
        ("seed", "logit_documents", "tokenizer", "floor", "reference_url", "device", "ray", "tensor_parallel")
    )
    flags |= dict.fromkeys(("profile", "concurrency", "requests", "tier", "api", "api_key_env"))
    flags |= {"model": "m", "endpoints": ["a=http://x"], "launch": [], "reference": tiny_folder()}
    data = verify_data(flags | {"extra_inputs": ["return_token_ids:true"]})
    assert make_verify(data, source="test", folder=Path.cwd()).extra_inputs == {"return_token_ids": True}


def test_a_floor_does_not_write_over_another(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    done = CliRunner().invoke(main, ["floor", "--reference", str(tiny_folder()), "-o", str(tmp_path)])
    assert done.exit_code == 2 and "is not empty" in done.output


def test_a_floor_needs_a_model_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["floor", "--reference", str(tmp_path), "-o", str(tmp_path / "floor")])
    assert done.exit_code == 2 and "has no config.json" in done.output


def test_a_ray_cluster_without_ray_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "find_spec", lambda name: None if name == "ray" else object())
    asked = verify_plan("a", reference=LOCAL | {"ray": "local"})
    with pytest.raises(InvalidRun, match=r"enginegate\[ray\]"):
        verify.check(asked)


def collected(root: Path, **changes: Any) -> Path:
    """What `gate --collect-only` leaves, without AIPerf's own files."""
    small_run(root)
    data = gate_plan(LOCAL, **changes).model_copy(update={"reference": None})
    (root / "plan.yaml").write_text(dump_plan(data))
    shutil.copy(tiny_folder() / "tokenizer.json", root / "tokenizer.json")
    for pair in ("01", "02"):
        for arm in ("baseline", "candidate"):
            if pair == "02":
                shutil.copytree(root / "pairs" / "01" / arm, root / "pairs" / pair / arm, dirs_exist_ok=True)
            (root / "pairs" / pair / arm / "visit.json").write_text("{}")
    shutil.copy(root / "pairs/01/workload.parquet", root / "pairs/02/workload.parquet")
    return root


def test_a_run_made_elsewhere_is_scored_under_the_reference_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = collected(tmp_path / "run")
    monkeypatch.setattr(pipeline, "measure_pair", lambda *_: None)
    monkeypatch.setattr(pipeline, "report", lambda *_: None)
    monkeypatch.setattr(pipeline, "decide", lambda plan, *_: plan.reference)
    with pytest.raises(UsageError, match="the run's plan names no reference"):
        late_scoring.score_run(root, None, lambda *_: None)
    judged_under: Any = late_scoring.score_run(root, tiny_folder(), lambda *_: None, device="cpu")
    assert judged_under.path == tiny_folder().resolve()
    assert yaml.safe_load((root / "plan.yaml").read_text())["reference"]["path"] == str(tiny_folder().resolve())
    assert len(pq.read_table(root / "oracles" / "candidate" / "tokens.parquet")) == 12
    assert RunStore.open(root).finished("oracles/02")


def test_a_run_without_a_whole_first_look_is_not_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = collected(tmp_path / "run")
    (root / "pairs/02/candidate/visit.json").unlink()
    monkeypatch.setattr(pipeline, "measure_pair", lambda *_: None)
    with pytest.raises(InvalidRun, match="holds 1 whole pairs, the plan's first look has 2"):
        late_scoring.score_run(root, tiny_folder(), lambda *_: None, device="cpu")

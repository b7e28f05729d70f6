"""llama.cpp's own HTTP server out of the xllamacpp wheel, in the foreground until SIGTERM.

Run as `python -m harness.demo_engines.llama_server --model FILE.gguf --alias NAME --port 18001 --threads 1`.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args(arguments)
    if not options.model.is_file():
        raise SystemExit(f"--model {options.model}: no such file")
    try:
        import xllamacpp
    except ModuleNotFoundError:
        raise SystemExit("xllamacpp is not installed; run: pip install 'enginegate[demo]'") from None
    # Blocked before the server starts its threads, so that the signal can only arrive at sigwait below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    settings = xllamacpp.CommonParams()
    settings.model.path = str(options.model)
    settings.model_alias = {options.alias}  # a set: a string would become its letters
    settings.hostnames = [options.host]
    settings.port = options.port
    settings.n_parallel = options.parallel
    settings.n_ctx = options.ctx * options.parallel  # the server divides it by its slots
    settings.cpuparams.n_threads = options.threads
    settings.cpuparams_batch.n_threads = options.threads
    settings.endpoint_metrics = True
    server = xllamacpp.Server(settings)
    print(
        f"serving {options.alias} ({options.model.name}, {options.threads} threads) at {server.listening_address}",
        flush=True,
    )
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    # The server's own stop waits half a minute for streams in flight, and there is nothing to save.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m harness.demo_engines.llama_server")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model name in requests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="compute threads, prompt and generation alike")
    parser.add_argument("--parallel", type=int, default=4, help="requests served at once")
    parser.add_argument("--ctx", type=int, default=2048, help="tokens of context for each request")
    return parser


if __name__ == "__main__":
    main()

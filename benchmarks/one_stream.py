"""Task items inside the timed stream against the same work done apart, on one engine, for both arms of a gate.

    .venv/bin/python benchmarks/one_stream.py [--items 400] [--load 24] [--dir runs/one-stream] [--url URL --model M]

One stream: a gate of two pairs with `--items` items of the offline pack in chat traffic at eight in flight, scored
under the reference and graded. Apart: the same gate without tasks (AIPerf and scoring), then plain lm-eval on the same
items for each arm, one request at a time as is its default, then the KL pass: the load's prompts asked once more with
log-probabilities, for each arm. The engine is vLLM out of $VLLM_VENV on one thread, or what --url names; it is up
before anything is measured, and must not cache prompts, since both ways ask the same ones. With --dir, finished parts
are not measured again; with --parts N, it stops after N parts more. The last line is
`one_stream_s=... separate_s=... ratio=...`; at most 0.6.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pyarrow.parquet as pq

from harness import pipeline
from harness.demo import MODEL_NAME, free_ports, vllm_server
from harness.demo_models import prepare_models
from harness.endpoint import Engines
from harness.plan import Plan, check_files, make_plan
from harness.progress import silent
from harness.run_store import RunStore
from oracles.task_pack import families

CONCURRENCY, PAIRS, ARMS = 8, 2, 2
LIMIT = 0.6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--load", type=int, default=24, help="load requests in each visit")
    parser.add_argument("--dir", type=Path, default=Path("runs") / time.strftime("one-stream-%Y%m%d-%H%M%S"))
    parser.add_argument("--url", help="an engine that is up, without a prefix cache; default: vLLM")
    parser.add_argument("--model", default=MODEL_NAME)
    parser.add_argument("--parts", type=int, default=99, help="end after so many more; --dir goes on from there")
    options = parser.parse_args()
    root: Path = options.dir
    plan = _plan(options, tasks=True)
    times = Times(root / "times.json", options.parts)
    with Engines(plan, root / "engine") as engines, engines.serving("baseline"):
        url = plan.endpoints.baseline.all_urls[0]
        times.measure("one stream", lambda: _gate(plan, root / "with-tasks"))
        times.measure("AIPerf and scoring", lambda: _gate(_plan(options, tasks=False, url=url), root / "without-tasks"))
        for arm in range(ARMS):
            times.measure(f"lm-eval {arm}", lambda: _lm_eval(url, options.model, root / "with-tasks/tasks/pack"))
            times.measure(f"KL pass {arm}", lambda: asyncio.run(_ask_again(url, root / "without-tasks")))
    for name, seconds in times.seconds.items():
        print(f"{name}: {seconds:.1f} s")
    together = times.seconds["one stream"]
    apart = sum(times.seconds.values()) - together
    print(f"one_stream_s={together:.1f} separate_s={apart:.1f} ratio={together / apart:.2f}")
    return int(together > LIMIT * apart)


class Said:
    """Progress on stderr, a line every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, doing: str, share: float | None = None) -> None:
        if time.monotonic() > self.last + 10:
            self.last = time.monotonic()
            print(doing, file=sys.stderr, flush=True)


class Times:
    """Seconds by part, kept in a file so that an interrupted benchmark goes on."""

    def __init__(self, path: Path, parts: int) -> None:
        self.path, self.parts = path, parts
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Do the work, unless it was measured before."""
        if name in self.seconds:
            return
        if not self.parts:
            raise SystemExit(f"{name}: not measured yet; go on with --dir {self.path.parent}")
        self.parts -= 1
        began = time.monotonic()
        work()
        self.seconds[name] = time.monotonic() - began
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.seconds))
        print(f"{name}: {self.seconds[name]:.1f} s", file=sys.stderr, flush=True)


def _plan(options: argparse.Namespace, *, tasks: bool, url: str | None = None) -> Plan:
    """Both arms are the same engine: what is measured is the work, not the verdict."""
    models = prepare_models(silent)
    (port,) = free_ports(1)
    served = options.url or url or f"http://127.0.0.1:{port}"
    engine: dict[str, Any] = {"url": served, "model": options.model}
    launch = {} if options.url or url else {"launch": vllm_server(models.reference, port, "--no-enable-prefix-caching")}
    data: dict[str, Any] = {
        "model": options.model,
        "reference": {"path": str(models.reference)},
        "endpoints": {"baseline": engine | launch, "candidate": engine},
        "profiles": [{"name": "chat-steady", "concurrency": [CONCURRENCY], "request_count": options.load}],
        "tier": "smoke",
        "pairs": [PAIRS],
        "floor_tokens": 256,
    }
    if tasks:
        share = options.items / PAIRS / (options.items / PAIRS + options.load)
        data |= {"tasks": [{"name": "offline-pack", "limit": options.items}], "task_share": min(0.9, share + 0.01)}
    return check_files(make_plan(data, source="the benchmark's plan", folder=Path.cwd()))


def _gate(plan: Plan, root: Path) -> None:
    # An unfinished gate of an earlier try would make this one look fast.
    if root.exists():
        raise SystemExit(f"{root} is of an interrupted measurement; remove it.")
    endpoints = plan.endpoints.model_copy(
        update={"baseline": plan.endpoints.baseline.model_copy(update={"launch": None})}
    )
    plan = plan.model_copy(update={"endpoints": endpoints})
    pipeline.check(plan)
    pipeline.gate(plan, RunStore.create(root), Said())


def _lm_eval(url: str, model: str, pack: Path) -> None:
    """Plain lm-eval with its defaults: one request at a time."""
    command = [sys.executable, "-m", "lm_eval", "--model", "local-chat-completions"]
    command += ["--model_args", f"model={model},base_url={url}/v1/chat/completions"]
    command += ["--tasks", ",".join(families()), "--include_path", str(pack), "--apply_chat_template"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _ask_again(url: str, run: Path) -> None:
    """The load's own requests with log-probabilities, as a KL pass of its own would ask for them."""
    bodies = [
        orjson.loads(line) | {"stream": False, "logprobs": True, "top_logprobs": 20}
        for path in sorted(run.glob("pairs/*/requests.jsonl"))
        for line in path.read_bytes().splitlines()[_warmup(path) :]
    ]
    gate = asyncio.Semaphore(CONCURRENCY)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def ask(body: dict[str, Any]) -> None:
            body.pop("stream_options", None)
            async with gate, session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()

        await asyncio.gather(*map(ask, bodies))


def _warmup(requests: Path) -> int:
    kinds = pq.read_table(requests.with_name("workload.parquet"), columns=["kind"])["kind"].to_pylist()
    return kinds.count("warmup")


if __name__ == "__main__":
    sys.exit(main())

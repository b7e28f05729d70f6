"""The stopwatch: what this client adds on a mock of known speed, what enginegate adds to AIPerf, how fast it reads.

    .venv/bin/python benchmarks/traffic.py [--rounds N]

Calibrates at the figures of a fast engine (TTFT 12 ms, 1,792 tokens/s at concurrency 1; 10,307 tokens/s at 32, also in
blocks of four) against the mock's own log; drives pairs to the mock through enginegate's stages and by `aiperf` alone;
reads a 2 GB export. The last line is for machines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import yaml
from rich.console import Console

from harness import pipeline, sweep
from harness.calibration import MARGIN, Bias, block_sentences, calibrate, calibration_table
from harness.calibration_visit import Shape, mock
from harness.cells import Cell
from harness.client_bias import ClientBias, bias_checks
from harness.demo_models import prepare_models
from harness.endpoint import Engines
from harness.progress import silent
from harness.run_store import RunStore, read_json
from harness.sweep_plan import SweepPlan, make_sweep
from harness.traffic import SET_ENVIRONMENT, Visit, aiperf_command, aiperf_config
from harness.workload import plan_pair
from traffic_profiles.profile import load_profile

FAST = Shape(ttft_ms=12, tpot_ms=0.558, concurrency=1)
LOADED = Shape(ttft_ms=12, tpot_ms=3.105, concurrency=32)
BLOCKS = Shape(ttft_ms=12, tpot_ms=3.105, concurrency=32, tokens_per_event=4)


def main() -> None:
    """Measure and print; the last line has the four figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="pairs that the overhead is the median of; 0: none")
    parser.add_argument("--requests", type=int, default=100_000, help="of the export that is read")
    options = parser.parse_args()
    tokenizer = prepare_models().reference
    biases = calibrate([FAST, LOADED, BLOCKS], tokenizer, fresh=True)
    Console(width=140).print(calibration_table(biases))
    pooled = calibrate([FAST], tokenizer, connection_reuse="pooled", fresh=True)[0]
    print(f"concurrency 1 over a pooled connection: {pooled.ttft_bias_ms:+.2f} ms at the first token")
    for line in (*(bias.sentence(MARGIN) for bias in biases), *block_sentences(biases, MARGIN), *said_by_gate(biases)):
        print(line)
    overhead = f"{100 * overhead_share(tokenizer, options.rounds):.1f}" if options.rounds else "skipped"
    read = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("raw_export.py")), "--requests", str(options.requests)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(read)
    rate = read.rpartition("raw_mb_per_s=")[2].split()[0]
    fast = biases[0]
    print(
        f"tpot_error_pct={100 * fast.tpot_bias:.2f} ttft_bias_ms={pooled.ttft_bias_ms:.2f} "
        f"overhead_pct={overhead} raw_mb_per_s={rate}"
    )


def said_by_gate(biases: Sequence[Bias]) -> list[str]:
    """The check `client-bias` of a gate whose candidate streams so, in a cell of the profile `sweep`."""
    profile = load_profile("sweep")
    cells = [
        Cell(profile.model_copy(update={"name": f"sweep-{number}"}), bias.shape.concurrency, None, bias.requests)
        for number, bias in enumerate(biases)
    ]
    met = {cell.name: {"candidate": bias} for cell, bias in zip(cells, biases, strict=True)}
    found = bias_checks(cells, ClientBias(client={}, cells=met), required=True)
    return [f"gate: {check.check} {check.status.name}: {check.reason}" for check in found]


def overhead_share(tokenizer: Path, rounds: int) -> float:
    """Wall time of pairs through enginegate's stages over the same visits by `aiperf` alone, minus 1; median.

    A pair is made, driven and measured as in a gate; the bare runs get its data set, its configuration and an equally
    empty cache. Who goes first alternates. The report, written once a run, is left out.
    """
    with tempfile.TemporaryDirectory() as temporary, mock(Path(temporary)) as url:
        plan = overhead_plan(url, tokenizer, rounds, Path(temporary))
        store = RunStore.create(Path(temporary) / "run")
        planned = sweep.groups(plan, sweep.check(plan))
        pipeline.prepare(plan, store)
        shares = []
        with Engines(plan, store.root / "engines") as engines:
            for group in planned:
                spent: dict[str, float] = {}
                own = [plan, group.cells, group.number, store]
                timed(spent, "write", pipeline.make_workload, *own, silent)
                if group.number % 2:
                    timed(spent, "bare", drive_bare, *own)
                timed(spent, "drive", pipeline.drive_pair, *own, engines, silent)
                timed(spent, "read", pipeline.measure_pair, *own, silent)
                if not group.number % 2:
                    timed(spent, "bare", drive_bare, *own)
                shares.append((spent["write"] + spent["drive"] + spent["read"]) / spent["bare"] - 1)
                told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent.items())
                print(f"round {group.number}: {told}: {shares[-1]:+.1%}", flush=True)
        return median(shares)


def overhead_plan(url: str, tokenizer: Path, rounds: int, folder: Path) -> SweepPlan:
    """Two arms at the same mock: 50 ms to the first token, 10 ms a token, 160 requests, 4 in flight."""
    return make_sweep(
        {
            "model": "calibration",
            "tokenizer": str(tokenizer),
            "endpoints": {"one": {"url": url}, "two": {"url": url}},
            "profiles": [{"name": "chat-steady", "concurrency": [4], "request_count": 160}],
            "tier": "smoke",
            "rounds": rounds,
            "extra_inputs": {"calibration": {"line": 0, "ttft_ms": 50, "interval_ms": 10, "tokens_per_event": 1}},
        },
        source="the benchmark",
        folder=folder,
    )


def drive_bare(plan: SweepPlan, cells: Sequence[Cell], pair: int, store: RunStore) -> None:
    """What drive_pair drives, by `aiperf profile` alone."""
    folder = store.root / "pairs" / f"{pair:02d}"
    for arm in plan.arms:
        visit = Visit(plan, arm, pair, 0, plan_pair(cells, read_json(folder / "pair.json")), folder / f"bare-{arm}")
        visit.folder.mkdir()
        config = aiperf_config(visit, visit.parts[0], "../requests.jsonl")
        (visit.folder / "aiperf.yaml").write_text(yaml.safe_dump(config))
        command = [aiperf_command(), "profile", "--config", "aiperf.yaml"]
        environment = os.environ | SET_ENVIRONMENT
        subprocess.run(command, cwd=visit.folder, check=True, capture_output=True, env=environment)


def timed(spent: dict[str, float], name: str, what: Callable[..., object], *arguments: object) -> None:
    """Call it and note the seconds it took."""
    began = time.perf_counter()
    what(*arguments)
    spent[name] = time.perf_counter() - began


if __name__ == "__main__":
    main()

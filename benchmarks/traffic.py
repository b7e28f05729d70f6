"""The stopwatch: what this client adds on a mock of known speed, what enginegate adds to AIPerf, how fast it reads.

    .venv/bin/python benchmarks/traffic.py [--no-overhead]

Calibrates at the figures of a fast engine (TTFT 12 ms, 1,792 tokens/s at concurrency 1; 10,307 tokens/s at 32, also in
blocks of four) against the mock's own log; runs visits to the mock by `aiperf` alone and through enginegate's stages;
reads a 2 GB export. The last line is for machines.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from harness import pipeline, sweep
from harness.calibration import MARGIN, calibrate, calibration_table
from harness.calibration_visit import Shape, mock
from harness.demo_models import prepare_models
from harness.endpoint import Engines
from harness.progress import silent
from harness.run_store import RunStore
from harness.sweep_plan import make_sweep
from harness.traffic import aiperf_command

FAST = Shape(ttft_ms=12, tpot_ms=0.558, concurrency=1)
LOADED = Shape(ttft_ms=12, tpot_ms=3.105, concurrency=32)
BLOCKS = Shape(ttft_ms=12, tpot_ms=3.105, concurrency=32, tokens_per_event=4)


def main() -> None:
    """Measure and print; the last line has the four figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-overhead", action="store_true", help="leave out the two visits")
    parser.add_argument("--requests", type=int, default=100_000, help="of the export that is read")
    options = parser.parse_args()
    tokenizer = prepare_models().reference
    biases = calibrate([FAST, LOADED, BLOCKS], tokenizer, fresh=True)
    Console(width=140).print(calibration_table(biases))
    for bias in biases:
        print(bias.sentence(MARGIN))
    overhead = "skipped" if options.no_overhead else f"{overhead_share(tokenizer):.1%}".removesuffix("%")
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
        f"tpot_error_pct={100 * fast.tpot_bias:.2f} ttft_bias_ms={fast.ttft_bias_ms:.2f} "
        f"overhead_pct={overhead} raw_mb_per_s={rate}"
    )


def overhead_share(tokenizer: Path) -> float:
    """Wall time of two visits through enginegate's stages (write, drive, read, measure) over AIPerf's own, minus 1.

    The same configurations are driven once more by `aiperf` alone; the report, written once a run, is left out.
    """
    with tempfile.TemporaryDirectory() as temporary, mock(Path(temporary)) as url:
        shape = {"line": 0, "ttft_ms": 50, "interval_ms": 10, "tokens_per_event": 1}
        plan = make_sweep(
            {
                "model": "calibration",
                "tokenizer": str(tokenizer),
                "endpoints": {"mock": {"url": url}},
                "profiles": [{"name": "chat-steady", "concurrency": [4], "request_count": 160}],
                "tier": "smoke",
                "rounds": 2,
                "extra_inputs": {"calibration": shape},
            },
            source="the benchmark",
            folder=Path(temporary),
        )
        store = RunStore.create(Path(temporary) / "run")
        cells = sweep.check(plan)
        pipeline.prepare(plan, store)
        began = time.perf_counter()
        with Engines(plan, store.root / "engines") as engines:
            for group in sweep.groups(plan, cells):
                pipeline.make_workload(plan, group.cells, group.number, store, silent)
                pipeline.drive_pair(plan, group.cells, group.number, store, engines, silent)
                pipeline.measure_pair(plan, group.cells, group.number, store, silent)
        ours = time.perf_counter() - began
        began = time.perf_counter()
        for visit in sorted(store.root.glob("pairs/*/mock")):
            again = visit.with_name("bare")
            again.mkdir()
            shutil.copy(visit / "aiperf.yaml", again)
            subprocess.run(
                [aiperf_command(), "profile", "--config", "aiperf.yaml"], cwd=again, check=True, capture_output=True
            )
        return ours / (time.perf_counter() - began) - 1


if __name__ == "__main__":
    main()

"""Reading AIPerf's raw exports: seconds, MB/s, peak memory, and the ratio to parsing the same bytes with orjson alone.

    .venv/bin/python benchmarks/raw_export.py [--requests 100000]

The export is a recorded response (tests/recorded/faults) stretched to 64 tokens and repeated with its own line number.
"""

from __future__ import annotations

import argparse
import copy
import resource
import tempfile
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.raw_export import read_records, write_requests
from harness.workload import SCHEMA

RECORDED = Path(__file__).parents[1] / "tests" / "recorded" / "faults" / "aiperf"
TOKENS = 64


def write_export(folder: Path, requests: int) -> tuple[Path, Path]:
    """Write a raw export and its workload; return (aiperf folder, workload)."""
    good = next(r for r in read_records(RECORDED) if r["payload"]["messages"][0]["content"].startswith("good"))
    record = copy.deepcopy(dict(good))
    spoken = next(r for r in record["responses"] if '" one"' in r["packets"][0]["value"])
    at = record["responses"].index(spoken)
    record["responses"][at : at + 8] = [
        {"perf_ns": spoken["perf_ns"] + i * 1_000_000, "packets": spoken["packets"]} for i in range(TOKENS)
    ]
    aiperf = folder / "aiperf"
    aiperf.mkdir()
    with (aiperf / "profile_export_raw.jsonl").open("wb") as file:
        for line in range(requests):
            record["metadata"]["conversation_id"] = f"session_{line:06d}"
            file.write(orjson.dumps(record) + b"\n")
    blank = {"cell": "c", "profile": "p", "kind": "load", "item": "i", "stratum": "s", "messages": "[]"}
    rows = [blank | {"line": i, "max_tokens": TOKENS, "stop": []} for i in range(requests)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "workload.parquet")
    return aiperf, folder / "workload.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    requests = parser.parse_args().requests
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with tempfile.TemporaryDirectory() as temporary:
        aiperf, workload = write_export(Path(temporary), requests)
        megabytes = (aiperf / "profile_export_raw.jsonl").stat().st_size / 1e6
        began = time.perf_counter()
        for _ in read_records(aiperf):
            pass
        parsed = time.perf_counter() - began
        began = time.perf_counter()
        write_requests(aiperf, workload, tokenizer, Path(temporary) / "requests.parquet")
        took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{requests:,} requests of {TOKENS} tokens, {megabytes:,.0f} MB: {took:.1f} s, peak {peak:,.0f} MiB")
    print(f"raw_mb_per_s={megabytes / took:.0f} ratio_to_orjson_alone={took / parsed:.2f}")


if __name__ == "__main__":
    main()

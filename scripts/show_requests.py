"""Print a run's requests as text: one of each profile (or all with --all), as the engine was asked and what it said.

python scripts/show_requests.py RUN [--all]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq

WIDTH = 600


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--all", action="store_true", help="every request, not one of each profile")
    options = parser.parse_args()
    seen: set[str] = set()
    for workload in sorted(options.run.glob("pairs/*/workload.parquet")):
        answers = {
            row["line"]: row
            for path in sorted(workload.parent.glob("*/requests.parquet"))[:1]
            for row in pq.read_table(path, columns=["line", "status", "text", "output_tokens"]).to_pylist()
        }
        for row in pq.read_table(workload).to_pylist():
            if row["kind"] == "warmup" or (row["profile"] in seen and not options.all):
                continue
            seen.add(row["profile"])
            show(row, answers.get(row["line"], {}))


def show(row: dict[str, object], answer: dict[str, object]) -> None:
    """One request with its answer, long texts cut in the middle."""
    print(f"\n=== {row['cell']} line {row['line']} ({row['stratum']}, max_tokens {row['max_tokens']})")
    for message in json.loads(str(row["messages"])):
        print(f"[{message['role']}] {short(message['content'])}")
    print(f"--> {answer.get('status')}, {answer.get('output_tokens')} tokens: {short(str(answer.get('text') or ''))}")


def short(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH // 2]} [... {len(text) - WIDTH} ...] {text[-WIDTH // 2 :]}"


if __name__ == "__main__":
    main()

"""Trim a finished run to what a report reads, for a golden run: `python tests/golden_runs/record.py RUN NAME`.

Kept: verdict, plan, environment, engines, measurements, numbers and texts of requests, token scores, and of the
tokenizer the tokens that occur. Dropped: AIPerf's raw export, logs, logprobs, and the folders in front of file names.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

HERE = Path(__file__).parent
TEXT = ("verdict.json", "plan.yaml", "environment.json", "calibration.json", "engines/*.json", "pairs/*/pair.json")
TEXT += ("pairs/*/*/measurements.json", "pairs/*/*/visit.json", "oracles/*/*.json")
REQUESTS = "pairs/*/*/requests.parquet"
TABLES = {
    "pairs/*/workload.parquet": ("line", "messages"),
    REQUESTS: ("line", "cell", "kind", "status", "ttft_ms", "tpot_ms", "text"),
    "oracles/*/tokens.parquet": (
        "pair", "line", "cell", "item", "stratum", "greedy", "tokens", "margin_sum", "margin_max", "top1",
        "flips_inexcusable", "loop_share", "margins", "ranks", "ids", "choices",
    ),
    "oracles/*/flips.parquet": (
        "item", "task", "direction", "pair", "line", "question", "target", "baseline_extracted", "candidate_extracted",
        "baseline_answer", "candidate_answer", "baseline_fate", "candidate_fate",
    ),
    "oracles/*/tasks.parquet": ("item", "repeat", "target", "extracted", "fate", "score", "text"),
}  # fmt: skip
_PATH = re.compile(r"/(?:root|home|work|tmp|opt|usr|var)/(?:[\w.@+-]+/)*")


def record(run: Path, name: str) -> Path:
    """Write the trimmed copy of `run` and return it."""
    out = HERE / name
    if out.exists():
        shutil.rmtree(out)
    for pattern in TEXT:
        for path in run.glob(pattern):
            _at(out, run, path).write_text(_PATH.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
    spoken = (run / "tokenizer.json").is_file() and any(run.glob("oracles/*/tokens.parquet"))  # texts come from ids
    for pattern, columns in TABLES.items():
        for path in run.glob(pattern):
            table = pq.read_table(path)
            names = [
                name
                for name in columns
                if name in table.column_names and not (pattern == REQUESTS and name == "text" and spoken)
            ]
            kept = _short_messages(table.select(names))
            pq.write_table(kept, _at(out, run, path), compression="zstd", compression_level=19)
    _tokenizer(run, out)
    return out


def _short_messages(table: pa.Table) -> pa.Table:
    """The end of the last message alone: a report shows no more of a prompt."""
    if "messages" not in table.column_names:
        return table
    asked = [json.loads(messages) for messages in table["messages"].to_pylist()]
    short = [
        one[-300:] if isinstance(one, str) else [{**one[-1], "content": one[-1]["content"][-300:]}] for one in asked
    ]
    column = pa.array([json.dumps(one) for one in short])
    return table.set_column(table.column_names.index("messages"), "messages", column)


def _at(out: Path, run: Path, path: Path) -> Path:
    target = out / path.relative_to(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _tokenizer(run: Path, out: Path) -> None:
    """The same decoding from a vocabulary of the tokens that occur."""
    used: set[int] = set()
    for path in out.glob("oracles/*/tokens.parquet"):
        table = pq.read_table(path)
        for column in ("ids", "choices"):
            if column in table.column_names:
                used |= set(pc.list_flatten(table[column]).to_pylist())
    if not used or not (run / "tokenizer.json").is_file():
        return
    whole = Tokenizer.from_file(str(run / "tokenizer.json"))
    small = Tokenizer(WordLevel({whole.id_to_token(i): i for i in sorted(used)}, unk_token="?"))
    small.decoder = decoders.ByteLevel()
    small.save(str(out / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), sys.argv[2]))

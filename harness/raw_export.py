"""AIPerf's raw export turned into one row a request (`requests.parquet`): streamed, bounded, nothing dropped.

AIPerf exits 0 with failed requests, counts error events inside a 200 stream as success and knows nothing of a stream
that ends early (docs/adr/002), so every row's status is derived here from the events themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness.errors import InvalidRun
from harness.events import TEXT_LIMIT, Answer, read_answer
from harness.parts import suffix

BATCH_ROWS = 512
_ASKED = ("line", "cell", "kind", "item", "stratum")
LINE_LIMIT = 256 << 20

SCHEMA = pa.schema(
    [
        ("line", pa.int32()),
        ("cell", pa.string()),
        ("kind", pa.string()),
        ("item", pa.string()),
        ("stratum", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("http_status", pa.int32()),
        ("start_s", pa.float64()),
        ("credit_lag_ms", pa.float64()),
        ("ttft_ms", pa.float64()),
        ("tpot_ms", pa.float64()),
        ("request_latency_ms", pa.float64()),
        ("output_tokens", pa.int32()),
        ("output_tokens_source", pa.string()),
        ("usage_prompt_tokens", pa.int32()),
        ("usage_completion_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("retokenised_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("done", pa.bool_()),
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("token_logprobs", pa.list_(pa.float32())),
        ("event_ms", pa.list_(pa.float32())),
        ("event_tokens", pa.list_(pa.int32())),
    ]
)


def write_requests(aiperf: Path, workload: Path, tokenizer: Tokenizer, out: Path) -> None:
    """Read AIPerf's raw export in `aiperf` (and `aiperf-2`, ... beside it) and write `out`, a row for every line asked.

    Rows come in the order of the workload's lines within each batch read; a request without a record is `missing`.
    Raises InvalidRun when the export is broken, repeats a request, or holds one that was never asked.
    """
    pending = {_key(row): {name: row[name] for name in _ASKED} for row in _asked(workload)}
    origin: int | None = None
    temporary = out.with_name(f".{out.name}.partial")
    with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for part, record in _records_of_parts(aiperf):
            key = (part, *_turn_of(record, aiperf))
            if key not in pending:
                raise InvalidRun(
                    f"{aiperf}: {key[1]}, turn {key[2]}, was answered twice or never asked; the export is not this "
                    "run's."
                )
            start_ns = record["metadata"]["request_start_ns"]
            origin = start_ns if origin is None else origin
            batch.append({**pending.pop(key), **_row(record, origin)})
            if len(batch) == BATCH_ROWS:
                _flush(writer, batch, tokenizer)
        batch += [{**row, "status": "missing", "error": "no record in AIPerf's export"} for row in pending.values()]
        _flush(writer, batch, tokenizer)
    temporary.replace(out)


def read_records(aiperf: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the raw records one at a time. InvalidRun names the file and line that is cut or no JSON."""
    merged = aiperf / "profile_export_raw.jsonl"
    # When every request failed AIPerf leaves its unmerged parts and no summary.
    sources = [merged] if merged.is_file() else sorted((aiperf / "raw_records").glob("*.jsonl"))
    for source in sources:
        with source.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, LINE_LIMIT), b""), start=1):
                try:
                    record = orjson.loads(line)
                    metadata = record["metadata"]
                    if not isinstance(metadata["request_start_ns"], int) or not isinstance(metadata, dict):
                        raise TypeError
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    raise InvalidRun(
                        f"{source}, line {number}: not a whole AIPerf record; the export was cut."
                    ) from None
                yield record


def _asked(workload: Path) -> list[dict[str, Any]]:
    names = pq.read_schema(workload).names
    wanted = [name for name in (*_ASKED, "part", "session", "turn") if name in names]
    rows: list[dict[str, Any]] = pq.read_table(workload, columns=wanted).to_pylist()
    return rows


def _key(row: Mapping[str, Any]) -> tuple[int, str, int]:
    """How AIPerf knows the request: process, conversation in it, turn; by default its line in the only file."""
    return row.get("part") or 1, row.get("session") or f"session_{row['line']:06d}", row.get("turn") or 0


def _records_of_parts(aiperf: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    part, folder = 1, aiperf
    while part == 1 or folder.is_dir():
        for record in read_records(folder):
            yield part, record
        part += 1
        folder = aiperf.with_name(f"{aiperf.name}{suffix(part)}")


def _turn_of(record: Mapping[str, Any], aiperf: Path) -> tuple[str, int]:
    name, turn = record["metadata"].get("conversation_id"), record["metadata"].get("turn_index", 0)
    if not isinstance(name, str) or not name.removeprefix("session_").isdigit() or not isinstance(turn, int):
        raise InvalidRun(f"{aiperf}: a record has no session number; was it written by another AIPerf version?")
    return name, turn


def _row(record: Mapping[str, Any], origin: int) -> dict[str, Any]:
    metadata = record["metadata"]
    answer = read_answer(record.get("responses") or [])
    start = record.get("start_perf_ns")
    events = [(stamp - start) / 1e6 for stamp in answer.event_ns] if isinstance(start, int) else []
    status, error = _status(record, answer)
    credit = metadata.get("credit_issued_ns")
    http_status = record.get("status")
    ids = answer.ids
    return {
        "status": status,
        "error": error[:300],
        "http_status": http_status if isinstance(http_status, int) else None,
        "start_s": (metadata["request_start_ns"] - origin) / 1e9,
        "credit_lag_ms": (metadata["request_start_ns"] - credit) / 1e6 if isinstance(credit, int) else None,
        "ttft_ms": events[0] if events else None,
        "request_latency_ms": events[-1] if events else None,
        "usage_prompt_tokens": answer.usage.get("prompt_tokens"),
        "usage_completion_tokens": answer.usage.get("completion_tokens"),
        "cached_tokens": answer.usage.get("cached_tokens"),
        "finish_reason": answer.finish_reason,
        "done": answer.done,
        "text": "".join(answer.text)[:TEXT_LIMIT],
        "reasoning": "".join(answer.reasoning)[:TEXT_LIMIT],
        "token_ids": ids,
        "token_logprobs": answer.logprobs if ids is not None and len(answer.logprobs) == len(ids) else None,
        "event_ms": events,
        "_answer": answer,
    }


def _status(record: Mapping[str, Any], answer: Answer) -> tuple[str, str]:  # noqa: PLR0911 - one return a fate
    """The request's fate and, when it is not ok, what was said. The first rule that fits decides."""
    error = record.get("error")
    error = error if isinstance(error, dict) else {}
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    code = record.get("status") or error.get("code")
    if record["metadata"].get("was_cancelled"):
        return "cancelled", message or "cancelled by the client"
    if isinstance(code, int) and code >= 400:
        return "http_error", message or f"HTTP {code}"
    if "Timeout" in kind:
        return "timeout", message or kind
    if answer.error or kind == "SSEResponseError":
        return "stream_error", answer.error or message
    if error and kind != "InvalidInferenceResultError":
        return ("truncated" if answer.event_ns else "connection_error"), f"{kind}: {message}"
    if not any(answer.event_text) and not answer.ids:
        return "empty", message or "no content in the stream"
    if answer.finish_reason is None and not answer.done:
        return "truncated", "the stream ended without finish_reason or [DONE]"
    return "ok", ""


def _flush(writer: pq.ParquetWriter, batch: list[dict[str, Any]], tokenizer: Tokenizer) -> None:
    counts = [len(e) for e in tokenizer.encode_batch([_spoken(row) for row in batch], add_special_tokens=False)]
    for row, count in zip(batch, counts, strict=True):
        answer = row.pop("_answer", None)
        if answer is not None:
            row["retokenised_tokens"] = count
            _count_tokens(row, answer, tokenizer)
    writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
    batch.clear()


def _spoken(row: Mapping[str, Any]) -> str:
    return str(row.get("reasoning") or "") + str(row.get("text") or "")


def _count_tokens(row: dict[str, Any], answer: Answer, tokenizer: Tokenizer) -> None:
    """Set output_tokens, event_tokens and tpot_ms: ids before usage before re-tokenising, per token and block-safe."""
    ids, usage, count = row["token_ids"], row["usage_completion_tokens"], row["retokenised_tokens"]
    # At a natural stop an honest engine counts the end token, which no event shows.
    if ids is not None and usage is not None and len(ids) not in (usage, usage - 1):
        ids = row["token_ids"] = row["token_logprobs"] = None
    row["event_tokens"] = _event_tokens(answer, ids, count, tokenizer)
    if ids is not None:
        row["output_tokens"], row["output_tokens_source"], shown = len(ids), "ids", len(ids)
    elif usage is not None:
        shown = usage - 1 if row["finish_reason"] == "stop" and usage == count + 1 else usage
        row["output_tokens"], row["output_tokens_source"] = usage, "usage"
    else:
        row["output_tokens"], row["output_tokens_source"], shown = count, "retokenised" if count else "none", count
    events = row["event_ms"]
    after_first = shown - row["event_tokens"][0] if events else 0
    if len(events) > 1 and after_first > 0:
        row["tpot_ms"] = (events[-1] - events[0]) / after_first


def _event_tokens(answer: Answer, ids: list[int] | None, count: int, tokenizer: Tokenizer) -> list[int]:
    """Tokens in each content event: from ids, else from running usage, else from the text."""
    if ids is not None:
        return [len(event or ()) for event in answer.event_ids]
    running = answer.event_usage
    known = [value for value in running if value is not None]
    if running and len(known) == len(running) and known == sorted(known) and known[0] > 0:
        return [known[0]] + [after - before for before, after in pairwise(known)]
    if len(answer.event_text) == count:
        return [1] * count
    pieces = tokenizer.encode_batch(answer.event_text, add_special_tokens=False)
    return [max(1, len(piece)) for piece in pieces]

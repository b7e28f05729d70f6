"""Log-probabilities on disk: asked for where the engine is, set against the reference where that is.

    logits/<arm>/rows.parquet    one row a text and phase: the ids before it, its ids, what the server returned for each
    logits/<arm>/routes.json     for each phase, what came of it in a sentence; the engine's agreement with itself

Prefill: a text of the workload goes in as ids and its own log-probabilities come back. Decode: the engine goes on from
the text's beginning at temperature 0 and says what it thought of its own tokens; the reference is fed these. Sampled:
the same of some texts with a seed and at another temperature (`oracles.sampling`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oracles.atomic import write_bytes, write_table
from oracles.logits import TOP_K, Ask, Document, Phase, ask_decode, ask_prompt, self_consistency
from oracles.logprob_rows import LogprobRow
from oracles.reference import OracleError
from oracles.sampling import TEMPERATURE
from oracles.scoring import Progress

TEXT_TOKENS, PROMPT_TOKENS, DECODE_TOKENS = 384, 96, 48
IN_FLIGHT = 4
CONSISTENCY_TEXTS, CONSISTENCY_TOKENS, SAMPLED_TEXTS = 4, 64, 8

SCHEMA = pa.schema(
    [
        ("pair", pa.int32()),
        ("line", pa.int32()),
        ("item", pa.string()),
        ("stratum", pa.string()),
        ("phase", pa.string()),
        ("context", pa.list_(pa.int32())),
        ("ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("counts", pa.list_(pa.int32())),
        ("other_ids", pa.list_(pa.int32())),
        ("other_logprobs", pa.list_(pa.float32())),
        ("seed", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Text:
    """A text of the workload as token ids; `pair` and `line` say where it is from."""

    pair: int
    line: int
    item: str
    stratum: str
    ids: Sequence[int]


def collect(
    ask: Ask, model: str, texts: Sequence[Text], out_dir: Path, *, top_k: int = TOP_K, progress: Progress | None = None
) -> list[Path]:
    """Ask an endpoint for everything it says of `texts` and write it; a route that it lacks is a sentence, no error."""
    documents: list[tuple[Text, Document]] = []
    routes: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    asked: dict[Phase, Sequence[Text]] = {"prefill": texts, "decode": texts, "sampled": texts[:SAMPLED_TEXTS]}
    before, total = 0, sum(map(len, asked.values()))
    for phase, some in asked.items():

        def advanced(done: int, before: int = before) -> None:
            if progress:
                progress(before + done, total)

        found, routes[phase] = _route(ask, model, phase, some, top_k, advanced)
        documents += found
        before += len(some)
    if {document.phase for _, document in documents} >= {"prefill", "decode"}:
        prompts = [text.ids[:PROMPT_TOKENS] for text in texts[:CONSISTENCY_TEXTS]]
        try:
            found_k3, missing = self_consistency(ask, model, prompts, max_tokens=CONSISTENCY_TOKENS)
            metrics = {name: metric.model_dump() for name, metric in found_k3.items()}
            if missing:
                routes["self-consistency"] = missing
        except OracleError as error:
            routes["self-consistency"] = str(error)
    rows = [_row(text, document) for text, document in documents]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    told = json.dumps({"schema_version": 1, "top_k": top_k, "routes": routes, "metrics": metrics}, indent=2).encode()
    return [write_table(out_dir / "rows.parquet", table), write_bytes(out_dir / "routes.json", told + b"\n")]


def _route(
    ask: Ask, model: str, phase: Phase, texts: Sequence[Text], top_k: int, advanced: Callable[[int], None]
) -> tuple[list[tuple[Text, Document]], str]:
    """One phase over all texts, several at once; the first answer decides whether there is such a route."""

    def one(text: Text) -> Document | str:
        try:
            return _ask_one(ask, model, phase, text, top_k)
        except OracleError as error:
            return str(error)

    if not texts:
        return [], "There is no text to ask about."
    first = one(texts[0])
    if isinstance(first, str) and isinstance(one(texts[-1]), str):
        return [], first
    answers = [first]
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for answer in pool.map(one, texts[1:]):
            answers.append(answer)
            advanced(len(answers))
    found = [(text, answer) for text, answer in zip(texts, answers, strict=True) if isinstance(answer, Document)]
    refused = Counter(answer for answer in answers if isinstance(answer, str))
    told = f"{len(found)} of {len(texts)} texts came with log-probabilities."
    return found, " ".join([told, *(f"{n} refused: {why}" for why, n in refused.most_common(3))])


def _ask_one(ask: Ask, model: str, phase: Phase, text: Text, top_k: int) -> Document:
    if phase == "prefill":
        ids = text.ids[:TEXT_TOKENS]
        rows = ask_prompt(ask, model, ids, top_k)
        return Document(text.item, text.stratum, phase, ids[:1], ids[1:], rows)
    prompt = text.ids[:PROMPT_TOKENS]
    seed = text.line if phase == "sampled" else None
    drawn = {} if seed is None else {"temperature": TEMPERATURE, "seed": seed}
    rows = ask_decode(ask, model, prompt, DECODE_TOKENS, top_k=top_k, **drawn)
    return Document(text.item, text.stratum, phase, prompt, [row.token for row in rows], rows, seed)


def read_documents(folder: Path) -> list[tuple[Text, Document]]:
    """Everything that `collect` wrote, with the text each document is about. Raises OracleError."""
    path = folder / "rows.parquet"
    try:
        rows = pq.read_table(path, schema=SCHEMA).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise OracleError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return [_document(row) for row in rows]


def read_routes(folder: Path) -> dict[str, Any]:
    """routes.json. Raises OracleError."""
    try:
        routes: dict[str, Any] = json.loads((folder / "routes.json").read_bytes())
    except (OSError, ValueError) as error:
        raise OracleError(f"{folder / 'routes.json'} cannot be read: {error}") from error
    return routes


def fewest_ids(documents: Sequence[tuple[Text, Document]]) -> int | None:
    """The least number of ids that came back at a position; None without a position.

    A divergence over more ids is larger, so both arms are cut to what the poorer one returned.
    """
    return min((len(row.others) for _, document in documents for row in document.rows), default=None)


def cut_to(documents: Sequence[tuple[Text, Document]], top_k: int) -> list[tuple[Text, Document]]:
    """The same with the `top_k` most likely ids of each position besides its own token."""

    def cut(row: LogprobRow) -> LogprobRow:
        kept = sorted(row.others.items(), key=lambda pair: -pair[1])[:top_k]
        return LogprobRow(row.token, row.logprob, dict(kept), row.rank)

    return [(text, replace(document, rows=[cut(row) for row in document.rows])) for text, document in documents]


def _row(text: Text, document: Document) -> dict[str, Any]:
    others = [pair for row in document.rows for pair in row.others.items()]
    return {
        "pair": text.pair,
        "line": text.line,
        "item": text.item,
        "stratum": text.stratum,
        "phase": document.phase,
        "context": list(document.context),
        "ids": list(document.ids),
        "logprobs": [row.logprob for row in document.rows],
        "counts": [len(row.others) for row in document.rows],
        "other_ids": [token for token, _ in others],
        "other_logprobs": [value for _, value in others],
        "seed": document.seed,
    }


def _document(row: dict[str, Any]) -> tuple[Text, Document]:
    rows, place = [], 0
    for token, logprob, count in zip(row["ids"], row["logprobs"], row["counts"], strict=True):
        part = slice(place, place + count)
        others = dict(zip(row["other_ids"][part], row["other_logprobs"][part], strict=True))
        rows.append(LogprobRow(token, logprob, others))
        place += count
    text = Text(row["pair"], row["line"], row["item"], row["stratum"], [*row["context"], *row["ids"]])
    return text, Document(row["item"], row["stratum"], row["phase"], row["context"], row["ids"], rows, row["seed"])

"""The timed answers of one arm as token ids, or the reason why one cannot be scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oracles.reference import OracleError, Reference
from oracles.scoring import ScoreRequest

Key = tuple[int, int]
ASKED = ("line", "cell", "kind", "item", "stratum", "temperature", "fixed_length", "stop", "messages")
CAME = ("line", "status", "finish_reason", "text", "reasoning", "token_ids", "usage_prompt_tokens")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Visit:
    """One arm's files of one pair."""

    pair: int
    requests: Path
    workload: Path


@dataclass(frozen=True)
class Answer:
    """One timed answer, ready to be scored.

    `greedy`: asked at temperature 0, so every token is the engine's own argmax. `no_end`: end tokens were forbidden.
    `more_prompt_tokens`: the engine's count of the prompt less the reference's, None when it gave none. `stops`: the
    strings one of which may have ended the answer and been cut off its text.
    """

    pair: int
    line: int
    cell: str
    item: str
    stratum: str
    prompt: Sequence[int]
    ids: Sequence[int]
    source: str
    greedy: bool
    no_end: bool
    more_prompt_tokens: int | None = None
    stops: tuple[str, ...] = ()

    @property
    def request(self) -> ScoreRequest:
        """What the reference is asked about it."""
        return ScoreRequest(self.prompt, self.ids, no_end=self.no_end)


@dataclass
class Answers:
    """Everything asked of one arm: what can be scored, what cannot and why, and what the scoring had to assume.

    Attributes:
        scored: answers with ids, in (pair, line) order.
        timed: requests asked, warm-up left out.
        unscored: reason -> requests.
        cut: answers that run past the reference's context; their first part is scored.
        refused_ids: answers whose engine ids do not spell their text or leave the vocabulary; the text is scored.
        split_otherwise: answers whose text fits the reference better in other tokens (oracles/splits.py).
        round_trips: answers with engine ids -> of these, how many the text re-tokenises to exactly.
    """

    scored: list[Answer] = field(default_factory=list)
    timed: int = 0
    unscored: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    refused_ids: int = 0
    split_otherwise: int = 0
    round_trips: tuple[int, int] = (0, 0)


def keys_with_ids(visits: Sequence[Visit]) -> frozenset[Key]:
    """(pair, line) of every answer for which the engine gave its token ids."""
    found: set[Key] = set()
    for visit in visits:
        table = pq.read_table(visit.requests, columns=["line", "token_ids"])
        rows = zip(table["line"].to_pylist(), table["token_ids"].to_pylist(), strict=True)
        found |= {(visit.pair, line) for line, ids in rows if ids}
    return frozenset(found)


def read_answers(visits: Sequence[Visit], reference: Reference, engine_ids: Collection[Key] | None = None) -> Answers:
    """Read an arm's answers and turn them into ids.

    Args:
        visits: the arm's files.
        reference: tokenizer, chat template and limits.
        engine_ids: answers to take the engine's ids for; all others are re-tokenised from their text. Give both arms
            the same (`keys_with_ids(baseline) & keys_with_ids(candidate)`), or their noise differs. None: all.

    Raises:
        OracleError: a file lacks a column.
    """
    answers = Answers()
    prompts: dict[str, list[int] | str] = {}
    for visit in visits:
        for row in _joined(visit):
            answers.timed += 1
            try:
                answers.scored.append(_answer(visit.pair, row, reference, engine_ids, prompts, answers))
            except OracleError as reason:
                answers.unscored[str(reason)] += 1
    answers.scored.sort(key=lambda a: (a.pair, a.line))
    return answers


def _joined(visit: Visit) -> Iterator[dict[str, Any]]:
    """Workload and response of each timed request."""
    asked, came = _read(visit.workload, ASKED), _read(visit.requests, CAME)
    answers = {row["line"]: row for row in came.to_pylist()}
    for row in asked.to_pylist():
        if row["kind"] != "warmup":
            yield {**answers.get(row["line"], {"status": "missing"}), **row}


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    try:
        return pq.read_table(path, columns=list(columns))
    except (OSError, pa.ArrowInvalid) as error:
        raise OracleError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _answer(
    pair: int,
    row: dict[str, Any],
    reference: Reference,
    engine_ids: Collection[Key] | None,
    prompts: dict[str, list[int] | str],
    answers: Answers,
) -> Answer:
    """One row as an Answer; OracleError says why it cannot be scored."""
    if row["status"] != "ok":
        raise OracleError(f"the request ended in {row['status']}")
    prompt = _prompt(row["messages"], reference, prompts)
    key = (pair, row["line"])
    ids, source = _ids(row, reference, engine_ids is None or key in engine_ids, answers)
    if not ids:
        raise OracleError("the answer is empty")
    if row["finish_reason"] == "stop" and not row["stop"] and ids[-1] not in reference.end_token_ids:
        ids = [*ids, reference.end_token_id]
    room = reference.context_length - len(prompt)
    if room < 1:
        raise OracleError(f"the prompt fills the reference's context of {reference.context_length} tokens")
    answers.cut += len(ids) > room
    claimed = row["usage_prompt_tokens"]
    return Answer(
        *key,
        cell=row["cell"],
        item=row["item"],
        stratum=row["stratum"],
        prompt=prompt,
        ids=ids[:room],
        source=source,
        greedy=row["temperature"] == 0,
        no_end=bool(row["fixed_length"]),
        more_prompt_tokens=None if claimed is None else claimed - len(prompt),
        stops=tuple(row["stop"] or ()) if row["finish_reason"] == "stop" else (),
    )


def _prompt(messages: str, reference: Reference, seen: dict[str, list[int] | str]) -> list[int]:
    """Ids of a prompt; equal prompts, also refused ones, are rendered once."""
    if messages not in seen:
        try:
            seen[messages] = reference.prompt_ids(json.loads(messages)) or "the prompt is empty"
        except (OracleError, json.JSONDecodeError) as error:
            seen[messages] = f"the prompt could not be rendered: {error}"
    ids = seen[messages]
    if isinstance(ids, str):
        raise OracleError(ids)
    return ids


def _ids(row: dict[str, Any], reference: Reference, from_engine: bool, answers: Answers) -> tuple[list[int], str]:
    """Token ids of an answer and where they are from; engine ids that do not spell the text are not believed."""
    text, reasoning, ids = row["text"] or "", row["reasoning"] or "", row["token_ids"]
    if ids and from_engine:
        if _spells(ids, text, reasoning, bool(row["stop"]), reference):
            if not reasoning:
                plain = ids[:-1] if ids[-1] in reference.end_token_ids else ids
                same, asked = answers.round_trips
                answers.round_trips = (same + (reference.encode_output(text) == plain), asked + 1)
            return ids, "engine"
        answers.refused_ids += 1
    if reasoning:
        raise OracleError("reasoning text without token ids cannot be re-tokenised: how it was fenced is not known")
    return reference.encode_output(text), "retokenised"


def _spells(ids: Sequence[int], text: str, reasoning: str, stops: bool, reference: Reference) -> bool:
    """Do the ids spell what was sent? White space, cut characters and hidden special tokens are forgiven."""
    if not all(0 <= i < reference.vocab_size for i in ids):
        return False
    sent, spelt = _letters(text), _letters(reference.decode(ids))
    if reasoning:
        return spelt.endswith(sent)
    return spelt == sent or (stops and spelt.startswith(sent)) or _letters(reference.decode(ids, special=True)) == sent


def _letters(text: str) -> str:
    return "".join(text.replace(REPLACEMENT, "").split())

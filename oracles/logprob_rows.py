"""Log-probabilities as servers return them, every dialect turned into one row a position, keyed by token id.

| dialect | where | ids |
| --- | --- | --- |
| vLLM prompt logprobs | `prompt_logprobs`: null, then {id: {logprob, rank}} | keys |
| legacy completions, with or without echo | `logprobs.tokens`, `token_logprobs`, `top_logprobs` | `token_id:N` |
| chat, decode | `logprobs.content[]` with `top_logprobs[]` | llama.cpp's `id`, or `token_id:N` |

Strings are never a key: two tokens can share one (all parts of a split character are ""), so an answer that names its
tokens by text alone is refused with what to ask for. So is everything that servers with a fault were seen to send: too
few or too many rows, a series of zeros, numbers that are not finite or above zero, another token than was fed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oracles.reference import OracleError

SLACK = 1e-3  # rounding of a log-probability of (almost) one, or of a sum of probabilities
_PREFIX = "token_id:"


@dataclass(frozen=True)
class LogprobRow:
    """One position: the token that was fed or chosen, its log-probability, and the others that were returned.

    `rank` counts the tokens that are more likely, where the server says so (vLLM's own counts from 1).
    """

    token: int
    logprob: float
    others: Mapping[int, float]
    rank: int | None = None

    @property
    def known(self) -> dict[int, float]:
        """Every id with its log-probability, the token itself included."""
        return {**self.others, self.token: self.logprob}


def prompt_rows(answer: Mapping[str, Any], ids: Sequence[int]) -> list[LogprobRow]:
    """Rows of a prompt's positions 1.. from vLLM's `prompt_logprobs` or from `echo` with `logprobs`.

    Args:
        answer: the whole JSON answer.
        ids: the prompt's token ids as sent; row i-1 is about ids[i].

    Raises:
        OracleError: no such rows in the answer, or rows that cannot be right.
    """
    choice = _choice(answer)
    raw = answer.get("prompt_logprobs") or choice.get("prompt_logprobs")
    if isinstance(raw, list):
        rows = [
            None if entry is None else _vllm_row(entry, ids[i] if i < len(ids) else -1) for i, entry in enumerate(raw)
        ]
    else:
        rows = _legacy_rows(choice.get("logprobs"))[: len(ids)]
    if not rows:
        raise OracleError("The answer holds no prompt log-probabilities: the server ignores prompt_logprobs and echo.")
    if len(rows) != len(ids):
        raise OracleError(f"{len(rows)} rows of log-probabilities came for a prompt of {len(ids)} tokens.")
    first, rest = rows[0], rows[1:]
    if first is not None:
        raise OracleError(
            "The first prompt token has a log-probability, though nothing comes before it: rows are shifted."
        )
    if any(row is None for row in rest):
        raise OracleError("A position inside the prompt has no log-probability.")
    return _checked([row for row in rest if row is not None], ids[1:])


def decode_rows(answer: Mapping[str, Any], ids: Sequence[int] | None = None) -> list[LogprobRow]:
    """Rows of the generated tokens of a chat or completions answer.

    Args:
        answer: the whole JSON answer; of a stream, its logprobs lists joined.
        ids: the generated ids as the engine claims them elsewhere, to compare with.
    """
    block = _choice(answer).get("logprobs")
    content = block.get("content") if isinstance(block, Mapping) else None
    rows = [_chat_row(entry) for entry in content] if isinstance(content, list) else _legacy_rows(block)
    if not rows or any(row is None for row in rows):
        raise OracleError("The answer holds no log-probabilities of its own tokens: ask for logprobs, or do without.")
    return _checked([row for row in rows if row is not None], ids)


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise OracleError("The answer has no choices.")
    return choices[0]


def _vllm_row(entry: Any, token: int) -> LogprobRow:
    if not isinstance(entry, Mapping):
        raise OracleError("prompt_logprobs holds something else than token ids with log-probabilities.")
    known = {
        _id(key): _number(value.get("logprob") if isinstance(value, Mapping) else value) for key, value in entry.items()
    }
    if token not in known:
        raise OracleError(
            f"A row of prompt_logprobs lacks the prompt's own token {token}: rows are shifted or reordered."
        )
    own = next(value for key, value in entry.items() if _id(key) == token)
    rank = own.get("rank") if isinstance(own, Mapping) else None
    return LogprobRow(token, known.pop(token), known, rank - 1 if isinstance(rank, int) and rank > 0 else None)


def _chat_row(entry: Any) -> LogprobRow:
    if not isinstance(entry, Mapping):
        raise OracleError("logprobs.content holds something else than tokens.")
    others = {_id_of(other): _number(other.get("logprob")) for other in entry.get("top_logprobs") or []}
    token = _id_of(entry)
    others.pop(token, None)
    return LogprobRow(token, _number(entry.get("logprob")), others)


def _legacy_rows(block: Any) -> list[LogprobRow | None]:
    """Rows of the legacy completions shape; None where the log-probability is null."""
    if not isinstance(block, Mapping) or not isinstance(block.get("tokens"), list):
        return []
    tokens, logprobs = block["tokens"], block.get("token_logprobs") or []
    tops = block.get("top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(logprobs) == len(tops):
        raise OracleError(
            f"{len(tokens)} tokens came with {len(logprobs)} log-probabilities and {len(tops)} top lists."
        )
    rows: list[LogprobRow | None] = []
    for token, logprob, top in zip(tokens, logprobs, tops, strict=True):
        if logprob is None:
            rows.append(None)
            continue
        others = {_id(key): _number(value) for key, value in (top or {}).items()}
        own = _id(token)
        others.pop(own, None)
        rows.append(LogprobRow(own, _number(logprob), others))
    return rows


def _id_of(entry: Mapping[str, Any]) -> int:
    own = entry.get("id")
    return own if isinstance(own, int) else _id(entry.get("token"))


def _id(key: Any) -> int:
    text = key.removeprefix(_PREFIX) if isinstance(key, str) else ""
    if not text.isdecimal() or (isinstance(key, str) and len(text) > 9):
        raise OracleError(
            f"Log-probabilities are keyed by text ({str(key)[:20]!r}), and two tokens can share a text: "
            "ask for return_tokens_as_token_ids, or use a server that returns ids."
        )
    return int(text)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OracleError(f"A log-probability is {str(value)[:20]!r}: not a finite number.")
    if value > SLACK:
        raise OracleError(f"A log-probability is {value:.4g}: above zero.")
    return min(float(value), 0.0)


def _checked(rows: list[LogprobRow], ids: Sequence[int] | None) -> list[LogprobRow]:
    """Refuse rows that no model gives."""
    if ids is not None:
        if len(rows) != len(ids):
            raise OracleError(f"{len(rows)} rows of log-probabilities came for {len(ids)} tokens.")
        wrong = next((i for i, (row, token) in enumerate(zip(rows, ids, strict=True)) if row.token != token), None)
        if wrong is not None:
            raise OracleError(f"Row {wrong} is about token {rows[wrong].token}, not {ids[wrong]}: rows are shifted.")
    if len(rows) > 1 and all(row.logprob == 0 for row in rows):
        raise OracleError("Every log-probability is exactly 0: the server does not compute them.")
    for row in rows:
        total = sum(math.exp(value) for value in row.known.values())
        if total > 1 + SLACK:
            raise OracleError(f"The probabilities of one position add up to {total:.4g}.")
    return rows

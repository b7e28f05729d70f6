"""What an engine said, event by event: server-sent events of every OpenAI dialect turned into one Answer.

Everything here is hostile input: any JSON value may stand anywhere, so each access is typed and nothing is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

TEXT_LIMIT = 1 << 20


@dataclass
class Answer:
    """One streamed response, as it arrived. Times are nanoseconds on the client's monotonic clock."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    event_ns: list[int] = field(default_factory=list)  # content events only
    event_text: list[str] = field(default_factory=list)
    event_ids: list[list[int] | None] = field(default_factory=list)
    event_usage: list[int | None] = field(default_factory=list)  # completion tokens so far, where the engine says so
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[int] | None:
        """All token ids in order, or None unless every content event carried its own."""
        if not self.event_ids or any(ids is None for ids in self.event_ids):
            return None
        return [token for ids in self.event_ids for token in ids or ()]


def read_answer(responses: Iterable[Any]) -> Answer:
    """Fold AIPerf's `responses` list (one entry a read, one packet a server-sent event line) into an Answer."""
    answer = Answer()
    size = 0
    for response in responses:
        if not isinstance(response, dict):
            continue
        stamp = response.get("perf_ns")
        for packet in _list(response.get("packets")):
            if not isinstance(packet, dict):
                continue
            value = packet.get("value")
            if packet.get("name") == "event" and value == "error":
                answer.error = answer.error or "event: error"
            if packet.get("name") != "data" or not isinstance(value, str) or not isinstance(stamp, int):
                continue
            size += len(value)
            if size > 64 * TEXT_LIMIT:
                answer.error = answer.error or "the response is larger than 64 MiB"
                return answer
            _fold(answer, value, stamp)
    return answer


def _fold(answer: Answer, value: str, stamp: int) -> None:
    if value.strip() == "[DONE]":
        answer.done = True
        return
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        answer.error = answer.error or f"an event is not JSON: {value[:120]}"
        return
    if not isinstance(event, dict):
        answer.error = answer.error or f"an event is not an object: {value[:120]}"
        return
    if event.get("error"):
        answer.error = answer.error or f"error event: {orjson.dumps(event['error'])[:200].decode('utf-8', 'replace')}"
    counted = None
    if event.get("usage") is not None:
        usage = _usage(event["usage"])
        answer.usage |= usage
        counted = usage.get("completion_tokens")
    choices = event.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        _fold_choice(answer, choices[0], stamp, counted)


def _fold_choice(answer: Answer, choice: dict[str, Any], stamp: int, usage: int | None) -> None:
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    text = _text(delta.get("content")) or _text(choice.get("text"))
    if not text and "tool_calls" in delta:
        text = _tool_text(delta["tool_calls"])
    reasoning = ""
    if len(delta) > 1 or not text:  # most events are one piece of text: worth a shortcut at a million events
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    ids, logprobs = _tokens(choice)
    if text or reasoning or ids:
        answer.text.append(text)
        answer.reasoning.append(reasoning)
        answer.event_ns.append(stamp)
        answer.event_text.append(reasoning + text)
        answer.event_ids.append(ids)
        answer.event_usage.append(usage)
        answer.logprobs += logprobs
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        answer.finish_reason = reason[:40]


def _tokens(choice: dict[str, Any]) -> tuple[list[int] | None, list[float]]:
    """Token ids and claimed logprobs of one event: vLLM's token_ids, or ids inside llama.cpp's logprobs."""
    ids = [token for token in _list(choice.get("token_ids")) if isinstance(token, int) and 0 <= token < 2**31]
    block = choice.get("logprobs")
    if not isinstance(block, dict):
        return (ids or None), []
    entries = [entry for entry in _list(block.get("content")) if isinstance(entry, dict)]
    legacy = [value for value in _list(block.get("token_logprobs")) if isinstance(value, int | float)]
    logprobs = [entry["logprob"] for entry in entries if isinstance(entry.get("logprob"), int | float)] or legacy
    if not ids:
        ids = [entry["id"] for entry in entries if isinstance(entry.get("id"), int) and 0 <= entry["id"] < 2**31]
        if len(ids) != len(entries):
            ids = []
    return (ids or None), [float(value) for value in logprobs]


def _usage(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    details = value.get("prompt_tokens_details")
    found = {
        "prompt_tokens": value.get("prompt_tokens"),
        "completion_tokens": value.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens") if isinstance(details, dict) else None,
    }
    return {key: number for key, number in found.items() if type(number) is int and 0 <= number < 2**31}


def _tool_text(value: Any) -> str:
    parts = [call.get("function") for call in _list(value) if isinstance(call, dict)]
    return "".join(_text(part.get("name")) + _text(part.get("arguments")) for part in parts if isinstance(part, dict))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

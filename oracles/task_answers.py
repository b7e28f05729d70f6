"""From what came to what is graded: thinking stripped, stop strings and limits verified, every failure given a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracles.tasks import TaskItem

THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
# A request that failed, by its status in requests.parquet. All of these score 0 and are counted apart.
FATES = {
    "http_error": "refused",
    "timeout": "timeout",
    "empty": "empty",
}
WRONG = ("refused", "timeout", "error", "empty", "unfinished-thinking", "over-limit")


@dataclass(frozen=True)
class TaskAnswer:
    """One answer made ready for lm-eval. `fate` is `graded` or one of WRONG (graded as wrong whatever it says)."""

    answer: str
    thinking: str
    fate: str
    at_limit: bool  # ended by max_tokens
    stop_kept: bool  # a stop string that was sent stands in the text: the engine did not stop there


def read_answer(item: TaskItem, row: Mapping[str, Any]) -> TaskAnswer:
    """One row of requests.parquet as an answer to `item`.

    Intention to treat: a request that failed, an empty answer, thinking that never ended and an answer longer than was
    allowed are wrong answers.
    """
    if row["status"] != "ok":
        return TaskAnswer("", "", FATES.get(row["status"], "error"), False, False)
    text, thinking = split_thinking(row["text"] or "", row["reasoning"] or "")
    at_limit = row["finish_reason"] == "length"
    if text is None:
        return TaskAnswer("", thinking, "unfinished-thinking", at_limit, False)
    cut = min((text.find(stop) for stop in item.stop if stop in text), default=len(text))
    answer, stop_kept = text[:cut], any(stop in text for stop in item.sent_stops)
    fate = "graded"
    tokens = row["usage_completion_tokens"] or row["retokenised_tokens"] or 0
    if tokens > item.max_tokens + 1:  # an end token may be counted
        fate = "over-limit"
    elif not answer.strip():
        fate = "unfinished-thinking" if thinking and at_limit else "empty"
    whole = (row["reasoning"] or "") + (row["text"] or "")
    return TaskAnswer(whole if item.keep_thinking else answer, thinking, fate, at_limit, stop_kept)


def split_thinking(text: str, reasoning: str) -> tuple[str | None, str]:
    """(answer, thinking). Inline thinking is what precedes the last closing tag; None: it was opened and never closed.

    Templates that open the tag in the prompt leave only the closing one in the answer.
    """
    for opening, closing in THINKING:
        if closing in text:
            thought, _, answer = text.rpartition(closing)
            return answer.lstrip(), reasoning + thought.replace(opening, "", 1)
        if text.lstrip().startswith(opening):
            return None, reasoning + text.lstrip().removeprefix(opening)
    return text, reasoning

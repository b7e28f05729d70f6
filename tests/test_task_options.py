"""Multiple choice over HTTP: what plain lm-eval scores silently wrong is refused here."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.logprob_rows import prompt_rows
from oracles.reference import OracleError

PROMPT = [11, 12, 13]  # context
OPTION = [21, 22]  # its tokens have log-probabilities -2 and -3
LOGPROBS = [None, -1.0, -1.5, -2.0, -3.0]
EXTRA = (31, -0.1)  # the one generated token


def answer(ids: list[int], logprobs: list[float | None]) -> dict[str, Any]:
    """A legacy completions answer with one row a token."""
    tokens = [f"token_id:{i}" for i in ids]
    tops = [None if p is None else {t: p} for t, p in zip(tokens, logprobs, strict=True)]
    block = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
    return {"choices": [{"index": 0, "text": "", "logprobs": block, "finish_reason": "length"}]}


def lm_evals_own(reply: dict[str, Any]) -> tuple[float, bool]:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    (score,) = LocalCompletionsAPI.parse_logprobs([reply], ctxlens=[len(PROMPT)])
    return score


def option_sum(reply: dict[str, Any]) -> float:
    rows = prompt_rows(reply, PROMPT + OPTION)
    return sum(row.logprob for row in rows[len(PROMPT) - 1 :])


def test_a_whole_echo_is_read_by_both() -> None:
    whole = answer([*PROMPT, *OPTION, EXTRA[0]], [*LOGPROBS, EXTRA[1]])
    assert lm_evals_own(whole) == (-5.0, True) and option_sum(whole) == -5.0


def test_a_server_that_ignores_echo_is_refused() -> None:
    ignored = answer([EXTRA[0]], [EXTRA[1]])
    assert lm_evals_own(ignored) == (0, True), "every option is certain and greedy: the first one wins"
    with pytest.raises(OracleError):
        option_sum(ignored)


def test_an_echo_without_the_extra_token_keeps_the_options_last_token() -> None:
    short = answer([*PROMPT, *OPTION], LOGPROBS)
    assert lm_evals_own(short) == (-2.0, True), "the last token of every option is dropped"
    assert option_sum(short) == -5.0


def test_an_echo_that_lost_a_token_is_refused() -> None:
    with pytest.raises(OracleError):
        option_sum(answer([*PROMPT, OPTION[0]], LOGPROBS[:-1]))

"""Every dialect of a streamed answer, and what hostile ones may not do."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import read_answer


def _stream(*events: Any, step_ns: int = 10) -> list[dict[str, Any]]:
    values = [event if isinstance(event, str) else orjson.dumps(event).decode() for event in events]
    return [
        {"perf_ns": 100 + step_ns * i, "packets": [{"name": "data", "value": value}]} for i, value in enumerate(values)
    ]


def _delta(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, **choice}]}


def test_a_role_chunk_is_no_first_token() -> None:
    answer = read_answer(_stream(_delta({"role": "assistant", "content": ""}), _delta({"content": "Hi"}), "[DONE]"))
    assert answer.event_ns == [110] and answer.done


def test_vllm_ids_of_a_split_character_count_as_events() -> None:
    first = _delta({"content": ""}, token_ids=[9])
    answer = read_answer(_stream(first, _delta({"content": "é"}, token_ids=[10]), _delta({}, finish_reason="stop")))
    assert answer.ids == [9, 10] and answer.event_ns == [100, 110] and answer.finish_reason == "stop"


def test_llama_cpp_ids_come_inside_logprobs() -> None:
    entries = {"content": [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -1.5}]}
    answer = read_answer(_stream(_delta({"content": "ab"}, logprobs=entries)))
    assert answer.ids == [5, 6] and answer.logprobs == [-0.5, -1.5]


def test_one_event_without_ids_voids_them_all() -> None:
    answer = read_answer(_stream(_delta({"content": "a"}, token_ids=[1]), _delta({"content": "b"})))
    assert answer.ids is None


def test_completions_and_reasoning_and_tools_are_content() -> None:
    events = _stream(
        {"choices": [{"text": "plain"}]},
        _delta({"reasoning_content": "think"}),
        _delta({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    )
    answer = read_answer(events)
    assert len(answer.event_ns) == 3 and "".join(answer.text) == "plainf{}" and "".join(answer.reasoning) == "think"


def test_usage_in_a_chunk_without_choices() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    answer = read_answer(_stream(_delta({"content": "a"}), {"choices": [], "usage": usage}))
    assert answer.usage == {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 3}


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "dead"}},
        "{not json",
        "[1, 2]",
        '{"choices": [{"delta": {"content": "x"}, "logprobs": NaN}]}',
    ],
)
def test_an_error_inside_a_200_stream_is_seen(event: Any) -> None:
    assert read_answer(_stream(_delta({"content": "a"}), event)).error


def test_half_a_character_is_an_error_not_a_crash() -> None:
    packet = [{"perf_ns": 1, "packets": [{"name": "data", "value": '{"choices":[{"delta":{"content":"\\ud800x"}}]}'}]}]
    assert "not JSON" in (read_answer(packet).error or "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "usage", "logprobs", "token_ids", "error", "finish_reason", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=4))
def test_no_event_can_raise(events: list[Any]) -> None:
    answer = read_answer(
        _stream(
            *[orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS).decode() if _fits(event) else "x" for event in events]
        )
    )
    assert len(answer.event_ns) == len(answer.event_text) == len(answer.event_ids) == len(answer.event_usage)


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:  # integers past 64 bits
        return False
    return True

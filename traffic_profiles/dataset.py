"""From requests to the lines of AIPerf's data set file, one format for each way of driving (docs/profiles.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

Body = dict[str, Any]
_OWN_KEYS = frozenset({"model", "messages", "stream", "stream_options"})


class Sendable(Protocol):
    """A request with its place in time: a `RequestSpec`, or what was stored of one."""

    @property
    def session(self) -> str:
        """Conversation it belongs to."""

    @property
    def delay_ms(self) -> float:
        """Pause before the turn."""

    @property
    def timestamp_ms(self) -> float | None:
        """Send time in a trace."""


S = TypeVar("S", bound=Sendable)


def dataset_lines(dataset_format: str, specs: Sequence[S], body: Callable[[S], Body]) -> Iterator[Body]:
    """JSON objects, one a line, in a profile's `dataset_format`; `body` gives the request body of a spec.

    raw_payload: the body. mooncake_trace: its send time and the body, sent as it is. dag_jsonl: a conversation with
    its turns; AIPerf adds model and streaming keys and puts the engine's replies between the turns.
    """
    if dataset_format == "raw_payload":
        yield from map(body, specs)
    elif dataset_format == "mooncake_trace":
        for spec in specs:
            yield {"timestamp": spec.timestamp_ms, "payload": body(spec)}
    else:
        for session, turns in groupby(specs, key=lambda spec: spec.session):
            yield {"session_id": session, "turns": [_turn(spec, body(spec)) for spec in turns]}


def _turn(spec: Sendable, body: Body) -> Body:
    # max_tokens goes through `extra`: as a field of its own AIPerf sends it as max_completion_tokens, which some
    # servers do not know.
    extra = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    return {"messages": body["messages"], "extra": extra} | ({"delay": spec.delay_ms} if spec.delay_ms else {})

"""From requests to the lines of AIPerf's data set file, one format for each way of driving (docs/profiles.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from traffic_profiles.profile import TrafficProfile
from traffic_profiles.requests import RequestSpec

Body = dict[str, Any]
_OWN_KEYS = frozenset({"model", "messages", "stream", "stream_options"})


def dataset_lines(
    profile: TrafficProfile, specs: Sequence[RequestSpec], body: Callable[[RequestSpec], Body]
) -> Iterator[Body]:
    """JSON objects, one a line, in the profile's `dataset_format`; `body` gives the request body of a spec.

    raw_payload: the body. mooncake_trace: its send time and the body, sent as it is. dag_jsonl: a conversation with
    its turns; AIPerf adds model and streaming keys and puts the engine's replies between the turns.
    """
    if profile.dataset_format == "raw_payload":
        yield from map(body, specs)
    elif profile.dataset_format == "mooncake_trace":
        for spec in specs:
            yield {"timestamp": spec.timestamp_ms, "payload": body(spec)}
    else:
        for session, turns in groupby(specs, key=lambda spec: spec.session):
            yield {"session_id": session, "turns": [_turn(spec, body(spec)) for spec in turns]}


def _turn(spec: RequestSpec, body: Body) -> Body:
    # max_tokens goes through `extra`: as a field of its own AIPerf sends it as max_completion_tokens, which some
    # servers do not know.
    extra = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    return {"messages": body["messages"], "extra": extra} | ({"delay": spec.delay_ms} if spec.delay_ms else {})

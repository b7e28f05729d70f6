"""Cache hits by the engine's own counters: read, turned into a visit's share, compared between the arms."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.cache_counters import counters_in, read_counters, share_between, with_counted_cache
from harness.measurement import CellMeasurement, VisitMeasurement
from harness.traffic_plan import Endpoint
from harness.validity import judge_validity
from harness.verdict import Check, Status
from tests.test_validity import CHAT, closed_loop, measured, rows

VLLM = """# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 3e+03
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 0.0
"""
SGLANG = 'sglang:prompt_tokens_total{model_name="m"} 64.0\nsglang:cached_tokens_total{model_name="m"} 16.0\n'


def test_counters_are_summed_over_their_labels() -> None:
    assert counters_in(VLLM) == (250, 4000) and counters_in(SGLANG) == (16, 64)
    assert counters_in("vllm:prefix_cache_queries_total 7\n") is None and counters_in("<html>404</html>") is None
    for hostile in ("1.2.3", "e", "1e999", "9" * 400, "-1", "NaN"):
        page = f"vllm:prefix_cache_hits_total 1\nvllm:prefix_cache_queries_total {hostile}\n"
        assert counters_in(page) is None, hostile


@contextmanager
def metrics(page: str) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write(page.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_replicas_are_added_and_one_without_counters_leaves_it_unknown() -> None:
    with metrics(VLLM) as one, metrics(SGLANG) as two, metrics("") as none:
        assert read_counters(Endpoint(urls=(one, two))) == (266, 4064)
        assert read_counters(Endpoint(urls=(one, none))) is None
    assert read_counters(Endpoint(url="http://127.0.0.1:9")) is None


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((10, 100), (60, 200), 0.5),
        ((10, 100), (10, 100), None),  # nothing asked
        ((10, 100), (5, 50), None),  # started anew
        (None, (5, 50), None),
    ],
)
def test_the_share_of_a_visit(
    before: tuple[float, float] | None, after: tuple[float, float] | None, share: float | None
) -> None:
    assert share_between(before, after) == share


def same_cache(arms: list[CellMeasurement], counted: list[float | None]) -> Check:
    visits = [
        with_counted_cache(
            VisitMeasurement(pair=1, role=role, slot=slot, cells={CHAT.name: arms[slot]}),
            {"cache_share": counted[slot]},
        )
        for slot, role in enumerate(("baseline", "candidate"))
    ]
    return next(check for check in judge_validity([CHAT], visits, {}) if check.metric == "same-cache")


def test_unequal_caches_are_invalid_by_usage_and_else_by_counters() -> None:
    silent, hit, missed = (
        measured(rows(CHAT.name, closed_loop(0.01), **more), CHAT.name)
        for more in ({}, {"cached_tokens": 10}, {"cached_tokens": 0})
    )
    assert same_cache([hit, hit], [None, None]).status is Status.PASS
    assert same_cache([hit, missed], [0.5, 0.5]).status is Status.INVALID, "usage knows the cell, counters do not"
    told = same_cache([silent, silent], [0.5, 0.1])
    assert told.status is Status.INVALID and "(engines' counters, whole visits): baseline 50%" in told.reason
    assert same_cache([silent, silent], [0.5, 0.45]).status is Status.PASS
    assert same_cache([silent, hit], [0.5, None]).n == 0, "a cell's share is not held against a visit's"

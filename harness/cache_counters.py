"""Prompt tokens from the prefix cache by an engine's own Prometheus counters: for servers whose usage keeps silent.

vLLM counts cached tokens in usage only with --enable-prompt-tokens-details; its counters are always there. They know no
cells, so a visit has one share: fit to be held against the same counters of the other arm, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.endpoint import authorization
from harness.measurement import VisitMeasurement
from harness.probes.client import HttpClient
from harness.traffic_plan import Endpoint

SIGNAL = "counted_cache_share"
TIMEOUT_S = 5.0
NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+[0-9]{1,2})?)"  # always finite: the page is the engine's
# Tokens found in the cache, tokens looked up: vLLM, SGLang.
COUNTERS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)


def read_counters(endpoint: Endpoint) -> tuple[float, float] | None:
    """(tokens from the cache, tokens looked up) since the engine started, all replicas; None where one has none."""
    pages = asyncio.run(_pages(endpoint))
    found = [counts for page in pages if (counts := counters_in(page)) is not None]
    return (sum(hits for hits, _ in found), sum(asked for _, asked in found)) if len(found) == len(pages) else None


def counters_in(page: str) -> tuple[float, float] | None:
    """Both counters of a /metrics page, summed over their labels."""
    for names in COUNTERS:
        values = [re.findall(rf"^{name}(?:\{{[^}}]*\}})? {NUMBER}(?= |$)", page, re.MULTILINE) for name in names]
        if all(values):
            hits, asked = (sum(map(float, one)) for one in values)
            return hits, asked
    return None


def share_between(before: Sequence[float] | None, after: Sequence[float] | None) -> float | None:
    """Share of the tokens looked up in between that were in the cache; None where it cannot be told."""
    if before is None or after is None or after[1] <= before[1] or after[0] < before[0]:
        return None  # no counters, nothing asked, or an engine that was started anew
    return (after[0] - before[0]) / (after[1] - before[1])


def with_counted_cache(measurement: VisitMeasurement, record: Mapping[str, Any]) -> VisitMeasurement:
    """Add `counted_cache_share`, the whole visit's, to every cell when visit.json has it."""
    share = record.get("cache_share")
    if share is None:
        return measurement
    cells = {
        name: cell.model_copy(update={"signals": {**cell.signals, SIGNAL: share}})
        for name, cell in measurement.cells.items()
    }
    return measurement.model_copy(update={"cells": cells})


async def _pages(endpoint: Endpoint) -> list[str]:
    clients = [HttpClient(url, authorization(endpoint), TIMEOUT_S) for url in endpoint.all_urls]
    replies = await asyncio.gather(*(client.ask("/metrics") for client in clients))
    return [reply.body if reply.status == 200 else "" for reply in replies]

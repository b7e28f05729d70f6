"""Which metric means something in which shape, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traffic_profiles.profile import TrafficProfile

LATENCIES = ("ttft", "tpot", "request_latency")
PERCENTILES = ("p50", "p95", "p99")
METRICS: tuple[str, ...] = (
    *(f"{latency}.{percentile}" for latency in LATENCIES for percentile in PERCENTILES),
    "output_throughput",
    "goodput",
)
P99_REQUESTS = 1000
P95_REQUESTS = 20


def not_gateable(profile: TrafficProfile) -> dict[str, str]:
    """Metric -> why no engine can be judged by it in this shape; metrics absent from the result may be gated."""
    reasons: dict[str, str] = {}
    open_loop = bool(profile.request_rate or profile.trace)
    if open_loop:
        reasons["output_throughput"] = (
            "below saturation both engines deliver the offered rate, so the ratio is 1 by construction"
        )
    if profile.slo is None:
        reasons["goodput"] = "the profile states no slo"
    if profile.stop == "natural":
        for percentile in PERCENTILES:
            reasons[f"request_latency.{percentile}"] = (
                "answers end where the engine ends them, so a shorter one would win; a fixed twin can gate it"
            )
    if profile.osl.longest < 2:
        for percentile in PERCENTILES:
            reasons[f"tpot.{percentile}"] = "one token has no time per output token"
    if _all_at_once(profile):
        together = "every request is sent at once, so it says how long the queue is"
        reasons |= {f"{late}.{p}": together for late in ("ttft", "request_latency") for p in PERCENTILES}
    reasons |= _too_few(profile)
    if profile.search:
        reasons |= {
            metric: "the search moves the rate until the slo breaks" for metric in METRICS if metric != "goodput"
        }
    return reasons


def _too_few(profile: TrafficProfile) -> dict[str, str]:
    loads: tuple[float, ...] = profile.concurrency or profile.request_rate or (0.0,)
    fewest = min(profile.requests_for(load) for load in loads)
    if profile.needs_capacity:
        fewest = profile.requests.minimum
    if profile.turns and profile.turns.history == "live":
        fewest *= profile.turns.count.shortest
    reasons = {}
    for percentile, needed in (("p95", P95_REQUESTS), ("p99", P99_REQUESTS)):
        if fewest < needed:
            for latency in LATENCIES:
                reasons[f"{latency}.{percentile}"] = (
                    f"{fewest} requests in the smallest cell; {percentile} needs {needed}"
                )
    return reasons


def _all_at_once(profile: TrafficProfile) -> bool:
    return (
        bool(profile.concurrency)
        and profile.dataset_format == "raw_payload"
        and all(profile.requests_for(in_flight) <= in_flight for in_flight in profile.concurrency)
    )

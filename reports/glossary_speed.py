"""What every number of speed, of the decision and of the client means (shown by definitions.py)."""

from __future__ import annotations

from typing import NamedTuple


class Definition(NamedTuple):
    """One number: how it is called, what it is, how it is computed, in which unit, from which file."""

    key: str
    label: str
    meaning: str
    formula: str
    unit: str
    source: str


_REQUESTS = "pairs/*/*/requests.parquet"
_MEASURED = "pairs/*/*/measurements.json"
_VERDICT = "verdict.json"

LATENCY = (
    Definition(
        "ttft", "TTFT", "Time to first token: how long a person waits before anything appears.",
        "first event with content, reasoning or a token − request start (open loop: the intended start)", "ms",
        f"{_REQUESTS} ttft_ms",
    ),
    Definition(
        "tpot", "TPOT",
        "Time per output token after the first event. Per token, never per chunk, so an engine that sends several "
        "tokens in one event gains nothing by it. Not defined for a request with one event or under two tokens.",
        "(last content event − first content event) / tokens after the first event", "ms/token",
        f"{_REQUESTS} tpot_ms",
    ),
    Definition(
        "request_latency", "Request latency", "How long the whole answer takes.",
        "last content event − request start (open loop: the intended start)", "ms", f"{_REQUESTS} request_latency_ms",
    ),
    Definition(
        "percentile", "p50, p95, p99",
        "A percentile over the requests that were asked, not only those served: a request that failed counts as "
        "infinitely late. A percentile that falls among failures has no value and is shown as –; so is a p95 of under "
        "20 requests and a p99 of under 100, which would be the largest value under another name.",
        "the value that this share of asked requests did not exceed, in one cell of one visit", "of its metric",
        f"{_MEASURED} p50, p90, p95, p99",
    ),
)  # fmt: skip

RATE = (
    Definition(
        "output_throughput", "Output throughput", "Output tokens delivered per second, all requests together.",
        "output tokens of served requests / duration of the cell", "tokens/s", f"{_MEASURED} output_throughput",
    ),
    Definition(
        "throughput_per_gpu", "Throughput per GPU",
        "Output throughput over the number of GPUs that the plan gives the engine.",
        "output throughput / GPUs", "tokens/s/GPU", f"{_MEASURED} output_throughput; plan.yaml gpus",
    ),
    Definition(
        "output_throughput_per_user", "Interactivity",
        "How fast text appears for one user while the others are served too.",
        "mean over requests of 1000 / TPOT", "tokens/s/user", f"{_MEASURED} output_throughput_per_user",
    ),
    Definition(
        "request_throughput", "Request throughput", "Requests answered per second.",
        "served requests / duration of the cell", "requests/s", f"{_MEASURED} request_throughput",
    ),
    Definition(
        "goodput", "Goodput", "Requests answered per second within the profile's limits on TTFT and TPOT.",
        "served requests inside both limits / duration of the cell", "requests/s", f"{_MEASURED} goodput",
    ),
    Definition(
        "tokens_by", "Tokens by",
        "Who counted the output tokens: their ids, the engine's usage, or re-tokenising the text.",
        "the most exact of these that the engine offers; re-tokenising is an estimate and says so", "tokens",
        f"{_MEASURED} output_tokens_source",
    ),
    Definition(
        "asked", "Asked", "Requests that the client was told to send, warm-up left out. All of them count.",
        "requests of the cell, summed over pairs", "requests", f"{_MEASURED} asked",
    ),
    Definition(
        "served", "Served", "Requests that were answered whole. The rest count as infinitely late and as wrong.",
        "requests with status ok / requests asked", "requests", f"{_MEASURED} served",
    ),
    Definition(
        "peak_memory", "Peak GPU memory", "The most GPU memory in use during a visit.", "largest sample of the visit",
        "MiB", f"{_MEASURED} signals",
    ),
)  # fmt: skip

DECISION = (
    Definition(
        "ratio", "Speed-up",
        "How many times better the candidate is. 1.20× is 20 % better on one scale for all metrics.",
        "latencies: baseline / candidate; rates: candidate / baseline; taken within a pair, then the Hodges-Lehmann "
        "estimate over pairs", "×", f"{_VERDICT} observed",
    ),
    Definition(
        "bar", "Bar",
        "What the criterion asks for. A cell passes when its lower bound clears it, not when its estimate does.",
        "the criterion in the policy or the plan", "×", f"{_VERDICT} required",
    ),
    Definition(
        "interval", "Interval",
        "The lower and the upper one-sided bound of the speed-up. Each holds with the confidence printed beside it.",
        "exact signed-rank bounds on the log ratios of the pairs (Student's t under 5 pairs)", "×",
        f"{_VERDICT} ci_low, ci_high, confidence",
    ),
    Definition(
        "distance", "Distance", "How far the estimate is from the bar; negative is what is missing.",
        "observed over the bar, as a share of the bar", "%", f"{_VERDICT} distance",
    ),
    Definition(
        "noise", "Pair noise", "How much the ratio moves from pair to pair.",
        "standard deviation of the log ratio between pairs (accuracy: between resamples)", "%", f"{_VERDICT} noise",
    ),
    Definition(
        "arm_value", "Baseline, candidate", "What each engine measured, in the metric's own unit.",
        "median over pairs", "of its metric", f"{_VERDICT} baseline, candidate",
    ),
    Definition(
        "n", "n", "How many independent observations stand behind a number.",
        "pairs for speed, documents for accuracy, requests for honesty", "count", f"{_VERDICT} n",
    ),
    Definition(
        "pair", "Pair",
        "One baseline visit and one candidate visit on the same requests, adjacent in time. The pair is the "
        "observation; requests inside a visit share batches, clocks and caches and are not.",
        "ratio of the two visits of one pair in one cell", "×", f"{_MEASURED}",
    ),
    Definition(
        "band", "Band",
        "The range over pairs of a number that is measured once a visit. It holds the median of what such visits "
        "give with probability 1 − 2^(1−n): 97 % for 6 pairs, 99.95 % for 12.",
        "smallest to largest pair; the line is their median", "of its metric", f"{_MEASURED}",
    ),
    Definition(
        "power", "Power", "The chance that an engine of the assumed speed-up passes every cell of this run.",
        "from the noise between pairs that this run measured", "%", f"{_VERDICT} power",
    ),
    Definition(
        "observed_only", "Not gated", "Measured and shown, but not part of the verdict: the profile does not call the "
        "metric gateable in this shape, or the policy has no bar for it. An estimate over pairs without an interval.",
        "median over pairs of the pair ratio", "×", f"{_MEASURED}",
    ),
)  # fmt: skip

"""What every number in a report means: one table, shown behind each "?" and published as docs/metrics.md.

`python -m reports.definitions` prints docs/metrics.md; a test holds the two equal.
"""

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
_TOKENS = "oracles/*/tokens.parquet"
_VERDICT = "verdict.json"

LATENCY = (
    Definition(
        "ttft", "TTFT", "Time to first token: how long a person waits before anything appears.",
        "first event with content, reasoning or a token − request start", "ms", f"{_REQUESTS} ttft_ms",
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
        "last content event − request start", "ms", f"{_REQUESTS} request_latency_ms",
    ),
    Definition(
        "percentile", "p50, p95, p99",
        "A percentile over the requests that were asked, not only those served: a request that failed counts as "
        "infinitely late. A percentile that falls among failures has no value and is shown as –.",
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

ACCURACY = (
    Definition(
        "token_margin", "Token margin",
        "How far the timed output's tokens are from the reference's own choice. Zero when every token is the "
        "reference's first choice. The criterion compares the candidate with the larger of baseline and noise floor.",
        "mean over tokens of max_v l_v − l_token, l being the BF16 reference's logits at that position, teacher-forced "
        "on the timed output", "nats/token", f"{_TOKENS} margin_sum / tokens",
    ),
    Definition(
        "top1", "Top-1 agreement", "Share of the timed output's tokens that are the reference's own first choice.",
        "tokens of rank 0 / tokens", "%", f"{_TOKENS} top1 / tokens",
    ),
    Definition(
        "nll", "NLL",
        "How surprised the reference is by the timed output. At temperature 1 it should equal the entropy.",
        "mean over tokens of −ln p_reference(token)", "nats/token", f"{_TOKENS} nll_sum / tokens",
    ),
    Definition(
        "excess_nll", "Excess NLL",
        "The same for answers that were sampled: zero in the mean for an honest sampler, whatever the temperature did.",
        "NLL − entropy of the reference at the same positions", "nats/token", f"{_TOKENS} nll_sum, entropy_sum",
    ),
    Definition(
        "scored_share", "Scored share", "How much of what was asked and timed could be scored under the reference.",
        "scored answers / timed requests", "%", "oracles/*/tokens.json",
    ),
    Definition(
        "flips_inexcusable", "Inexcusable flips",
        "Tokens that are not the reference's choice although the reference was sure: its margin exceeds the tie width.",
        "count / tokens", "%", f"{_TOKENS} flips_inexcusable / tokens",
    ),
    Definition(
        "loop_share", "Loop share", "Share of an answer covered by its longest immediate repetition.",
        "mean over answers", "%", f"{_TOKENS} loop_share",
    ),
    Definition(
        "floor", "Noise floor",
        "The reference against itself under other numerics: what an engine of equal quality reads. A divergence below "
        "it says nothing.", "the same formulas on the reference's own answers", "nats/token",
        "oracles/floor/tokens.parquet",
    ),
    Definition(
        "kld", "KL divergence",
        "How far the engine's probabilities are from the reference's, where the engine gives them.",
        "mean over positions of Σ_v p_v (ln p_v − ln q_v)", "nats/token", "oracles/*/logits.json",
    ),
    Definition(
        "tasks", "Task score",
        "Score of lm-eval's tasks, graded on the timed responses; failed requests count as wrong.",
        "mean over items, candidate − baseline, paired by item", "pt", "oracles/*/tasks.json",
    ),
    Definition(
        "detectable_rate", "Detectable rate",
        "The smallest share of misbehaving requests that this check finds with 95 % confidence at this run's size.",
        "1 − 0.05^(1/n)", "%", "oracles/*/*.json detectable_rate",
    ),
)  # fmt: skip

GROUPS = {"Latency": LATENCY, "Rates": RATE, "The decision": DECISION, "Accuracy and honesty": ACCURACY}
DEFINITIONS = {item.key: item for group in GROUPS.values() for item in group}


def define(metric: str) -> Definition | None:
    """The definition behind a metric's name: `ttft.p95` is found under `ttft`."""
    return DEFINITIONS.get(metric.partition(".")[0].partition("<")[0].partition(">")[0])


def label(metric: str) -> str:
    """`ttft.p95` as a person writes it: TTFT p95."""
    name, _, stat = metric.partition(".")
    known = DEFINITIONS.get(name)
    return f"{known.label if known else name.replace('_', ' ')} {stat}".strip()


def as_markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Every number, defined",
        "",
        "Made by `python -m reports.definitions`; the `?` marks of a report show the same text.",
        "Times are in milliseconds, divergences in nats, and *missing* is never zero.",
    ]
    for title, group in GROUPS.items():
        lines += ["", f"## {title}"]
        for item in group:
            lines += ["", f"### {item.label}", "", item.meaning, ""]
            lines += [f"- Formula: {item.formula}", f"- Unit: {item.unit}", f"- Source: `{item.source}`"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")

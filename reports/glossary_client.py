"""What every number of the client and the machine means (shown by definitions.py)."""

from __future__ import annotations

from reports.glossary_speed import Definition

_MEASURED = "pairs/*/*/measurements.json"

CLIENT = (
    Definition(
        "achieved_concurrency", "Achieved concurrency",
        "Requests in flight, mean over time. Far under what was asked, the engine was not loaded as the cell says.",
        "sum of request latencies / duration of the cell", "requests", f"{_MEASURED} signals",
    ),
    Definition(
        "fed_concurrency", "Fed concurrency",
        "Requests in flight while there were more to send. Under what was asked, the client starved the engine.",
        "mean over time from the last slot's first send to the last send", "requests", f"{_MEASURED} signals",
    ),
    Definition(
        "sent_per_s", "Sent rate", "How fast an open loop really sent.",
        "(requests − 1) / time from the first send to the last", "requests/s", f"{_MEASURED} signals",
    ),
    Definition(
        "usage_off_share", "Answers with another count",
        "Answers whose claimed tokens are over 5 % (and 2 tokens) away from the tokens of their text.",
        "count / answers with both counts", "share", f"{_MEASURED} signals",
    ),
    Definition(
        "credit_lag_p99_ms", "Credit lag p99", "How late the client itself was in sending.",
        "99th percentile of send time − intended send time", "ms", f"{_MEASURED} signals",
    ),
    Definition(
        "usage_missing", "Usage missing", "Served requests without the engine's own token count.", "count / served",
        "share", f"{_MEASURED} signals",
    ),
    Definition(
        "usage_over_retokenised", "Usage over re-tokenised",
        "Tokens that the engine claims against tokens in its text. Away from 1, one of the two counts is wrong.",
        "claimed output tokens / tokens of the text", "ratio", f"{_MEASURED} signals",
    ),
    Definition(
        "cached_prompt_share", "Cached prompt share",
        "Prompt tokens that the engine says it had in its cache. The arms must be alike.",
        "cached tokens / prompt tokens", "share", f"{_MEASURED} signals",
    ),
    Definition(
        "counted_cache_share", "Cached share by counters",
        "The same by the engine's own Prometheus counters, for the whole visit, where usage does not say it.",
        "tokens found in the prefix cache / tokens looked up, over the visit", "share", f"{_MEASURED} signals",
    ),
    Definition(
        "tokens_per_event", "Tokens an event", "Tokens in one streamed event; above 1 the engine sends in blocks.",
        "output tokens / content events", "tokens", f"{_MEASURED} signals",
    ),
    Definition(
        "tpot_drift", "TPOT drift", "Whether the engine slowed down inside the cell.",
        "TPOT p50 of the second half of the requests / of the first half", "ratio", f"{_MEASURED} signals",
    ),
    Definition(
        "peak_memory_mib", "Peak GPU memory", "The most GPU memory in use while the cell ran.",
        "largest sample, GPUs added", "MiB", f"{_MEASURED} signals",
    ),
    Definition(
        "gpu_utilization", "GPU utilisation", "Share of the time in which the GPU did something.",
        "mean over samples of the cell and its GPUs", "%", f"{_MEASURED} signals",
    ),
    Definition(
        "gpu_energy_j", "GPU energy", "Energy that the GPUs took while the cell ran.",
        "counter at the end − at the start, GPUs added", "J", f"{_MEASURED} signals",
    ),
    Definition(
        "energy_per_output_token_j", "Energy a token", "GPU energy for one output token.",
        "GPU energy / output tokens", "J/token", f"{_MEASURED} signals",
    ),
    Definition(
        "bias", "Client bias",
        "What this client adds to a measurement. A mock that knows its own send times imitates the engine; the bias "
        "is the client's reading minus the truth.", "p50 over requests; p99 beside it", "of its metric",
        "calibration.json",
    ),
    Definition(
        "truth", "Truth", "What the mock really did, by its own log.", "p50 over requests", "of its metric",
        "calibration.json",
    ),
    Definition(
        "fed", "Fed", "How well the client kept the mock busy: below 100 % it throttles an engine that is this fast.",
        "tokens/s sent / tokens/s offered", "%", "calibration.json",
    ),
    Definition(
        "load_average", "Load average",
        "Processes that wanted a CPU, mean over a minute. Above the number of CPUs something else was running.",
        "the system's 1-minute load average", "processes", "pairs/*/*/visit.json",
    ),
    Definition(
        "visit_took", "Took", "From the start of the client to its end, its own start-up included.",
        "ended_at − started_at", "s", "pairs/*/*/visit.json",
    ),
    Definition(
        "exit_code", "AIPerf ended with", "The client's exit code; anything but 0 makes the visit unusable.",
        "as the process returned it", "code", "pairs/*/*/visit.json",
    ),
    Definition(
        "visit", "Visit", "One run of the client against one engine: warm-up, then every cell once.",
        "numbered in run order", "count", "pairs/*/*/visit.json slot",
    ),
)  # fmt: skip

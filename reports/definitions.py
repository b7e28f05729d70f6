"""What every number in a report means: one table, shown behind each "?" and published as docs/metrics.md.

`python -m reports.definitions` prints docs/metrics.md; a test holds the two equal.
"""

from __future__ import annotations

import re

from reports.glossary_accuracy import ACCURACY
from reports.glossary_client import CLIENT
from reports.glossary_speed import DECISION, LATENCY, RATE, Definition
from reports.glossary_tasks import LOGITS, TASKS

GROUPS = {
    "Latency": LATENCY,
    "Rates": RATE,
    "The decision": DECISION,
    "Accuracy and honesty": ACCURACY,
    "Tasks": TASKS,
    "Log-probabilities": LOGITS,
    "Client and machine": CLIENT,
}
DEFINITIONS = {item.key: item for group in GROUPS.values() for item in group}


_STATISTIC = re.compile(r"_(mean|median|max|min|rms|p\d+(\.\d+)?|raw|scaled)$")


def define(metric: str) -> Definition | None:
    """The definition behind a metric's name: `ttft.p95` is found under `ttft`, `kld_p99.9` under `kld`."""
    name = metric.partition("<")[0].partition(">")[0]
    tries = (name, name.partition(".")[0].partition("@")[0], _STATISTIC.sub("", name))
    return next((DEFINITIONS[key] for key in tries if key in DEFINITIONS), None)


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

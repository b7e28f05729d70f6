"""What the command line and the documentation say about a profile. Plain data and text, no printing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from traffic_profiles.arrivals import read_arrivals
from traffic_profiles.profile import TIERS, TrafficProfile, list_profiles, load_profile, load_tiers
from traffic_profiles.rules import METRICS, not_gateable


def catalogue(tier: str = "gate") -> list[dict[str, str]]:
    """One row a built-in shape: name, load, lengths, what it gates, purpose, bottleneck (`profiles list`)."""
    rows = []
    for name in list_profiles():
        profile = load_profile(name, tier)
        rows.append(
            {
                "name": name,
                "load": load_text(profile),
                "isl": str(profile.isl),
                "osl": str(profile.osl),
                "gateable": ", ".join(sorted(profile.gateable)) or "nothing",
                "purpose": profile.purpose,
                "bottleneck": profile.bottleneck,
            }
        )
    return rows


def describe(profile: TrafficProfile) -> dict[str, Any]:
    """Everything about one profile in one tier, defaults filled in (`profiles show --json`)."""
    return {
        "profile": _plain(profile),
        "dataset_format": profile.dataset_format,
        "context_tokens": profile.context_tokens,
        "needs_capacity": profile.needs_capacity,
        "cells": cells(profile),
        "not_gateable": {metric: why_not(profile, metric) for metric in METRICS if metric not in profile.gateable},
    }


def show(name_or_path: str | Path, tier: str = "gate") -> str:
    """The file's own explanation, the profile as resolved for the tier, and what follows from it."""
    profile = load_profile(name_or_path, tier)
    lines = Path(profile.path).read_text(encoding="utf-8").splitlines()
    resolved = yaml.safe_dump(_plain(profile), allow_unicode=True, sort_keys=False, default_flow_style=None, width=110)
    reasons = {metric: why_not(profile, metric) for metric in METRICS if metric not in profile.gateable}
    return "\n".join(
        [
            *(line for line in lines if line.startswith("#")),
            resolved.rstrip(),
            f"# tier {tier}; {load_text(profile)}; AIPerf data set format {profile.dataset_format}",
            f"# longest request with its answer: {profile.context_tokens:,} tokens of context",
            *(f"# {line}" for line in cell_lines(profile)),
            "# not gated here:",
            *(f"#   {metric}: {reason}" for metric, reason in reasons.items()),
        ]
    )


def check(path: str | Path) -> list[str]:
    """One line for each tier of a user's file; ProfileError for the first thing that is wrong."""
    return [
        f"{profile.name} (tier {profile.tier}): {load_text(profile)}, context {profile.context_tokens:,} tokens, "
        f"gates {', '.join(sorted(profile.gateable)) or 'nothing'}"
        for profile in load_tiers(path)
    ]


def markdown_table() -> str:
    """The table of docs/profiles.md: every shape with what it loads, what it gates and what a cell costs."""
    lines = [
        "| shape | what it imitates | what it loads | gateable (tier gate) "
        "| smoke; gate; nightly: load: tokens in + out |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in list_profiles():
        tiers = load_tiers(name)
        gate = tiers[TIERS.index("gate")]
        gates = ", ".join(sorted(gate.gateable))
        if gate.fixed_twin:
            more = sorted(gate.fixed_twin.gateable - gate.gateable)
            gates += f"; `{name}-fixed` also {', '.join(more)}" if more else f"; `{name}-fixed` the same"
        costs = "; ".join(_cost(profile) for profile in tiers)
        lines.append(f"| `{name}` | {gate.purpose} | {gate.bottleneck} | {gates} | {costs} |")
    return "\n".join(lines)


def json_schema() -> dict[str, Any]:
    """The schema of a profile's file: the model, and `tiers` with the keys that a tier replaces."""
    schema = TrafficProfile.model_json_schema()
    for internal in ("tier", "path"):
        del schema["properties"][internal]
    tier = {
        "type": "object",
        "description": "keys that this tier replaces, each as a whole",
        "properties": {key: {"$ref": f"#/properties/{key}"} for key in schema["properties"]},
        "additionalProperties": False,
    }
    tiers = dict.fromkeys(TIERS, tier)
    schema["properties"]["tiers"] = {"type": "object", "properties": tiers, "additionalProperties": False}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def why_not(profile: TrafficProfile, metric: str) -> str:
    """Why a metric is not gated in this shape: a rule, or what the profile says about it."""
    said = profile.not_gated
    latency = metric.split(".", maxsplit=1)[0]
    return not_gateable(profile).get(metric) or said.get(metric) or said.get(latency) or "the profile does not list it"


def cells(profile: TrafficProfile) -> dict[str, dict[str, int]]:
    """Load -> requests and expected tokens of a cell: means of the distributions, or the lines of a trace."""
    loads: tuple[float, ...] = profile.concurrency or profile.request_rate or (0.0,)
    found = {}
    for load in loads:
        count = profile.requests_for(load)
        tokens_in, tokens_out = _tokens(profile, count)
        found[f"{load:g}"] = {"requests": count, "input_tokens": tokens_in, "output_tokens": tokens_out}
    return found


def cell_lines(profile: TrafficProfile) -> list[str]:
    """The cells as sentences."""
    what = "conversations" if profile.dataset_format == "dag_jsonl" else "requests"
    at_least = "at least " if profile.request_rate and profile.needs_capacity else ""
    lines = []
    for load, cell in cells(profile).items():
        name = "trace" if profile.trace else f"concurrency {load}" if profile.concurrency else f"request rate {load}"
        tokens = f"about {cell['input_tokens']:,} tokens in and {cell['output_tokens']:,} out"
        lines.append(f"{name}: {at_least}{cell['requests']} {what}, {tokens}")
    return lines


def load_text(profile: TrafficProfile) -> str:
    """How the shape is driven, in a few words."""
    if profile.trace:
        share = profile.trace.capacity_share
        return f"trace, {share:.0%} of capacity" if share else f"trace at {profile.trace.speedup_ratio:g}x"
    if profile.concurrency:
        return "concurrency " + ", ".join(map(str, profile.concurrency))
    if profile.search:
        return f"{profile.arrival_pattern}, searched from {profile.request_rate[0]:g} to {profile.request_rate[1]:g}/s"
    rates = (f"{rate:.0%} of capacity" if profile.needs_capacity else f"{rate:g}/s" for rate in profile.request_rate)
    return f"{profile.arrival_pattern}, {', '.join(rates)}"


def _cost(profile: TrafficProfile) -> str:
    every = cells(profile).values()
    total = sum(cell["input_tokens"] for cell in every), sum(cell["output_tokens"] for cell in every)
    return f"{load_text(profile)}: {_short(total[0])} + {_short(total[1])}"


def _short(tokens: int) -> str:
    return (
        f"{tokens / 1e6:.1f}M" if tokens >= 1e6 else f"{tokens / 1e3:.0f}k" if tokens >= 1e4 else f"{tokens / 1e3:.1f}k"
    )


def _tokens(profile: TrafficProfile, count: int) -> tuple[int, int]:
    if profile.trace:
        arrivals = read_arrivals(profile.trace, profile.path, count)
        return sum(a.input_length for a in arrivals), sum(a.output_length for a in arrivals)
    turns, growth = 1, 0.0
    if profile.turns and profile.turns.history == "live":
        turns = round(profile.turns.count.mean)
        growth = (profile.turns.isl or profile.isl).mean + profile.osl.mean
    input_tokens = turns * profile.isl.mean + growth * turns * (turns - 1) / 2
    return round(count * input_tokens), round(count * turns * profile.osl.mean)


def _plain(profile: TrafficProfile) -> dict[str, Any]:
    values = profile.model_dump(mode="json", exclude={"path", "tier"}, exclude_none=True)
    values["gateable"] = sorted(values["gateable"])
    if "fixed_twin" in values:
        values["fixed_twin"]["gateable"] = sorted(values["fixed_twin"]["gateable"])
    return values

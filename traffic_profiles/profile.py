"""TrafficProfile: one traffic shape, from a YAML file in this folder or anywhere on disk.

The keys are AIPerf's words (isl, osl, concurrency, request_rate, arrival_pattern, ...). docs/profiles.md has the
table of shapes; docs/profile.schema.json is the model as JSON schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from traffic_profiles.arrivals import read_arrivals, requests_per_s
from traffic_profiles.lengths import Lengths
from traffic_profiles.reading import near, read_yaml, sentence
from traffic_profiles.rules import METRICS, not_gateable
from traffic_profiles.shape import (
    Count,
    FixedTwin,
    Positive,
    PrefixPrompts,
    ProfileError,
    Requests,
    Sampling,
    Slo,
    Strict,
    TextSource,
    Trace,
    Turns,
)
from traffic_profiles.text import STRATA
from traffic_profiles.text.files import is_file_source

__all__ = ["TIERS", "ProfileError", "Tier", "TrafficProfile", "list_profiles", "load_profile", "load_tiers"]

Tier = Literal["smoke", "gate", "nightly"]
TIERS: tuple[Tier, ...] = ("smoke", "gate", "nightly")
TEMPLATE_TOKENS = 64  # what a chat template adds of its own: role marks and a default system prompt
TURN_TOKENS = 16  # and for each further turn: the marks of a reply and of a question
FIXED = "-fixed"
_FOLDER = Path(__file__).parent


class TrafficProfile(Strict):
    """One traffic shape, resolved for one tier."""

    schema_version: Literal[1]
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    purpose: str = Field(min_length=1, max_length=300, description="what it imitates, one sentence")
    bottleneck: str = Field(min_length=1, max_length=200, description="what it loads")
    source: str = Field(min_length=1, max_length=300, description="where its numbers are published")
    tier: Tier = "gate"
    text: TextSource = Field(
        description="a stratum, strata with weights, a .jsonl file, or hub:OWNER/NAME for a data set"
    )
    isl: Lengths = Field(description="input tokens of a request; the chat template's own tokens are not counted")
    osl: Lengths = Field(description="max_tokens: a ceiling with stop natural, the exact length with stop fixed")
    stop: Literal["natural", "fixed"] = "natural"
    concurrency: tuple[Count, ...] = Field(default=(), description="closed loop: requests in flight, one cell each")
    request_rate: tuple[Positive, ...] = Field(default=(), description="open loop: requests per second, one cell each")
    request_rate_unit: Literal["per_second", "capacity_share"] = Field(
        default="per_second", description="capacity_share: fractions of the baseline's measured requests per second"
    )
    arrival_pattern: Literal["poisson", "constant", "gamma"] | None = None
    arrival_smoothness: Positive | None = Field(default=None, description="gamma: below 1 is burstier than Poisson")
    trace: Trace | None = None
    search: Literal["max_request_rate"] | None = Field(
        default=None,
        description="find the highest rate that keeps slo.share of the requests good, between the rates given",
    )
    turns: Turns | None = None
    prefix_prompts: PrefixPrompts | None = None
    cache_bust: Literal["none", "first_turn_prefix"] = Field(
        default="first_turn_prefix",
        description="first_turn_prefix: every prompt opens with words of its own, so no prefix is ever shared",
    )
    sampling: Sampling = Sampling()
    requests: Requests
    warmup: Requests = Requests(per_concurrency=2, minimum=2)
    slo: Slo | None = None
    gateable: frozenset[str] = Field(description="metrics a gate may judge here, such as ttft.p95")
    not_gated: dict[str, str] = Field(default={}, description="metric or latency -> why this shape does not gate it")
    fixed_twin: FixedTwin | None = None
    path: str = Field(default="", description="the file it was read from; relative paths start there")

    @model_validator(mode="after")
    def _one_load(self) -> TrafficProfile:
        loads = [key for key in ("concurrency", "request_rate", "trace") if getattr(self, key)]
        if len(loads) != 1:
            raise ValueError(f"give exactly one of concurrency, request_rate, trace; got {', '.join(loads) or 'none'}")
        if bool(self.request_rate) != (self.arrival_pattern is not None):
            raise ValueError("arrival_pattern (poisson, constant, gamma) goes with request_rate")
        if (self.arrival_pattern == "gamma") != (self.arrival_smoothness is not None):
            raise ValueError("arrival_smoothness goes with arrival_pattern gamma")
        if not self.trace and bool(self.requests.seconds) != bool(self.request_rate):
            raise ValueError("requests counts per_concurrency in closed loop and seconds in open loop")
        if self.search and not (len(self.request_rate) == 2 and self.slo):
            raise ValueError("search needs slo and two values of request_rate: the lowest and the highest to try")
        if self.turns and self.turns.history == "live" and not self.concurrency:
            raise ValueError("turns with history live are driven in closed loop: give concurrency")
        return self

    @model_validator(mode="after")
    def _writable(self) -> TrafficProfile:
        for text in (self.text, self.turns.text if self.turns else None):
            for stratum in [text] if isinstance(text, str) else text or ():
                if stratum not in STRATA and not (stratum == self.text and is_file_source(stratum)):
                    raise ValueError(f"text: {stratum!r} is not known{near(stratum, STRATA)}")
        if is_file_source(self.text) and self.cache_bust == "none":
            raise ValueError("a file has a last prompt, so pairs would share some: set cache_bust first_turn_prefix")
        if self.prefix_prompts:
            if self.cache_bust != "none":
                raise ValueError("prefix_prompts share a prefix and cache_bust prevents it: keep one of them")
            if self.isl.min < self.prefix_prompts.length + 16:
                raise ValueError("isl counts the shared prefix too: isl.min must be prefix_prompts.length + 16 or more")
        return self

    @model_validator(mode="after")
    def _judgeable(self) -> TrafficProfile:
        reasons = not_gateable(self)
        for metric in sorted(self.gateable):
            if metric not in METRICS:
                raise ValueError(f"gateable: {metric!r} is not known{near(metric, METRICS)}")
            if metric in reasons:
                raise ValueError(f"gateable: {metric} cannot be gated in this shape: {reasons[metric]}")
        return self

    @property
    def dataset_format(self) -> Literal["raw_payload", "dag_jsonl", "mooncake_trace"]:
        """The AIPerf data set format that drives this shape (docs/profiles.md, "How a shape is driven")."""
        if self.trace:
            return "mooncake_trace"
        return "dag_jsonl" if self.turns and self.turns.history == "live" else "raw_payload"

    @property
    def needs_capacity(self) -> bool:
        """Its rates are shares of the baseline's capacity: `at_capacity` makes them absolute."""
        return self.request_rate_unit == "capacity_share" or bool(self.trace and self.trace.capacity_share)

    @property
    def context_tokens(self) -> int:
        """Tokens that the longest request can need, answer and chat template included."""
        total = self.isl.longest + self.osl.longest + TEMPLATE_TOKENS
        if self.turns is None:
            return total
        grows_by = TURN_TOKENS
        if self.turns.history == "live":
            grows_by += (self.turns.isl or self.isl).longest + self.osl.longest
        return total + (self.turns.count.longest - 1) * grows_by

    def requests_for(self, load: float) -> int:
        """Requests of a cell at this concurrency, or at this request rate (per second)."""
        return self.requests.count(load)

    def warmup_requests_for(self, load: float) -> int:
        """Warm-up requests before a cell of this concurrency or request rate."""
        return self.warmup.count(load)

    def at_capacity(self, capacity_per_s: float) -> TrafficProfile:
        """The same shape with absolute rates, given the baseline's capacity in requests per second."""
        if self.trace and self.trace.capacity_share:
            as_recorded = self.trace.model_copy(update={"speedup_ratio": 1.0})
            recorded_per_s = requests_per_s(read_arrivals(as_recorded, self.path, self.requests.minimum))
            ratio = round(self.trace.capacity_share * capacity_per_s / recorded_per_s, 6)
            trace = as_recorded.model_copy(update={"speedup_ratio": ratio, "capacity_share": None})
            return self.with_changes(trace=trace.model_dump(mode="json"))
        rates = [round(share * capacity_per_s, 3) for share in self.request_rate]
        return self.with_changes(request_rate=rates, request_rate_unit="per_second")

    def with_changes(self, **changes: Any) -> TrafficProfile:
        """A copy with other values (as YAML would give them), validated again; ProfileError when they do not fit."""
        return _validate(self.model_dump(mode="json", exclude_defaults=True) | changes, self.path or self.name)

    def check_context(self, available_tokens: int) -> None:
        """ProfileError when the longest request does not fit; nothing is ever cut silently."""
        if self.context_tokens > available_tokens:
            raise ProfileError(
                f"{self.name} (tier {self.tier}) needs a context of {self.context_tokens} tokens and the endpoint has "
                f"{available_tokens}: take a smaller tier ({', '.join(TIERS)}) or a profile with smaller isl and osl."
            )


def list_profiles() -> tuple[str, ...]:
    """Names of the built-in shapes, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_profile(name_or_path: str | Path, tier: str = "gate") -> TrafficProfile:
    """A built-in shape, its fixed-length twin (`NAME-fixed`), or the shape in a YAML file, for one tier.

    Raises ProfileError: unknown name or tier, unreadable file, unknown key, value out of bounds.
    """
    if tier not in TIERS:
        raise ProfileError(f"tier {tier!r} is not known{near(tier, TIERS)}")
    path, fixed = _find(str(name_or_path))
    raw = read_yaml(path)
    tiers = raw.pop("tiers", {})
    if not isinstance(tiers, dict) or set(tiers) - set(TIERS):
        raise ProfileError(f"{path}: tiers holds {', '.join(TIERS)}, each with the keys that the tier replaces.")
    changes = tiers.get(tier) or {}
    if not isinstance(changes, dict):
        raise ProfileError(f"{path}: tiers.{tier} holds the keys that the tier replaces.")
    data = raw | changes | {"tier": tier, "path": str(path)}
    profile = _validate(data, f"{path} (tier {tier})")
    return _twin(profile) if fixed else profile


def load_tiers(name_or_path: str | Path) -> tuple[TrafficProfile, ...]:
    """The shape in each of its three tiers: what `profiles check` validates."""
    return tuple(load_profile(name_or_path, tier) for tier in TIERS)


def _find(name: str) -> tuple[Path, bool]:
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ProfileError(f"There is no profile file {path}.")
        return path.resolve(), False
    known = list_profiles()
    if name in known:
        return _FOLDER / f"{name}.yaml", False
    if name.endswith(FIXED) and name.removesuffix(FIXED) in known:
        return _FOLDER / f"{name.removesuffix(FIXED)}.yaml", True
    raise ProfileError(f"There is no profile {name!r}{near(name, known)} A path to your own file ends in .yaml.")


def _twin(profile: TrafficProfile) -> TrafficProfile:
    if profile.fixed_twin is None:
        raise ProfileError(f"{profile.name} has no fixed-length twin: its file has no fixed_twin key.")
    return profile.with_changes(
        name=profile.name + FIXED, stop="fixed", gateable=sorted(profile.fixed_twin.gateable), fixed_twin=None
    )


def _validate(data: dict[str, Any], where: str) -> TrafficProfile:
    try:
        # Through JSON: lists become tuples under strict types, and YAML's own types (dates) are refused.
        return TrafficProfile.model_validate_json(json.dumps(data, allow_nan=False))
    except ValidationError as error:
        raise ProfileError(sentence(error, TrafficProfile, where)) from None
    except (TypeError, ValueError):
        key = next(key for key, value in data.items() if not _is_json(value))
        raise ProfileError(
            f"{where}: {key} holds a date or a number that is not finite; quote it if it is text."
        ) from None


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

"""The parts of a traffic profile: counts, turns, prefixes, sampling, limits, traces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from traffic_profiles.lengths import Lengths

Positive = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
TextSource = str | dict[str, Positive]


class ProfileError(ValueError):
    """A profile that cannot be used. The message is a sentence: file, key, what is allowed, what to do."""


class Strict(BaseModel):
    """Immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Requests(Strict):
    """How many requests a cell sends: `per_concurrency` x concurrency, or `seconds` x rate; never below `minimum`."""

    per_concurrency: Count | None = None
    seconds: Positive | None = None
    minimum: Count = 1

    def count(self, load: float) -> int:
        """Requests at this concurrency or rate."""
        return max(self.minimum, round(load * (self.per_concurrency or self.seconds or 0)))


class Turns(Strict):
    """Turns of a conversation.

    `recorded`: each request is one moment of a conversation whose earlier turns are already written, so every
    request stands alone and both arms see the same bytes. `live`: AIPerf sends the turns one after the other and
    puts the engine's own replies between them, so the prefix grows by what the engine said.
    """

    count: Lengths
    history: Literal["recorded", "live"] = "recorded"
    isl: Lengths | None = Field(default=None, description="live: tokens that each later turn adds")
    text: TextSource | None = Field(default=None, description="live: what later turns are made of; default: as text")
    delay_ms: Lengths | None = Field(default=None, description="live: pause before each later turn, milliseconds")

    @model_validator(mode="after")
    def _complete(self) -> Turns:
        if (self.history == "live") != (self.isl is not None):
            raise ValueError("isl of a later turn belongs to history live, and live needs it")
        if self.history != "live" and (self.delay_ms or self.text):
            raise ValueError("delay_ms and text belong to history live: recorded turns are not sent one by one")
        return self


class PrefixPrompts(Strict):
    """What prompts share: `pool_size` system prompts of `length` tokens, the requests dealt to them in turn."""

    length: Count
    pool_size: Count = 1
    text: Literal["rules", "tools", "code"] = Field(
        default="rules", description="house rules of a service, tool definitions, or the file being edited"
    )


class Sampling(Strict):
    """Sampling parameters sent with every request; each request also has a seed of its own."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: tuple[str, ...] = Field(default=(), max_length=4)


class Slo(Strict):
    """A request is good when it meets both limits; goodput counts good requests per second, as AIPerf does."""

    ttft_ms: Positive
    tpot_ms: Positive
    share: Annotated[float, Field(gt=0, le=1)] = Field(default=0.95, description="share of requests that must be good")


class Trace(Strict):
    """Replay of arrival times and lengths; the words are AIPerf's.

    `file` is one of this package's `traces/NAME.jsonl`, or a path: absolute, or relative to the profile's file.
    """

    format: Literal["mooncake_trace", "burst_gpt_trace", "azure_trace"] = "mooncake_trace"
    file: str = Field(min_length=1)
    speedup_ratio: Positive = Field(default=1.0, description="2 replays twice as fast")
    prompt_len_multiplier: Positive = 1.0
    output_len_multiplier: Positive = 1.0
    max_isl: Count | None = Field(default=None, description="leave longer requests out")
    max_osl: Count | None = Field(default=None, description="cap longer answers")
    capacity_share: Positive | None = Field(
        default=None, description="replay at this share of the baseline's capacity instead of speedup_ratio"
    )
    block_size: Count = Field(default=512, description="tokens that one hash id stands for")


class FixedTwin(Strict):
    """`NAME-fixed`: the same shape with `stop: fixed`, every answer exactly its osl tokens long."""

    gateable: frozenset[str]

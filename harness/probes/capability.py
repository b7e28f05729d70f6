"""What one probe found, and the endpoint it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field

from harness.probes.client import EVENT_LIMIT, Client, Reply
from harness.verdict import Finite, Record

# Log-probabilities of the tokens of `ids` under the BF16 reference, in nats; the first one is not defined (0).
ReferenceLogprobs = Callable[[Sequence[int]], Sequence[float]]


class Support(StrEnum):
    """What an endpoint does with something it was asked for. Only YES may be relied on."""

    YES = "yes"
    PARTLY = "partly"
    IGNORED = "ignored"  # accepted without an effect: more common than a refusal, and worse
    REFUSED = "refused"
    WRONG = "wrong"
    UNKNOWN = "unknown"  # the probe could not tell; never taken for a yes


class Capability(Record):
    """One capability, probed by its effect."""

    name: str
    support: Support
    detail: str = Field(description="what was seen, for a person")
    value: Finite | None = Field(default=None, description="the limit or count that was found, in `unit`")
    unit: str = ""
    traits: dict[str, str] = Field(default_factory=dict, description="how the server put it on the wire")


@dataclass(frozen=True)
class Target:
    """An endpoint under examination."""

    client: Client
    model: str
    encode: Callable[[str], list[int]] | None = None  # the model's own tokenizer, when it is at hand
    reference: ReferenceLogprobs | None = None

    async def chat(self, text: str, *, stop_after: int = EVENT_LIMIT, **fields: Any) -> Reply:
        """A chat request with one user message, greedy unless `fields` say otherwise."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        return await self.client.ask("/v1/chat/completions", body, stop_after=stop_after)

    async def complete(self, prompt: Any, *, stop_after: int = EVENT_LIMIT, **fields: Any) -> Reply:
        """A completion request (text, token ids or a list of either), greedy unless `fields` say otherwise."""
        body = {"model": self.model, "prompt": prompt, "temperature": 0, **fields}
        return await self.client.ask("/v1/completions", body, stop_after=stop_after)


def refused(name: str, reply: Reply) -> Capability:
    """The server said no, or nothing: its own words are the detail."""
    kind = Support.REFUSED if 400 <= reply.status < 500 else Support.UNKNOWN if reply.status == 0 else Support.WRONG
    return Capability(name=name, support=kind, detail=reply.why)


def listing(value: Any) -> list[Any]:
    """A list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}

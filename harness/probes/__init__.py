"""What an endpoint really supports, probed by effect: parameters are more often ignored than refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.probes import control, logprobs, streaming
from harness.probes.capability import Capability, Support, Target
from harness.progress import Progress

PROBES: tuple[Callable[[Target], Awaitable[Capability]], ...] = (
    control.context_length,
    streaming.streaming,
    streaming.usage,
    streaming.usage_per_event,
    streaming.token_ids,
    streaming.split_characters,
    streaming.several_at_once,
    logprobs.chat_logprobs,
    logprobs.completion_logprobs,
    logprobs.echo,
    logprobs.prompt_logprobs,
    control.ignore_eos,
    control.min_tokens,
    control.zero_tokens,
    control.stop,
    control.seed,
    control.repeats_at_zero,
    control.token_prompt,
    control.tokenize,
    control.cache,
    control.unknown_field,
)


async def probe_all(target: Target, progress: Progress) -> tuple[Capability, ...]:
    """Every probe in turn; one after the other, so that none disturbs the next."""
    found = []
    for done, probe in enumerate(PROBES):
        progress(f"probing {probe.__name__.replace('_', ' ')}", done / len(PROBES))
        found.append(await probe(target))
    return tuple(found)


__all__ = ["Capability", "Support", "Target", "probe_all"]

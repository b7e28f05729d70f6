"""vLLM's completions endpoint in front of the tiny model, without a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch

from tests.tiny_model import tiny_reference

# One model in this process: transformers' forward is not safe to call from several threads at once.
ALONE = Lock()


def legacy(tokens: Sequence[Any], logprobs: Sequence[Any], tops: Sequence[Any] | None = None) -> dict[str, Any]:
    block = {"tokens": list(tokens), "token_logprobs": list(logprobs), "top_logprobs": tops}
    return {"choices": [{"logprobs": block}]}


class Server:
    """vLLM's completions endpoint in front of the tiny model; `bend` changes the logits it serves.

    `bend` is told the phase: prefill, decode, or cached for a token behind a text that may be in the cache.
    `restricts`: it knows `allowed_token_ids`. `noise` draws the tokens at T > 0 (a contract of oracles.sampling);
    without it torch.multinomial does.
    """

    def __init__(
        self,
        bend: Callable[[torch.Tensor, str], torch.Tensor] = lambda logits, phase: logits,
        noise: Callable[[int, int, int, int], Any] | None = None,
        scaled: bool = False,
        restricts: bool = True,
    ) -> None:
        self.bend, self.noise, self.scaled, self.restricts = bend, noise, scaled, restricts
        self.asked: list[Mapping[str, Any]] = []

    def logprobs(self, ids: Sequence[int], phase: str) -> torch.Tensor:
        with ALONE, torch.inference_mode():
            logits = tiny_reference().model(torch.tensor([list(ids)])).logits[0]
        return self.bend(logits, phase).log_softmax(-1)

    def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path == "/v1/models":
            return {"data": [{"id": "m", "root": "tiny", "max_model_len": 256}]}
        self.asked.append(body)
        ids = list(body["prompt"])
        if "prompt_logprobs" in body:
            table = self.logprobs(ids, "prefill")
            rows: list[Any] = [None]
            for i in range(1, len(ids)):
                top = table[i - 1].topk(body["prompt_logprobs"])
                rows.append({str(int(t)): {"logprob": float(v)} for t, v in zip(top.indices, top.values, strict=True)})
                rows[-1][str(ids[i])] = {"logprob": float(table[i - 1][ids[i]])}
            return {"choices": [{"prompt_logprobs": rows}]}
        tokens, logprobs, tops = [], [], []
        seed, temperature = body.get("seed") or 0, body["temperature"]
        generator = torch.Generator().manual_seed(seed)
        noise = self.noise(seed, len(ids) - 1, body["max_tokens"], 512) if self.noise and temperature else None
        for step in range(body["max_tokens"]):
            only = body.get("allowed_token_ids") if self.restricts else None
            row = self.logprobs(ids, "cached" if only else "decode")[-1]
            if only:
                token = only[0]
            elif not temperature:
                token = int(row.argmax())
            elif noise is None:
                token = int(torch.multinomial((row / temperature).softmax(-1), 1, generator=generator))
            else:
                token = int((row.double().numpy() + temperature * noise[step]).argmax())
            shown = (row / temperature).log_softmax(-1) if self.scaled and temperature else row
            top = shown.topk(max(body["logprobs"], 1))
            tokens.append(f"token_id:{token}")
            logprobs.append(float(shown[token]))
            tops.append({f"token_id:{int(t)}": float(v) for t, v in zip(top.indices, top.values, strict=True)})
            ids.append(token)
        return legacy(tokens, logprobs, tops)

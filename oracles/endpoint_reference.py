"""A reference behind an endpoint: a BF16 server that returns prompt log-probabilities (vLLM's `prompt_logprobs`).

For models that do not fit beside the judge. What a server does not return is bounded and said: of the entropy only a
lower bound is known (what is outside the returned ids counts as one token), and log-sum-exp is not known at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from oracles.chat_tokenizer import ChatTokenizer, OracleError, end_ids, listed_ends
from oracles.logits import Ask, ask_prompt
from oracles.logprob_rows import LogprobRow
from oracles.scoring import Progress, ScoreRequest, TokenScores

IN_FLIGHT = 8
MIN_TOP = 20
ANSWER_LIMIT = 1 << 30


@dataclass(frozen=True)
class EndpointReference(ChatTokenizer):
    """A served model. `revision` is that of its tokenizer and what the server calls itself: it proves no weights."""

    ask: Ask
    model: str
    revision: str
    vocab_size: int
    context_length: int
    notes: list[str] = field(default_factory=list)

    def score(
        self,
        requests: Sequence[ScoreRequest],
        *,
        top_k: int = 0,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[TokenScores]:
        """Score every request, several in flight at once; one at a time when `batch_tokens` is given.

        Raises:
            OracleError: the server gives no prompt log-probabilities, or rows that cannot be right.
            ValueError: a request asks for targets that the server did not return.
        """
        total, done = sum(map(len, requests)), 0
        results: dict[int, TokenScores] = {}
        with ThreadPoolExecutor(1 if batch_tokens else IN_FLIGHT) as pool:
            running = {pool.submit(self._one, request, top_k): i for i, request in enumerate(requests)}
            try:
                for finished in as_completed(running):
                    results[running[finished]] = finished.result()
                    done += len(requests[running[finished]])
                    if progress:
                        progress(done, total)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [results[i] for i in range(len(requests))]

    def _one(self, request: ScoreRequest, top_k: int) -> TokenScores:
        ids = [*request.prompt, *request.output]
        rows = ask_prompt(self.ask, self.model, ids, max(top_k, MIN_TOP))[len(request.prompt) - 1 :]
        if request.no_end:
            rows = [_without(row, self.end_token_ids) for row in rows]
        if request.targets is not None:
            rows = [_about(row, target) for row, target in zip(rows, request.targets, strict=True)]
        return _token_scores(rows, top_k)


def open_endpoint(
    ask: Ask, model: str, tokenizer_folder: Path, *, context_length: int | None = None
) -> EndpointReference:
    """Find out what the server is and check that it returns true rows, once.

    Args:
        ask: sends a body to a path and returns the JSON answer; see `http_ask`.
        model: the served name.
        tokenizer_folder: tokenizer.json, chat template and, where there is one, config.json.
        context_length: tokens; the server's own `max_model_len` when None.

    Raises:
        OracleError: no such model there, no prompt log-probabilities, no tokenizer, no `reference` extra.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise OracleError("A chat template needs the extra `reference`: pip install 'enginegate[reference]'") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise OracleError(f"{tokenizer_folder} holds no tokenizer: {str(error).splitlines()[0]}") from error
    card = _card(ask, model)
    context = context_length or card.get("max_model_len")
    if not isinstance(context, int):
        raise OracleError(f"The server does not say the context length of {model}: give it (max_model_len).")
    ends = end_ids(listed_ends(tokenizer_folder), tokenizer)
    digest = hashlib.sha256(f"{model}|{card.get('root')}".encode())
    for file in sorted(tokenizer_folder.glob("*.json")):
        digest.update(file.read_bytes())
    probe = [int(i) for i in tokenizer("One two three four five.")["input_ids"]]
    ask_prompt(ask, model, probe, MIN_TOP)
    return EndpointReference(tokenizer_folder, tokenizer, ends, ask, model, digest.hexdigest(), len(tokenizer), context)


def http_ask(url: str, *, api_key: str | None = None, timeout_s: float = 600) -> Ask:
    """A function that sends JSON to `url` and returns the JSON answer; a body that is empty is a GET.

    The function raises OracleError for what the network or the server does.
    """

    def ask(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        request = Request(url.rstrip("/") + path, json.dumps(body).encode() if body else None, headers)
        try:
            with urlopen(request, timeout=timeout_s) as stream:
                answer = json.loads(stream.read(ANSWER_LIMIT))
        except HTTPError as error:
            said = " ".join(error.read(2000).decode(errors="replace").split())[:200]
            raise OracleError(f"{url}{path} answered HTTP {error.code}: {said}") from error
        except (URLError, OSError, ValueError) as error:
            raise OracleError(f"{url}{path} gave no answer: {error}") from error
        if not isinstance(answer, Mapping):
            raise OracleError(f"{url}{path} answered something else than a JSON object.")
        return answer

    return ask


def _card(ask: Ask, model: str) -> Mapping[str, Any]:
    cards = [card for card in ask("/v1/models", {}).get("data") or [] if isinstance(card, Mapping)]
    for card in cards:
        if card.get("id") == model:
            return card
    served = ", ".join(str(card.get("id"))[:60] for card in cards[:5]) or "no model"
    raise OracleError(f"The reference server does not serve {model}; it serves {served}.")


def _without(row: LogprobRow, ends: frozenset[int]) -> LogprobRow:
    """The row as if end tokens could not come; as it is when one did."""
    if row.token in ends:
        return row
    lost = sum(float(np.exp(value)) for token, value in row.others.items() if token in ends)
    shift = float(np.log1p(-min(lost, 1 - 1e-9)))
    others = {token: value - shift for token, value in row.others.items() if token not in ends}
    ahead = sum(value > row.logprob for token, value in row.others.items() if token in ends)
    return LogprobRow(row.token, row.logprob - shift, others, None if row.rank is None else row.rank - ahead)


def _about(row: LogprobRow, target: int) -> LogprobRow:
    """The same position, asked about another token."""
    if target not in row.known:
        raise ValueError(f"token {target} is not among those the server returned")
    others = {token: value for token, value in row.known.items() if token != target}
    return LogprobRow(target, row.known[target], others)


def _token_scores(rows: Sequence[LogprobRow], top_k: int) -> TokenScores:
    """Rows as scores; the log-sum-exp of raw logits is not known and stays NaN."""
    ranked = [sorted(row.known.items(), key=lambda pair: -pair[1]) for row in rows]
    kept = min([top_k, *map(len, ranked)])
    above = [sum(value > row.logprob for value in row.others.values()) for row in rows]
    return TokenScores(
        logprobs=np.array([row.logprob for row in rows], dtype=np.float32),
        ranks=np.array([n if r.rank is None else r.rank for n, r in zip(above, rows, strict=True)], dtype=np.int32),
        margins=np.array([best[0][1] - row.logprob for best, row in zip(ranked, rows, strict=True)], dtype=np.float32),
        entropies=np.array([_entropy_bound(row) for row in rows], dtype=np.float32),
        lse=np.full(len(rows), np.nan, dtype=np.float32),
        top_ids=np.array([[token for token, _ in best[:kept]] for best in ranked], dtype=np.int32),
        top_logprobs=np.array([[value for _, value in best[:kept]] for best in ranked], dtype=np.float32),
    )


def _entropy_bound(row: LogprobRow) -> float:
    """Entropy if everything outside the returned ids were one token: never more than the true one."""
    logs = np.array(list(row.known.values()))
    mass = np.exp(logs)
    rest = max(1.0 - float(mass.sum()), 0.0)
    return float(-(mass * logs).sum()) - (rest * float(np.log(rest)) if rest > 0 else 0.0)

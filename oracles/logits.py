"""The logit oracle: a server's own log-probabilities against the reference's, position by position.

Takes whatever route the server offers (`prompt_logprobs`, `echo`, the logprobs of generated tokens) through one
function, `ask(path, body) -> answer`, that the caller provides. Only k ids come back a position, so the divergence is a
lower bound with its covered mass disclosed; the ids are the reference's own where the server takes them. Rows that
cannot be right are refused (`oracles.logprob_rows`), shifted rows too: a shift is found by trying it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from oracles.kl_metrics import Positions, bucketed_kld
from oracles.logprob_rows import LogprobRow, decode_rows, prompt_rows
from oracles.reference import OracleError, Reference
from oracles.result import Metric
from oracles.scoring import ScoreRequest

TOP_K = 20
SMALLEST = -20.0  # ln of the least mass a bucket is given
NEXT_TOKENS = 8  # of a text, asked one by one
SHIFT_GAP = 0.5  # nats; below it rows fit well enough not to look for a shift
Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Values = npt.NDArray[np.float64]
Phase = Literal["prefill", "decode", "sampled"]


@dataclass(frozen=True)
class Document:
    """One text's rows from a server: the ids before it, its ids, a row for each of these, and what seed drew them."""

    item: str
    stratum: str
    phase: Phase
    context: Sequence[int]
    ids: Sequence[int]
    rows: Sequence[LogprobRow]
    seed: int | None = None


def ask_prompt(ask: Ask, model: str, ids: Sequence[int], top_k: int = TOP_K, **fields: Any) -> list[LogprobRow]:
    """Rows of ids[1:], by `prompt_logprobs` or, where the server ignores it, by `echo`. Raises OracleError."""
    body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, **fields}
    try:
        return prompt_rows(ask("/v1/completions", body | {"prompt_logprobs": top_k}), ids)
    except OracleError as first:
        echo = {"echo": True, "logprobs": top_k, "return_tokens_as_token_ids": True}
        try:
            return prompt_rows(ask("/v1/completions", body | echo), ids)
        except OracleError as second:
            raise OracleError(f"No prompt log-probabilities. prompt_logprobs: {first} echo: {second}") from second


def ask_decode(
    ask: Ask, model: str, prompt: Sequence[int], max_tokens: int, *, temperature: float = 0.0, top_k: int = TOP_K,
    **fields: Any,
) -> list[LogprobRow]:  # fmt: skip
    """Rows of the tokens that the server generates behind `prompt`. Raises OracleError."""
    body = {
        "model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": temperature,
        "logprobs": top_k, "return_tokens_as_token_ids": True, **fields,
    }  # fmt: skip
    answer = ask("/v1/completions", body)
    rows = decode_rows(answer)
    _check_count(answer, len(rows))
    return rows


def _check_count(answer: Mapping[str, Any], rows: int) -> None:
    """Refuse an answer that merged tokens into one row: what follows has another context than its rows say."""
    usage, choice = answer.get("usage"), answer["choices"][0]
    claimed = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    unlisted_end = choice.get("finish_reason") == "stop"
    if isinstance(claimed, int) and not rows <= claimed <= rows + unlisted_end:
        raise OracleError(f"{rows} rows of log-probabilities came for {claimed} generated tokens.")


def compare(documents: Sequence[Document], reference: Reference, top_k: int = 100) -> Positions:
    """Score every document under the reference and set its rows against it.

    Raises OracleError when a document's rows fit the reference better one position earlier or later.
    """
    scores = reference.score([ScoreRequest(d.context, d.ids) for d in documents], top_k=top_k)
    columns: list[tuple[int, float, float, float, bool, float]] = []
    for number, (document, seen) in enumerate(zip(documents, scores, strict=True)):
        check_alignment(np.array([row.logprob for row in document.rows]), seen.logprobs.astype(float), document.item)
        theirs = np.array([max(row.known, key=row.known.__getitem__) for row in document.rows])
        check_choices(theirs, seen.top_ids[:, 0], document.item)
        for i, row in enumerate(document.rows):
            p = dict(zip(seen.top_ids[i].tolist(), seen.top_logprobs[i].astype(float).tolist(), strict=True))
            p[row.token] = float(seen.logprobs[i])
            kld, covered = bucketed_kld(p, row.known, SMALLEST)
            best = max(row.known, key=row.known.__getitem__)
            same = p.get(best, -np.inf) >= float(seen.top_logprobs[i, 0])
            columns.append((number, kld, p[row.token], row.logprob, same, covered))
    names = np.array(columns, dtype=float).T
    return Positions(names[0].astype(np.int64), names[1], names[2], names[3], names[4].astype(bool), names[5])


def check_alignment(claimed: Values, reference: Values, item: str) -> None:
    """Refuse rows that belong to a neighbouring position. Raises OracleError."""
    if len(claimed) < 8:
        return
    here = float(np.abs(claimed - reference).mean())
    shifted = {
        "one later": float(np.abs(claimed[1:] - reference[:-1]).mean()),
        "one earlier": float(np.abs(claimed[:-1] - reference[1:]).mean()),
    }
    where, gap = min(shifted.items(), key=lambda pair: pair[1])
    if here > SHIFT_GAP and gap < here / 2:
        raise OracleError(
            f"{item}: the server's log-probabilities are {here:.2f} nats from the reference's, but {gap:.2f} when "
            f"taken as those of the token {where}: its rows are shifted."
        )


def check_choices(theirs: npt.NDArray[np.int64], reference: npt.NDArray[np.int32], item: str) -> None:
    """Refuse distributions of a neighbouring position, told by their most likely tokens. Raises OracleError.

    llama-cpp-python's echo looks up the right token in the distribution before it: no value fits its neighbour then.
    """
    if len(theirs) < 8:
        return
    here = float((theirs == reference).mean())
    shifted = {
        "before": float((theirs[1:] == reference[:-1]).mean()),
        "after": float((theirs[:-1] == reference[1:]).mean()),
    }
    where, share = max(shifted.items(), key=lambda pair: pair[1])
    if here < 0.5 and share > max(0.5, 2 * here):
        raise OracleError(
            f"{item}: the server's most likely token is the reference's at {here:.0%} of positions, but at {share:.0%} "
            f"when taken as that of the position {where}: its distributions are shifted."
        )


def k3(reference: Values, claimed: Values) -> Values:
    """Schulman's estimator of KL(q || p) on tokens sampled from q: exp(r) - 1 - r, r = ln p - ln q; never negative."""
    r = np.clip(reference - claimed, -50.0, 50.0)
    estimate: Values = np.maximum(np.expm1(r) - r, 0.0)
    return estimate


def self_consistency(
    ask: Ask, model: str, prompts: Sequence[Sequence[int]], *, max_tokens: int = 128, salt: str = "enginegate"
) -> tuple[dict[str, Metric], str]:
    """k3 between what decoding claims of sampled tokens and what reading the same text claims, by cache state.

    `cold`: a prefill of the whole text. `prefill-hit`: the last tokens one by one, behind a beginning that this prefill
    left in the cache. `decode-hit`: the same behind what decoding left there. States are told apart by vLLM's
    `cache_salt`. A prefill cannot show the last two: vLLM reads no cache for a request with `prompt_logprobs`. Needs no
    reference: an honest engine agrees with itself.

    Returns:
        the metrics, and why the cached states are not among them, if so.

    Raises:
        OracleError: the server lacks one of the routes, or its rows cannot be right.
    """
    states: dict[str, list[Values]] = {"cold": [], "prefill-hit": [], "decode-hit": []}
    missing = ""
    for number, prompt in enumerate(prompts):
        written, read = f"{salt}-{number}-written", f"{salt}-{number}-read"
        rows = ask_decode(ask, model, prompt, max_tokens, temperature=1.0, top_k=1, cache_salt=written, seed=number)
        ids = [*prompt, *(row.token for row in rows)]
        claimed = np.array([row.logprob for row in rows])
        prefilled = ask_prompt(ask, model, ids, 1, cache_salt=read)[len(prompt) - 1 :]
        states["cold"].append(k3(np.array([row.logprob for row in prefilled]), claimed))
        last = min(len(rows), NEXT_TOKENS)
        try:
            for state, cache in (("prefill-hit", read), ("decode-hit", written)) if not missing else ():
                seen = [_ask_next(ask, model, ids[:i], ids[i], cache) for i in range(len(ids) - last, len(ids))]
                if not any(seen) and claimed[-last:].any():
                    raise OracleError(
                        "Log-probabilities of a token named by allowed_token_ids are those of that choice."
                    )
                states[state].append(k3(np.array(seen), claimed[-last:]))
        except OracleError as error:
            missing = str(error)
    kept = {"cold": states["cold"]} if missing else states
    return {f"k3_{state}": _text_mean(values) for state, values in kept.items()}, missing


def _ask_next(ask: Ask, model: str, before: Sequence[int], token: int, cache: str) -> float:
    """The log-probability of one token behind others that may be in the cache. Raises OracleError."""
    row = ask_decode(ask, model, before, 1, top_k=1, allowed_token_ids=[token], cache_salt=cache)[0]
    if row.token != token:
        raise OracleError("Cached states need allowed_token_ids, which this server does not know.")
    return row.logprob


def _text_mean(texts: Sequence[Values]) -> Metric:
    """Mean over tokens; its error is that of the texts' means."""
    means = np.array([values.mean() for values in texts])
    mean, n = float(np.concatenate(texts).mean()), sum(map(len, texts))
    if len(means) < 2:
        return Metric(value=mean, unit="nats/token", n=n)
    error = 1.96 * float(means.std(ddof=1) / np.sqrt(len(means)))
    return Metric(value=mean, unit="nats/token", n=n, ci_low=mean - error, ci_high=mean + error)

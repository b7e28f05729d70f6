"""Text that came without token ids, split into tokens as the engine may have chosen them.

A text falls into tokens in many ways. The tokenizer's own is one; an engine that chose " wor" and "l" before its limit
cut it off has another, and would be judged by a token " worl" that it never chose. So wherever one of the reference's
likeliest tokens is likelier than the text's and spells what the text goes on with, the engine may have chosen that one:
the answer is split there, the rest is tokenised anew, and the whole is scored again. Of all splits tried the one with
the least margin counts, in every arm. Where the text says something else than the reference, no split makes another
text of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from oracles.answers import REPLACEMENT, Answer
from oracles.reference import Reference
from oracles.scoring import ScoreRequest, TokenScores

LIKELIEST = 4  # an engine's own numerics may take the second of two that are close
# Bounds on what a hostile text can cost; an honest one needs one or two rounds, and a split in a hundred tokens.
ROUNDS = 4
SPLITS_A_ROUND = 16
Score = Callable[[Sequence[ScoreRequest], int], list[TokenScores]]


def score_best_splits(
    answers: Sequence[Answer], reference: Reference, score: Score
) -> tuple[list[Answer], list[TokenScores]]:
    """Score answers; greedy ones whose text was tokenised here are split otherwise where that fits them better.

    Args:
        answers: as they were tokenised.
        reference: its tokenizer.
        score: the reference's scores of requests, with so many of each position's likeliest tokens.

    Returns:
        answers, with the ids that count, and their scores, in the order given.
    """
    open_ = [i for i, answer in enumerate(answers) if answer.greedy and answer.source == "retokenised"]
    likeliest = LIKELIEST if open_ else 1
    best, kept = list(answers), score([answer.request for answer in answers], likeliest)
    latest = {i: (best[i], kept[i]) for i in open_}
    for _ in range(ROUNDS):
        tried = {i: other for i, last in latest.items() if (other := _split(*last, reference)) is not None}
        if not tried:
            break
        again = score([answer.request for answer in tried.values()], likeliest)
        latest = {i: (tried[i], scores) for i, scores in zip(tried, again, strict=True)}
        for i, (answer, scores) in latest.items():
            if scores.margins.sum() < kept[i].margins.sum():
                best[i], kept[i] = answer, scores
    return best, kept


def _split(answer: Answer, scores: TokenScores, reference: Reference) -> Answer | None:
    """The answer with the splits that its scores call for, None without one."""
    ids, likelier = list(answer.ids), [_likelier(scores, i) for i in range(len(answer.ids))]
    i = splits = 0
    while i < len(ids) and splits < SPLITS_A_ROUND:
        for choice in likelier[i]:
            if (rest := _behind(choice, ids[i:], answer.stops, reference)) is not None:
                same = _common_tail(ids[i + 1 :], rest)
                likelier[i:] = [[]] * (1 + len(rest) - same) + likelier[len(likelier) - same :]
                ids[i:] = [choice, *rest]
                splits += 1
                break
        i += 1
    room = reference.context_length - len(answer.prompt)
    return replace(answer, ids=ids[:room]) if splits else None


def _likelier(scores: TokenScores, i: int) -> list[int]:
    """The reference's likeliest tokens at a position that are likelier than the answer's, likeliest first."""
    if scores.ranks[i] == 0:
        return []
    return [int(t) for t, p in zip(scores.top_ids[i], scores.top_logprobs[i], strict=True) if p > scores.logprobs[i]]


def _behind(choice: int, tail: Sequence[int], stops: Sequence[str], reference: Reference) -> list[int] | None:
    """Ids that follow `choice` when the two together spell the tail; None when they cannot."""
    own, first = reference.decode([choice], special=True), reference.decode(tail[:1], special=True)
    if not own or REPLACEMENT in own or not (own.startswith(first) or first.startswith(own)):
        return None
    text = reference.decode(tail, special=True)
    if text.startswith(own):
        rest = reference.encode_output(text[len(own) :])
        return rest if reference.decode([choice, *rest], special=True) == text else None
    hidden = own.removeprefix(text)
    ends = hidden != own and any(hidden.startswith(stop) or stop.startswith(hidden) for stop in stops)
    return [] if ends else None


def _common_tail(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids the two end with alike."""
    same = 0
    while same < min(len(left), len(right)) and left[-1 - same] == right[-1 - same]:
        same += 1
    return same

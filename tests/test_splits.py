"""Answers without token ids: the split that counts is one the engine may have chosen; the text stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import splits
from oracles.answers import Answer
from oracles.scoring import ScoreRequest, TokenScores
from oracles.splits import score_best_splits
from tests.test_tokens_oracle import PROMPTS, greedy
from tests.tiny_model import tiny_reference


class Counting:
    """The tiny reference, counting how often and how much it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.likeliest: list[int] = []

    def __call__(self, requests: Sequence[ScoreRequest], top_k: int) -> list[TokenScores]:
        self.asked.append(len(requests))
        self.likeliest.append(top_k)
        return tiny_reference().score(requests, top_k=top_k)


def answer(text: str, prompt: str = PROMPTS[0], **changes: object) -> Answer:
    """A greedy answer whose text was tokenised here."""
    reference = tiny_reference()
    about = {"pair": 1, "line": 0, "cell": "c", "item": "i", "stratum": "en", "no_end": False}
    ids = reference.encode_output(text)
    made = Answer(
        **about,  # type: ignore[arg-type]
        prompt=reference.prompt_ids([{"role": "user", "content": prompt}]), ids=ids, source="retokenised", greedy=True,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def margins(given: Answer) -> tuple[float, float, Answer]:
    """In the tokenizer's own split, in the one that counts, and the answer so split."""
    (best,), (scores,) = score_best_splits([given], tiny_reference(), Counting())
    (own,) = tiny_reference().score([ScoreRequest(given.prompt, given.ids)], top_k=1)
    return float(own.margins.sum()), float(scores.margins.sum()), best


@pytest.mark.parametrize("number", [36, 43])
def test_an_exact_engine_is_found_exact_by_its_text_alone(number: int) -> None:
    """The tiny model answers these two in tokens that their text does not fall into."""
    prompt = f"Explain how the number {number} works."
    chosen = list(greedy(prompt, 8))
    asked = answer(tiny_reference().decode(chosen), prompt)
    own, best, split = margins(asked)
    assert list(asked.ids) != chosen and own > 1
    assert list(split.ids) == chosen
    assert best == pytest.approx(0, abs=1e-5)


def test_another_text_keeps_its_margin() -> None:
    prompt = "Explain how the number 43 works."
    reference = tiny_reference()
    chosen = list(greedy(prompt, 8))
    wrong = [*chosen[:5], *reference.encode_output(" France"), *chosen[6:]]
    _, best, split = margins(answer(reference.decode(wrong), prompt))
    assert list(split.ids) == wrong
    (scores,) = reference.score([ScoreRequest(split.prompt, wrong)], top_k=1)
    assert best == pytest.approx(float(scores.margins.sum()), abs=1e-4) and best > 1


def test_a_token_that_a_stop_string_parted_is_seen_whole() -> None:
    """The engine chose one token that ends in the stop string; a server shows what is before it."""
    prompt = "Explain how the number 43 works."
    chosen = list(greedy(prompt, 2))
    assert [tiny_reference().decode([i]) for i in chosen] == ["ld", "gits"]
    own, best, split = margins(answer("ldgi", prompt, stops=("ts",)))
    assert list(split.ids) == chosen and best == pytest.approx(0, abs=1e-5) and own > 1
    _, _, other = margins(answer("ldgi", prompt, stops=("x",)))
    assert tiny_reference().decode(other.ids) == "ldgi"


@pytest.mark.parametrize("change", [{"source": "engine"}, {"greedy": False}])
def test_ids_of_the_engine_and_sampled_answers_are_left_alone(change: dict[str, object]) -> None:
    prompt = "Explain how the number 43 works."
    asked, score = answer(tiny_reference().decode(greedy(prompt, 8)), prompt, **change), Counting()
    best, _ = score_best_splits([asked], tiny_reference(), score)
    assert best == [asked]
    assert (score.asked, score.likeliest) == ([1], [1])


def test_only_what_was_split_is_scored_again() -> None:
    exact = "Explain how the number 2 works."
    texts = [(p, tiny_reference().decode(greedy(p, 7))) for p in (exact, "Explain how the number 43 works.")]
    score = Counting()
    best, kept = score_best_splits([answer(text, p) for p, text in texts], tiny_reference(), score)
    assert score.asked[0] == 2 and set(score.asked[1:]) == {1}
    assert [tiny_reference().decode(a.ids) for a in best] == [text for _, text in texts]
    assert [len(a.ids) for a in best] == [len(s.margins) for s in kept]


@settings(max_examples=30)
@given(st.text("ab \n1éх", min_size=1, max_size=80), st.integers(1, 60))
def test_no_split_changes_a_text_or_makes_it_worse(text: str, times: int) -> None:
    """Hostile text is text, too: the rounds, and with them what it can cost, are bounded."""
    asked, score = answer((text * times)[:400]), Counting()
    (split,), (scores,) = score_best_splits([asked], tiny_reference(), score)
    (own,) = tiny_reference().score([ScoreRequest(asked.prompt, asked.ids)], top_k=1)
    assert tiny_reference().decode(split.ids) == tiny_reference().decode(asked.ids)
    assert scores.margins.sum() <= own.margins.sum() + 1e-4
    assert len(score.asked) <= 1 + splits.ROUNDS


def test_an_answer_at_the_end_of_the_context_stays_within_it() -> None:
    reference = tiny_reference()
    room = reference.context_length - len(answer("a").prompt)
    asked = answer("a")
    asked = replace(asked, ids=(reference.encode_output(reference.decode(greedy(PROMPTS[2], 7))) * 400)[:room])
    (split,), _ = score_best_splits([asked], reference, Counting())
    assert len(split.ids) <= room

"""`enginegate floor`: the reference against itself, once, for every run that is judged under it."""

from __future__ import annotations

from pathlib import Path

from harness.errors import InvalidRun, UsageError
from harness.pipeline import read_tokenizer
from harness.progress import Progress, counting
from oracles.floor import EVERY, Floor, floor_of
from oracles.floor_file import ANSWER_TOKENS, Prompt, own_answers
from oracles.reference import OracleError, open_reference
from traffic_profiles.profile import ProfileError, load_profile
from traffic_profiles.requests import make_requests


def run_floor(
    reference: Path, out: Path, progress: Progress, *, tokens: int, profile: str, seed: int, device: str, dtype: str
) -> Floor:
    """Let the reference answer prompts of a profile greedily, compute it again otherwise, write the floor into `out`.

    Raises UsageError for an unknown profile, InvalidRun when the reference cannot be used.
    """
    try:
        progress("loading the reference")
        opened = open_reference(reference, device=device, dtype=dtype)
        tokenizer = read_tokenizer(reference / "tokenizer.json")
        shape = load_profile(profile, tier="smoke")
        count = -(-tokens // ANSWER_TOKENS)
        specs = make_requests(shape, count=count, seed=seed, count_tokens=lambda text: len(tokenizer.encode(text).ids))
        prompts = [Prompt(spec.item, spec.stratum, spec.messages) for spec in specs]
        progress(f"the reference answers {len(prompts)} prompts")
        answers = own_answers(opened, prompts, progress=counting("the reference answers", "prompts", progress))
        progress("computing the reference in other ways")
        say = counting("measuring the noise floor", "tokens", progress)
        return floor_of(answers, opened, out, numerics=EVERY, progress=say)
    except ProfileError as error:
        raise UsageError(f"--profile: {error}") from None
    except OracleError as error:
        raise InvalidRun(str(error)) from None

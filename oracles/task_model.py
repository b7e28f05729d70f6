"""lm-eval as asker and grader only: a model that writes down what it is asked and gives back what was recorded."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# lm-eval's own default for served models; a task that says nothing about length gets it.
DEFAULT_MAX_TOKENS = 256
# The API documents four stop strings; what is beyond them is cut here, alike for both arms.
MOST_STOPS = 4
UNDERSTOOD = {"until", "max_gen_toks", "max_tokens", "temperature", "top_p", "do_sample"}
GREEDY_ONLY = {"top_k", "num_beams", "min_p"}  # without effect when nothing is sampled


class TaskError(Exception):
    """A task that cannot be asked or graded; the message is a sentence that says why and what to do."""


@dataclass(frozen=True)
class Question:
    """One request of lm-eval's: document `doc` counts within the chosen documents, `prompt` is text or chat JSON."""

    task: str
    doc: int
    prompt: str
    generation: Mapping[str, Any]


@dataclass(frozen=True)
class Sampling:
    """What a task asks of one request."""

    max_tokens: int
    temperature: float
    top_p: float | None
    stop: tuple[str, ...]


def sampling(task: str, generation: Mapping[str, Any], max_tokens: int | None = None) -> Sampling:
    """lm-eval's generation arguments as an OpenAI request's; TaskError for one that could not be kept."""
    sampled = bool(generation.get("do_sample", float(generation.get("temperature") or 0) > 0))
    unknown = sorted(set(generation) - UNDERSTOOD - (set() if sampled else GREEDY_ONLY))
    if unknown:
        raise TaskError(
            f"{task} sets {', '.join(unknown)}, which the timed stream does not send; its scores would be another's."
        )
    until = generation.get("until") or []
    stop = (until,) if isinstance(until, str) else tuple(str(one) for one in until)
    limit = max_tokens or generation.get("max_tokens") or generation.get("max_gen_toks") or DEFAULT_MAX_TOKENS
    temperature = float(generation.get("temperature") or 0.0) if sampled else 0.0
    return Sampling(int(limit), temperature, generation.get("top_p") if sampled else None, tuple(s for s in stop if s))


def replay_model(answer: Callable[[Question], str]) -> Any:
    """An `lm_eval.api.model.LM` that answers each request with `answer`; anything but generation is refused."""
    from lm_eval.api.model import LM

    class Replay(LM):  # type: ignore[misc]
        tokenizer_name = "the-engine's-own"

        def apply_chat_template(
            self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
        ) -> str:
            return json.dumps(chat_history, ensure_ascii=False)

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return [answer(Question(r.task_name, r.doc_id, r.args[0], r.args[1])) for r in requests]

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            raise TaskError(f"{requests[0].task_name} asks for log-probabilities of given options.")

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            raise TaskError(f"{requests[0].task_name} asks for the log-probability of whole texts.")

    return Replay()


def run_tasks(
    tasks: Mapping[str, Any], chosen: Mapping[str, Sequence[int]], *, chat: bool, model: Any
) -> dict[str, list[dict[str, Any]]]:
    """lm-eval's own evaluation with recorded answers: task -> its logged samples, one for each filter and document.

    Args:
        tasks: by name, as loaded.
        chosen: documents of each task, ascending. The same list must be given when answers are graded: few-shot
            examples are drawn in document order.
        chat: render few-shot examples as turns of a conversation.
        model: gives back what was answered, e.g. `replay_model`.
    """
    import lm_eval

    for task in tasks.values():
        task.set_fewshot_seed(seed=1234)  # lm-eval's default, so that plain lm_eval asks the same
    with quiet():
        done = lm_eval.evaluate(
            lm=model,
            task_dict={"tasks": dict(tasks)},
            samples={name: list(ids) for name, ids in chosen.items()},
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=chat,
            fewshot_as_multiturn=True,
        )
    return dict(done["samples"])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """lm-eval and datasets talk and draw bars on stderr, which belongs to this program's own progress."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

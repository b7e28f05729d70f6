"""A language model without weights: fluent, deterministic answers from a seeded grammar, with a real BPE tokenizer.

Good for what needs no reference model: it answers differently to every prompt, repeats numbers it was given, finds a
needle, stops by itself, and two machines with other numerics drift apart in the middle of an answer, as real ones do.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.engines.stream import Event, Refusal, Request, Stream, Usage

EOS = "<|im_end|>"
SUBJECTS = "the harbour,a quiet engineer,the old library,my neighbour,this river,the second train,a young cook,the city"
VERBS = "keeps,describes,rebuilds,measures,forgets,carries,explains,follows,repairs,imagines,counts,paints"
OBJECTS = "a long letter,the morning light,seven small boats,an unfinished map,the price of bread,a broken clock"
TAILS = "before the rain,without a word,for the third time,near the bridge,as if nothing had changed,in the dark"
CHINESE = "港口在雨中醒来,他修好了旧钟,图书馆今天很安静,河水慢慢流过城市,火车又晚点了,她写了一封长信"
RUSSIAN = "Старый мост ещё стоит,Поезд опоздал на час,Она пишет письмо,Город просыпается рано,Река течёт медленно"
CODE = "def total(values):,    return sum(values),for row in rows:,    print(row.name),import math,x = math.sqrt(y)"
EMOJI = "🙂🚢🌧️📚🕰️"


@dataclass(frozen=True)
class Pace:
    """How fast: milliseconds to the first token, per prompt token, and between tokens; tokens in one event."""

    ttft_ms: float = 40.0
    prefill_ms: float = 0.05
    itl_ms: float = 8.0
    tokens_per_event: int = 1
    jitter: float = 0.08  # of every gap, uniform
    load_ms: float = 0.1  # added to a gap for every other request in flight


@dataclass(frozen=True)
class Toy:
    """An honest model server: `weights` names the model, `numerics` the machine it runs on."""

    tokenizer: Tokenizer
    pace: Pace = Pace()
    weights: str = "claimed"
    numerics: str = "a"
    drift: float = 0.06  # chance that a sentence starts to differ between two numerics
    context: int = 8192
    thinks: bool = False  # the first half of an answer is reasoning

    def events(self, request: Request) -> Stream:
        """The honest answer to one request, token by token, with its due times."""
        prompt_tokens = self.count_prompt(request)
        if prompt_tokens + 1 > self.context:
            raise Refusal(400, f"the prompt has {prompt_tokens} tokens, the model's context is {self.context}")
        ids, finish = self.answer(request)
        return self._timed(request, ids, finish, prompt_tokens)

    def count_prompt(self, request: Request) -> int:
        turns = "".join(f"<|im_start|>{m.get('role')}\n{m.get('content')}{EOS}\n" for m in request.messages)
        return len(self.tokenizer.encode(turns + "<|im_start|>assistant\n").ids)

    def answer(self, request: Request) -> tuple[list[int], str]:
        """Token ids of the answer (without the end token) and why it ended."""
        stop_at_end = not request.ignore_eos
        ids: list[int] = []
        text = ""
        for sentence in self._sentences(request, endless=not stop_at_end):
            text += sentence
            ids += self.tokenizer.encode(sentence).ids
            hit = min((text.find(s) for s in request.stop if s in text), default=-1)
            if hit >= 0:
                cut = self.tokenizer.encode(text[:hit]).ids
                if len(cut) < request.max_tokens:
                    return cut, "stop"
            if len(ids) >= request.max_tokens:
                return ids[: request.max_tokens], "length"
        return ids, "stop"

    def _sentences(self, request: Request, endless: bool) -> Iterator[str]:
        sampled = f"/{request.seed}" if request.temperature > 0 else ""
        claimed = _rng(f"{self.weights}/{request.prompt}{sampled}")
        machine = _rng(f"{self.numerics}/{self.weights}/{request.prompt}{sampled}")
        count = max(2, round(claimed.lognormvariate(1.5, 0.5)))
        language = _language(request.prompt)
        numbers = re.findall(r"\d+", request.prompt)
        yield _opening(claimed, numbers, request.prompt)
        drifted = False
        for number in range(10**6 if endless else count):
            drifted = drifted or machine.random() < self.drift
            yield (" " if number or language != "code" else "\n") + _sentence(machine if drifted else claimed, language)

    async def _timed(self, request: Request, ids: list[int], finish: str, prompt_tokens: int) -> Stream:
        rng = _rng(f"pace/{request.index}/{request.prompt}")
        pace = self.pace
        at = pace.ttft_ms + pace.prefill_ms * prompt_tokens
        step = pace.itl_ms + pace.load_ms * (request.in_flight - 1)
        usage = Usage(prompt_tokens, len(ids) + (finish == "stop"))
        yield Event(at, role=True)
        pieces = list(pieces_of(ids, self.tokenizer))
        for start in range(0, len(pieces), pace.tokens_per_event):
            block = pieces[start : start + pace.tokens_per_event]
            last = start + len(block) == len(pieces)
            yield Event(
                at,
                text="".join(text for _, text in block),
                ids=tuple(token for token, _ in block),
                logprobs=tuple(-0.01 - 0.3 * rng.random() for _ in block),
                reasoning=self.thinks and start < len(pieces) // 2,
                finish=finish if last and finish == "length" else None,
                usage=replace(usage, completion_tokens=start + len(block)) if not last else usage,
            )
            at += step * len(block) * (1 + rng.uniform(-pace.jitter, pace.jitter))
        if finish == "stop" or not pieces:
            yield Event(at, ids=(self.tokenizer.token_to_id(EOS),), finish=finish, usage=usage)


def pieces_of(ids: list[int], tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Each token with the text it completes; special ones and those in the middle of a character complete none."""
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = tokenizer.decode(pending)
        if text.endswith("\ufffd") and len(pending) < 8:
            yield token, ""
        else:
            pending.clear()
            yield token, text


@cache
def toy_tokenizer(vocab_size: int = 1200) -> Tokenizer:
    """A byte-level BPE trained on the grammar's own text: the same ids on every machine, made in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(0)
    languages = ("en", "en", "en", "en", "zh", "ru", "code")
    tokenizer.train_from_iterator([_sentence(rng, rng.choice(languages)) for _ in range(4000)], trainer)
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Write the toy tokenizer as a folder that transformers and AIPerf can load."""
    folder.mkdir(parents=True, exist_ok=True)
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "model_max_length": 8192}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    return folder


def _rng(key: str) -> random.Random:
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))


def _language(prompt: str) -> str:
    if re.search(r"[\u4e00-\u9fff]", prompt):
        return "zh"
    if re.search(r"[\u0400-\u04ff]", prompt):
        return "ru"
    return "code" if re.search(r"\bdef |\bimport |```", prompt) else "en"


def _opening(rng: random.Random, numbers: list[str], prompt: str) -> str:
    """What shows that the whole prompt was read: a needle when one is asked for, the numbers it holds."""
    needle = re.search(r"The ([a-z ]+) of the (\w+) is (\d+)", prompt)
    if needle and f"What is the {needle[1]} of the {needle[2]}?" in prompt:
        return f"The {needle[1]} of the {needle[2]} is {needle[3]}."
    lead = rng.choice(["Well", "First", "Here", "In short", "Of course", "Sure", "Think of it so", "Perhaps"])
    return f"{lead}: {_sentence(rng, 'en')}" + (f" I noted {', '.join(numbers[-3:])}." if numbers else "")


def _sentence(rng: random.Random, language: str) -> str:
    if language == "zh":
        return rng.choice(CHINESE.split(",")) + "。"
    if language == "ru":
        return rng.choice(RUSSIAN.split(",")) + "."
    if language == "code":
        return rng.choice(CODE.split(",")) + "\n"
    subject, verb, thing, tail = (rng.choice(words.split(",")) for words in (SUBJECTS, VERBS, OBJECTS, TAILS))
    end = f" {rng.choice(EMOJI)}" if rng.random() < 0.05 else ""
    return f"{subject.capitalize()} {verb} {thing} {tail}.{end}"

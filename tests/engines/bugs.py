"""Real bug reports as engines: nobody meant to cheat, and the numbers are wrong all the same.

`BUGS` lists every report of the collection with where it is tested; those that show in a timed stream are engines here
or share one with a cheat, those of logprob endpoints and of graders are fixtures of other tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import isclass

from tests.engines.cheats.answers import ending
from tests.engines.stream import Engine, Event, Request, Stream, words_of


class StopPrefixLeaks(Engine):
    name = "stop-prefix-leaks"
    does = "streams the first half of a stop string before it sees the rest (vllm#3574, sglang#6997, tgi#1254)"
    check = "stop-leaks"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            leaks = event.finish == "stop" and request.stop and not event.text
            yield replace(event, text=_most_of(max(request.stop, key=len))) if leaks else event


class SplitCharacters(Engine):
    name = "split-characters"
    does = "decodes token by token, so that a character of several tokens becomes U+FFFD (ferrox#124, exo PR#1691)"
    check = "lost-characters"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            lost = event.text.isprintable() and len(event.text) == 1 and ord(event.text) > 0x2FF
            yield replace(event, text="\ufffd\ufffd") if lost else event


class SecondBos(Engine):
    name = "second-bos"
    does = "puts a second BOS before every prompt (vllm PR#55288, lm-eval with add_bos_token and a template)"
    check = "prompt-tokens"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        async for event in honest:
            usage = event.usage and replace(event.usage, prompt_tokens=event.usage.prompt_tokens + 1)
            yield replace(event, usage=usage)


class EmptyChunksFirst(Engine):
    name = "empty-chunks-first"
    does = "sends a role chunk and two empty ones when stop is set (vllm#13087): no TTFT is to be read from them"
    check = "ttft"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        for at_ms in (1.0, 1.1, 1.2):
            yield Event(at_ms, role=at_ms == 1.0)
        async for event in honest:
            if not event.role:
                yield event


class LogprobsChangeThePath(Engine):
    name = "logprobs-change-the-path"
    does = "asking for logprobs switches speculation off and another, wrong path on (vllm#34497)"
    check = "logprob-twins"

    def route(self, request: Request) -> int:
        return 1 if request.body.get("logprobs") else 0


class CumulativeUsage(Engine):
    name = "cumulative-usage"
    does = "adds the running count up at every chunk: 19,503 tokens for 197 (vllm#8625, vllm-omni PR#2313)"
    check = "usage-bytes"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        total = count = 0
        async for event in honest:
            count += words_of(event)
            total += count
            yield replace(event, usage=event.usage and replace(event.usage, completion_tokens=total))


class LongAnswersRot(Engine):
    name = "long-answers-rot"
    does = "long answers end in a loop of garbage, short ones are fine (sglang#33397)"
    check = "loops"

    async def respond(self, request: Request, honest: Stream) -> Stream:
        made = 0
        async for event in honest:
            made += words_of(event)
            if made < 20:
                yield event
                continue
            at = event.at_ms
            for i in range(request.max_tokens - made):
                yield Event(at + 6.0 * i, text="olog")
            yield ending(event, at + 6.0 * request.max_tokens, "length")
            return


def _most_of(stop: str) -> str:
    return stop[: min(len(stop) - 1, len(stop) // 2 + 1)]


@dataclass(frozen=True)
class Bug:
    """One report: what went wrong, and the engine or the test that stands for it."""

    report: str
    says: str
    engine: str = ""
    tested_in: str = "tests/test_engines.py"  # or `make zoo`, for engines that only the BF16 reference can name


BUGS = (
    Bug(
        "vllm#42019, PR#42245",
        "prompt_logprobs depend on the order of requests",
        tested_in="tests/test_bug_fixtures.py",
    ),
    Bug(
        "vllm#5162, #3251, #8268",
        "a reused prefix returns logprobs of other rows",
        tested_in="tests/test_bug_fixtures.py",
    ),
    Bug("Model-Optimizer#1577", "KV reuse cuts the context logits short", tested_in="tests/test_bug_fixtures.py"),
    Bug("llama.cpp#27174", "echo is taken and only generated logprobs come", tested_in="tests/test_bug_fixtures.py"),
    Bug("vllm#44319, PR#44504", "top_logprobs keyed by text collide", tested_in="tests/test_bug_fixtures.py"),
    Bug("vllm#5334", "echo tokens and offsets are malformed", tested_in="tests/test_bug_fixtures.py"),
    Bug("vllm#22881, #13035, #14126", "NaN logits become token 0 for ever", "nan-text"),
    Bug("trtllm#2406, vllm#17876", "logprobs are always 0.0", "faked-logprobs"),
    Bug("vllm#34497", "logprobs switch speculation off", "logprobs-change-the-path"),
    Bug("vllm PR#38711", "logprobs are wrong within k of max_model_len", tested_in="tests/test_bug_fixtures.py"),
    Bug("sglang#23020", "accuracy falls with the number of requests served", "good-at-first"),
    Bug("vllm#39146, #31210, #39589, sglang#22716", "KV corruption under load and after cancels", "cross-talk"),
    Bug("sglang#33397", "corruption grows with the length of the answer", "long-answers-rot"),
    Bug("vllm#8625, vllm-omni PR#2313", "streamed completion_tokens are wrong", "cumulative-usage"),
    Bug("vllm#3574, sglang#6997, PR#11462, tgi#1254", "part of a stop string leaks", "stop-prefix-leaks"),
    Bug("vllm#13087", "empty chunks come first", "empty-chunks-first"),
    Bug("ferrox#124, exo PR#1691, mlc-llm PR#1142", "split characters become U+FFFD", "split-characters"),
    Bug("vllm PR#55288, #27486", "two BOS tokens", "second-bos"),
    Bug("ollama#16196, rfcs#11, sglang#2664", "logprobs raw or scaled", tested_in="tests/test_sampling.py"),
    Bug("vllm#7627", "exact ties break differently: must be excused", tested_in="tests/test_scoring.py"),
    Bug("EAGLE#50", "lossless speculation that was not", "lax-draft"),
    Bug("lm-eval#1204, lighteval#686, ...", "graders that grade wrongly", tested_in="tests/test_bug_fixtures.py"),
    Bug("llama.cpp perplexity writer", "a short write ends with exit code 0", tested_in="tests/test_store.py"),
)


def engines() -> dict[str, type[Engine]]:
    """The bugs that are engines, by name."""
    mine = [c for c in globals().values() if isclass(c) and issubclass(c, Engine) and c is not Engine]
    return {c.name: c for c in mine}

"""From a profile and a seed to the requests that are sent. The same seed gives the same requests everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

from traffic_profiles.arrivals import Arrival, read_arrivals
from traffic_profiles.profile import ProfileError, TrafficProfile
from traffic_profiles.shape import TextSource
from traffic_profiles.text import STRATA, system_prompt
from traffic_profiles.text.ask import Ask, Count, estimate_tokens, fit
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.files import Row, is_file_source, read_rows
from traffic_profiles.text.records import orders

ATTEMPTS = 12
CLOSE = 0.04  # share of the target that a length may miss before another text is tried
ASK_TOKENS = 160  # what a question of its own needs after shared blocks
FAR = 0.12  # share from which another stratum is tried
_GOLDEN = 0.6180339887498949

Message = dict[str, str]


@dataclass(frozen=True)
class RequestSpec:
    """One request. `messages` are the chat messages; of a live turn, only those that the turn adds.

    `item` names the document: equal items have equal messages. `session` and `turn` order the turns of a live
    conversation, `delay_ms` is the pause before the turn, `timestamp_ms` the send time in a trace.
    """

    item: str
    stratum: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float | None
    stop: tuple[str, ...]
    seed: int
    fixed_length: bool
    session: str = ""
    turn: int = 0
    delay_ms: float = 0.0
    timestamp_ms: float | None = None


def make_requests(
    profile: TrafficProfile, *, count: int, seed: int, count_tokens: Callable[[str], int] | None = None
) -> tuple[RequestSpec, ...]:
    """`count` requests of the profile (with history live: `count` conversations, all their turns in order).

    `count_tokens` gives the tokens of a text by the model's tokenizer; without it lengths follow an estimate of
    4.2 Latin letters a token. Raises ProfileError when a file or a trace that the profile names cannot be used.
    """
    writer = _Writer(profile, seed, count_tokens or estimate_tokens)
    try:
        if profile.trace:
            arrivals = read_arrivals(profile.trace, profile.path, count)
            _check_lengths(profile, arrivals)
            return tuple(writer.arrival(index, arrival) for index, arrival in enumerate(arrivals))
        if profile.dataset_format == "dag_jsonl":
            return tuple(spec for index in range(count) for spec in writer.session(index))
        return tuple(writer.single(index) for index in range(count))
    except FileNotFoundError as error:
        raise ProfileError(f"{profile.name}: {error}.") from None


class _Writer:
    """The requests of one profile from one seed, each drawn from (seed, profile, index)."""

    def __init__(self, profile: TrafficProfile, seed: int, size: Count) -> None:
        self.profile = profile
        self.seed = seed
        self.size = lru_cache(maxsize=64)(size)  # fitting asks for the size of the same few sentences again and again
        self._shared: dict[tuple[str, int], str] = {}
        self._written: set[str] = set()

    def single(self, index: int) -> RequestSpec:
        profile = self.profile
        draw = self._draw(index)
        if is_file_source(profile.text):
            stratum, written = self._rows[index % len(self._rows)]
            return self._spec(stratum, _opened(self._salt(draw), list(written)), draw)
        shared = self._prefix(index)
        turns = profile.turns.count.sample(draw) if profile.turns and profile.turns.history == "recorded" else 1
        salt = self._salt(draw)
        target = profile.isl.sample(draw) - self.size(salt) - sum(self.size(m["content"]) for m in shared)
        stratum, messages = self._write(profile.text, index, target, draw, turns)
        return self._spec(stratum, _opened(salt, [*shared, *messages]), draw)

    def session(self, index: int) -> Iterator[RequestSpec]:
        turns = self.profile.turns
        assert turns is not None and turns.isl is not None
        draw = self._draw(index)
        first = self.single(index)
        session = f"session-{first.item}"
        yield replace(first, session=session)
        for turn in range(1, turns.count.sample(draw)):
            step = self._draw(index, turn)
            text = turns.text or self.profile.text
            stratum, messages = self._write(text, index + turn, turns.isl.sample(step), step)
            delay_ms = turns.delay_ms.sample(step) if turns.delay_ms else 0
            yield replace(self._spec(stratum, messages, step), session=session, turn=turn, delay_ms=delay_ms)

    def arrival(self, index: int, arrival: Arrival) -> RequestSpec:
        """A request of the trace's lengths; blocks with equal hash ids have equal text, so prefixes are shared."""
        trace = self.profile.trace
        assert trace is not None
        draw = self._draw(index)
        block = max(1, round(trace.block_size * trace.prompt_len_multiplier))
        salt = self._salt(draw)
        # The last block of a prompt is its own, and so are as many more as a request needs to be put into words.
        shared = [self._block(hash_id, block) for hash_id in arrival.hash_ids[:-1]]
        target = arrival.input_length - self.size(salt) - sum(self.size(text) for text in shared)
        while shared and target < ASK_TOKENS:
            target += self.size(shared.pop())
        stratum, (message,) = self._write(self.profile.text, index, target, draw)
        message = message | {"content": "\n\n".join([*shared, message["content"]])}
        spec = self._spec(stratum, _opened(salt, [message]), draw)
        return replace(spec, max_tokens=max(1, arrival.output_length), timestamp_ms=round(arrival.timestamp_ms, 3))

    def _write(
        self, text: TextSource, index: int, target: int, draw: Draw, turns: int = 1
    ) -> tuple[str, list[Message]]:
        """A text of its turn's stratum that is within 4 % of `target` tokens, or the nearest of several.

        Strata that cannot be so short give way to one of the others. Where even the barest text is longer than the
        target, the shortest is sent as it is: nothing is cut.
        """
        best: tuple[int, str, list[Message]] | None = None
        for stratum in self._strata(text, index):
            for _ in range(ATTEMPTS):
                missed, messages = self._compose(stratum, target, draw, turns)
                if messages[0]["content"] not in self._written and (best is None or missed < best[0]):
                    best = missed, stratum, messages
                if best and best[0] <= target * CLOSE:
                    break
            if best and best[0] <= target * FAR:
                break
        if best is None:
            raise ProfileError(
                f"{self.profile.name}: text {text} has no further prompts of {target} tokens; raise isl."
            )
        self._written.add(best[2][0]["content"])
        return best[1], best[2]

    def _compose(self, stratum: str, target: int, draw: Draw, turns: int) -> tuple[int, list[Message]]:
        ask = STRATA[stratum](draw)
        history = list(_history(ask, turns, target - self.size(ask.text([])), self.size))
        room = target - sum(self.size(m["content"]) for m in history)
        first = fit(ask, room, self.size)
        return abs(room - self.size(first)), [{"role": "user", "content": first}, *history]

    def _prefix(self, index: int) -> list[Message]:
        prefix = self.profile.prefix_prompts
        if prefix is None:
            return []
        group = index % prefix.pool_size
        text = self._once("prefix", group, partial(system_prompt, prefix.text), prefix.length)
        return [{"role": "system", "content": text}]

    def _block(self, hash_id: int, tokens: int) -> str:
        return self._once("block", hash_id, orders, tokens)

    def _once(self, kind: str, number: int, source: Callable[[Draw], Ask], tokens: int) -> str:
        if (kind, number) not in self._shared:
            self._shared[kind, number] = fit(source(self._draw(kind, number)), tokens, self.size)
        return self._shared[kind, number]

    @cached_property
    def _rows(self) -> list[Row]:
        """The user's own prompts that are as long as the profile says, in an order drawn from the seed."""
        isl = self.profile.isl
        rows = read_rows(str(self.profile.text), self.profile.path)
        fit_rows = [row for row in rows if isl.min <= sum(self.size(m["content"]) for m in row[1]) <= isl.longest]
        if not fit_rows:
            raise ProfileError(
                f"{self.profile.name}: none of the {len(rows)} prompts of {self.profile.text} has "
                f"{isl.min:g} to {isl.longest} tokens (isl); nothing is cut, so widen isl."
            )
        return self._draw("rows").sample(fit_rows, len(fit_rows))

    def _salt(self, draw: Draw) -> str:
        """Words that open a prompt and no other one, where the profile wants no prefix shared."""
        return "" if self.profile.cache_bust == "none" else f"Ticket {draw.hex(12)}\n\n"

    def _strata(self, text: TextSource, index: int) -> list[str]:
        """The stratum of this request, then the others.

        Proportions hold even in a dozen requests: steps of the golden ratio fill [0, 1) evenly.
        """
        if isinstance(text, str):
            return [text]
        point = (self._draw("strata").unit() + index * _GOLDEN) % 1.0 * sum(text.values())
        names = list(text)
        for at, name in enumerate(names):
            point -= text[name]
            if point < 0:
                return names[at:] + names[:at]
        return names

    def _draw(self, *path: str | int) -> Draw:
        return Draw(self.seed, self.profile.name, *path)

    def _spec(self, stratum: str, messages: list[Message], draw: Draw) -> RequestSpec:
        digest = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()
        sampling = self.profile.sampling
        return RequestSpec(
            item=f"{stratum}-{digest[:16]}",
            stratum=stratum,
            messages=tuple(messages),
            max_tokens=self.profile.osl.sample(draw),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            stop=sampling.stop,
            seed=draw.below(2**31),
            fixed_length=self.profile.stop == "fixed",
        )


def _history(ask: Ask, turns: int, room: int, size: Count) -> Iterator[Message]:
    """Reply and next question, turn by turn, while they fit into `room` tokens."""
    for _, reply, question in zip(range(turns - 1), ask.replies, ask.follow_ups, strict=False):
        room -= size(reply) + size(question)
        if room < 0:
            return
        yield {"role": "assistant", "content": reply}
        yield {"role": "user", "content": question}


def _opened(salt: str, messages: list[Message]) -> list[Message]:
    first, *rest = messages
    return [first | {"content": salt + first["content"]}, *rest]


def _check_lengths(profile: TrafficProfile, arrivals: tuple[Arrival, ...]) -> None:
    for number, arrival in enumerate(arrivals, start=1):
        if arrival.input_length > profile.isl.longest or arrival.output_length > profile.osl.longest:
            raise ProfileError(
                f"{profile.name}: request {number} of the trace has {arrival.input_length} tokens in and "
                f"{arrival.output_length} out, beyond isl.max {profile.isl.longest} or osl.max {profile.osl.longest}: "
                "raise them, or set trace.max_isl and trace.max_osl."
            )

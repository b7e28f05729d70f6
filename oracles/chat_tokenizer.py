"""A model folder's tokenizer and chat template: messages and text to ids, and back. Needs no weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


class OracleError(Exception):
    """An oracle cannot work with what it was given. One sentence or two: what, where, what to do next."""


@dataclass(frozen=True)
class ChatTokenizer:
    """`tokenizer` is a transformers tokenizer; `end_token_ids` are the ids that end an answer."""

    path: Path
    tokenizer: Any
    end_token_ids: frozenset[int]

    @cached_property
    def end_token_id(self) -> int:
        """The end token the chat template puts behind an answer; without a template, the tokenizer's own."""
        if self.tokenizer.chat_template:
            turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            ends = [i for i in self._render(turns, generation_prompt=False) if i in self.end_token_ids]
            if ends:
                return ends[-1]
        if not self.end_token_ids:
            raise OracleError(f"{self.path} names no end token: set eos_token_id in its generation_config.json.")
        own = self.tokenizer.eos_token_id
        return int(own) if own is not None else min(self.end_token_ids)

    def prompt_ids(self, messages: Sequence[dict[str, Any]] | str) -> list[int]:
        """Token ids of a prompt: chat messages through the model's template, a string as a completion prompt.

        Raises OracleError when the template refuses the messages.
        """
        if isinstance(messages, str):
            return [int(i) for i in self.tokenizer(messages)["input_ids"]]
        if not self.tokenizer.chat_template:
            raise OracleError(f"{self.path} has no chat template: add chat_template.jinja, or send completions.")
        return self._render(list(messages), generation_prompt=True)

    def encode_output(self, text: str) -> list[int]:
        """Token ids of an answer's text, without any token added at its ends."""
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids as a server shows it: without special tokens, unless `special`."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text

    def _render(self, turns: list[dict[str, Any]], *, generation_prompt: bool) -> list[int]:
        from jinja2 import TemplateError

        try:
            ids = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=generation_prompt, tokenize=True, return_dict=False
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise OracleError(f"The chat template of {self.path} refuses a request's messages: {error}") from error
        return [int(i) for i in ids]


def read_chat_tokenizer(folder: Path) -> tuple[Any, frozenset[int], Any]:
    """A model folder's tokenizer, the ids that end an answer, and its text config; no weights. Raises OracleError."""
    try:
        from transformers import AutoConfig, AutoTokenizer
    except ImportError as error:
        raise OracleError("A chat template needs the extra `reference`: pip install 'enginegate[reference]'") from error
    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **offline)
        text = AutoConfig.from_pretrained(folder, **offline).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise OracleError(f"{folder} holds no tokenizer: {str(error).splitlines()[0]}") from error
    return tokenizer, end_ids(listed_ends(folder), tokenizer), text


def end_ids(listed: int | Sequence[int] | None, tokenizer: Any) -> frozenset[int]:
    """Ids that end an answer: the generation config's `eos_token_id` and the tokenizer's own."""
    ids = {listed} if listed is None or isinstance(listed, int) else set(listed)
    return frozenset(int(i) for i in ids | {tokenizer.eos_token_id} if i is not None)


def listed_ends(folder: Path) -> int | list[int] | None:
    """`eos_token_id` of a model folder's generation config, else of its config."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            listed = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            if listed is not None:
                ends: int | list[int] = listed
                return ends
    return None

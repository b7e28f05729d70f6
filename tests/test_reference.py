"""A local reference folder: what it offers, and one sentence for what is wrong with it."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oracles.reference import OracleError, open_reference, revision
from tests.tiny_model import tiny_folder, tiny_reference, write_tiny_model

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(tiny_folder(), tmp_path / "model")


def test_what_a_reference_offers() -> None:
    reference = tiny_reference()
    assert (reference.vocab_size, reference.context_length, reference.dtype) == (512, 2048, "float32")
    assert reference.end_token_ids == {2}
    assert reference.end_token_id == 2


def test_a_chat_prompt_goes_through_the_template() -> None:
    reference = tiny_reference()
    ids = reference.prompt_ids(MESSAGES)
    assert reference.decode(ids, special=True) == (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert reference.decode(ids) == "user\nWhat is the capital of France?\nassistant\n"


def test_a_string_is_a_completion_prompt() -> None:
    assert tiny_reference().decode(tiny_reference().prompt_ids("Once upon")) == "Once upon"


def test_output_text_round_trips_whatever_it_holds() -> None:
    text = "wörld 🙂 2024\n\tдом"
    assert tiny_reference().decode(tiny_reference().encode_output(text)) == text


def test_messages_that_the_template_refuses(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(OracleError, match="refuses a request's messages: roles must alternate"):
        open_reference(folder, device="cpu").prompt_ids(MESSAGES)


def test_the_end_token_is_the_one_the_template_writes(folder: Path) -> None:
    """Some models list several end tokens; only one closes a chat answer."""
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [0, 2]}))
    reference = open_reference(folder, device="cpu")
    assert reference.end_token_ids == {0, 2}
    assert reference.end_token_id == 2


def test_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(OracleError, match="has no chat template"):
        open_reference(folder, device="cpu").prompt_ids(MESSAGES)


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("break_", "sentence"),
    [
        (shutil.rmtree, "is not a folder"),
        (remove("config.json"), "has no config.json"),
        (remove("model.safetensors"), "has no .*safetensors"),
        (remove("tokenizer.json"), "could not be loaded as a reference"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 200), "could not be loaded|not a whole"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}'
            ),
            r"lacks other.safetensors",
        ),
    ],
)
def test_a_broken_folder_is_one_sentence(folder: Path, break_: Any, sentence: str) -> None:
    break_(folder)
    with pytest.raises(OracleError, match=sentence) as error:
        open_reference(folder, device="cpu")
    assert "\n" not in str(error.value)


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="tokenizer has 512 tokens, its model 300"):
        open_reference(write_tiny_model(tmp_path, vocab_size=300), device="cpu")


def test_unknown_dtype_and_absent_gpu() -> None:
    with pytest.raises(OracleError, match="int8 is not one of"):
        open_reference(tiny_folder(), dtype="int8")
    with pytest.raises(OracleError, match="no GPU here"):
        open_reference(tiny_folder(), device="cuda")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError("no torch", name="torch")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(OracleError, match=r"torch is not installed: pip install 'enginegate\[reference\]'"):
        open_reference(tiny_folder())


def test_the_revision_tells_weights_apart(folder: Path, tmp_path: Path) -> None:
    same = revision(folder)
    assert same == revision(tiny_folder())
    assert revision(write_tiny_model(tmp_path / "other", seed=1)) != same
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert revision(folder) != same

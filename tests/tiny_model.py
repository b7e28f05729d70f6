"""A seeded 0.7 MB Llama with its own byte-level BPE and ChatML template: a real model folder, made in a moment."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from oracles.reference import LocalReference, open_reference

TEXT = """
The engine answers a question, the judge reads the answer, and the clock was running all the while. A fast answer that
is wrong is not an answer. Numbers such as 12, 345 and 67.8 are split into digits. The reference gives every token a
probability; the margin is what the token lacks to the best one. def score(tokens): return [margin(t) for t in tokens]
Once upon a time there was a small model with a small vocabulary, and it said the same thing again and again and again.
What is the capital of France? The capital of France is Paris. What is the capital of Spain? The capital of Spain is
Madrid. Explain how the water cycle works to a ten year old. Write a short story about the sea. List five facts.
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_model(folder: Path, *, seed: int = 0, vocab_size: int = 512) -> Path:
    """Write config, BF16 weights, tokenizer and chat template into `folder`; equal seeds give equal bytes.

    `initializer_range` is 0.1: at 0.02 the logits are near-uniform and rounding decides the best token.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 2, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@cache
def tiny_folder() -> Path:
    """One tiny model folder for the whole test process."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_tiny_model(folder)


@cache
def tiny_reference(dtype: str = "float32") -> LocalReference:
    """The tiny model opened on one CPU thread."""
    import torch

    torch.set_num_threads(1)
    return open_reference(tiny_folder(), device="cpu", dtype=dtype)

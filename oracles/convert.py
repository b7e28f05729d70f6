"""GGUF to a BF16 Hugging Face folder, and one GGUF quantisation to another, with the gguf package's own arithmetic.

No hub and no model class: weights are dequantised tensor by tensor and rounded to BF16, and the tokenizer is rebuilt
from the GGUF's vocabulary and merges. Only what the embedded model needs is supported (llama weights, byte-level BPE
with single digits); anything else is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# llama.cpp's tensor name -> transformers' name, inside one layer.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
_FILE_TYPE = {"BF16": 32, "Q8_0": 7, "Q5_0": 8, "Q4_1": 3, "Q4_0": 2}  # gguf.LlamaFileType


def write_reference_folder(source: Path, folder: Path) -> None:
    """Write `source` (a llama GGUF of any quantisation) as BF16 safetensors, config and tokenizer into `folder`.

    BF16 rounding is to nearest even, as transformers does it. Raises ValueError for another architecture or tokenizer.
    """
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    about = {name: field.contents() for name, field in reader.fields.items()}
    kind = (about.get("general.architecture"), about.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ValueError(
            f"{source}: {kind[0]} with tokenizer {kind[1]} cannot be converted here, only llama with smollm"
        )
    folder.mkdir(parents=True, exist_ok=True)
    heads = {"attn_q": about["llama.attention.head_count"], "attn_k": about["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        values = _dequantise(tensor)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _undo_rope_permutation(values, heads[kind])
        tensors[_name(tensor.name)] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    weights = folder / "model.safetensors"
    save_file(tensors, weights, {"format": "pt"})
    weights.chmod(0o644)  # safetensors writes 0600, which another user's engine could not serve
    _write_config(about, folder)
    _write_tokenizer(about, folder)


def requantise(source: Path, target: Path, quantisation: str) -> None:
    """Write `source` again with its matrices as `quantisation` (BF16, Q8_0, Q4_0, ...), all metadata kept.

    The embedding table keeps Q8_0 below eight bits, as llama.cpp keeps a shared output matrix at a higher precision.
    """
    from gguf import GGMLQuantizationType

    def quantised(tensor: Any, values: Array) -> tuple[Array, Any]:
        wanted = "Q8_0" if tensor.name == "token_embd.weight" and quantisation != "BF16" else quantisation
        kind = GGMLQuantizationType[wanted]
        return np.asarray(tensor.data) if tensor.tensor_type == kind else _quantise(values, wanted), kind

    rewrite(source, target, _FILE_TYPE[quantisation], quantised)


def rewrite(source: Path, target: Path, file_type: int, quantise: Callable[[Any, Array], tuple[Array, Any]]) -> None:
    """Write `source` again, every matrix as `quantise` (of the tensor and its fp32 values) gives it with its type."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        value = file_type if name == "general.file_type" else field.contents()
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], element)
    for tensor in reader.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, np.asarray(tensor.data))
            continue
        data, kind = quantise(tensor, _dequantise(tensor))
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _dequantise(tensor: Any) -> Array:
    from gguf.quants import dequantize

    values: Array = dequantize(tensor.data, tensor.tensor_type)
    return values


def _quantise(values: Array, quantisation: str) -> Array:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    data: Array = quantize(values, GGMLQuantizationType[quantisation])
    return data


def _undo_rope_permutation(weights: Array, heads: int) -> Array:
    """llama.cpp interleaves the two rotary halves of each head; transformers keeps them apart."""
    pairs = weights.shape[0] // heads // 2
    return weights.reshape(heads, pairs, 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def _name(tensor: str) -> str:
    if tensor == "token_embd.weight":
        return "model.embed_tokens.weight"
    if tensor == "output_norm.weight":
        return "model.norm.weight"
    parts = tensor.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER or parts[3] != "weight":
        raise ValueError(f"tensor {tensor} is not one of a llama with tied embeddings")
    return f"model.layers.{int(parts[1])}.{_LAYER[parts[2]]}.weight"


def _write_config(about: dict[str, Any], folder: Path) -> None:
    ids = {
        "bos_token_id": about["tokenizer.ggml.bos_token_id"],
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "pad_token_id": about["tokenizer.ggml.padding_token_id"],
    }
    heads = about["llama.attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(about["tokenizer.ggml.tokens"]),
        "hidden_size": about["llama.embedding_length"],
        "intermediate_size": about["llama.feed_forward_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": about["llama.attention.head_count_kv"],
        "head_dim": about["llama.embedding_length"] // heads,
        "max_position_embeddings": about["llama.context_length"],
        # The GGUF holds fp32; the shortest decimal that rounds to it is the number the authors wrote.
        "rms_norm_eps": float(str(np.float32(about["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_type": "default", "rope_theta": about["llama.rope.freq_base"]},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **ids,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids)


def _write_tokenizer(about: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words: list[str] = about["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(words, about["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word, kind in kinds if kind == _CONTROL_TOKEN]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    template = about["tokenizer.chat_template"]
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = {
        # Loads tokenizer.json as it is; a model's own class would rebuild it without the digit split.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words[about["tokenizer.ggml.bos_token_id"]],
        "eos_token": words[about["tokenizer.ggml.eos_token_id"]],
        "pad_token": words[about["tokenizer.ggml.padding_token_id"]],
        "unk_token": words[about["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": about["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""The model folders of examples/gpu: BF16, the same weights spoilt, and an 8B shape without weights.

    python scripts/gpu/make_models.py OUT MODEL.gguf

OUT/smollm2-135m    SmolLM2-135M-Instruct in BF16, as enginegate's demo makes it from the same GGUF
OUT/smollm2-int4    the same folder, every matrix of a layer rounded to four bits and back (symmetric, groups of 64):
                    a fast engine that cuts a corner and calls itself BF16
OUT/dense-8b        config.json and tokenizer of an 8B dense model, for `--load-format dummy`
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))

from oracles.convert import write_reference_folder

GROUP = 64
DENSE_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 49152, "max_position_embeddings": 40960, "tie_word_embeddings": False, "attention_bias": False,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "use_cache": True, "dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip


def main(out: Path, gguf: Path) -> None:
    """Make the three folders."""
    bf16 = out / "smollm2-135m"
    write_reference_folder(gguf, bf16)
    spoil(bf16, out / "smollm2-int4")
    dense = out / "dense-8b"
    dense.mkdir(exist_ok=True)
    (dense / "config.json").write_text(json.dumps(DENSE_8B, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(bf16 / name, dense / name)


def spoil(source: Path, target: Path) -> None:
    """Copy a BF16 folder with every layer's matrices rounded to int4: round to nearest, one scale a group of GROUP."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    spoilt = {name: _round_trip(t) if ".layers." in name and t.ndim == 2 else t for name, t in tensors.items()}
    save_file(spoilt, target / "model.safetensors", {"format": "pt"})
    (target / "model.safetensors").chmod(0o644)


def _round_trip(weights: torch.Tensor) -> torch.Tensor:
    """[rows, columns] -> the same shape and dtype, what symmetric int4 in groups along the columns keeps of it."""
    groups = weights.float().reshape(weights.shape[0], -1, GROUP)
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 7
    return ((groups / scale).round().clamp(-8, 7) * scale).reshape(weights.shape).to(weights.dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

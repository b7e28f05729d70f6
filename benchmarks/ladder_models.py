"""The ladder's middle rungs: SmolLM2-135M as llama.cpp's Q4_K_M and Q2_K recipes make it, by llama.cpp's own routines.

The gguf package quantises to the simple types alone. llama.cpp's `ggml_quantize_chunk`, which knows all, is in the
library that xllamacpp's wheel carries, and is called there. Rows of 576 do not divide into blocks of 256, so llama.cpp
falls back, and so does this: "Q4_K_M" is mostly Q5_0 and "Q2_K" mostly Q4_0 on this model.

    python benchmarks/ladder_models.py OUT        writes OUT/Q4_K_M.gguf and OUT/Q2_K.gguf
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader
from gguf import GGMLQuantizationType as Type

from harness.demo_models import find_source
from oracles import convert

BLOCK = 256  # values in a block of every K quantisation
FALLBACK = {Type.Q2_K: Type.Q4_0, Type.Q3_K: Type.Q4_0, Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}


def more_bits(layer: int, layers: int) -> bool:
    """Layers to whose most sensitive matrices llama.cpp gives two bits more: the ends, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def q4_k_m(name: str, layers: int) -> Type:
    """llama.cpp's Q4_K_M, without an importance matrix."""
    sensitive = ".attn_v." in name or ".ffn_down." in name
    return Type.Q6_K if sensitive and more_bits(int(name.split(".")[1]), layers) else Type.Q4_K


def q2_k(name: str, layers: int) -> Type:
    """llama.cpp's Q2_K for a model with grouped keys and values."""
    return Type.Q3_K if any(part in name for part in (".attn_v.", ".ffn_down.", ".attn_output.")) else Type.Q2_K


def fitting(wanted: Type, columns: int) -> Type:
    """The type itself, or what llama.cpp takes where rows do not divide into its blocks."""
    return wanted if columns % BLOCK == 0 else FALLBACK[wanted]


def main(out: Path) -> None:
    """Write both files and say what they hold."""
    out.mkdir(parents=True, exist_ok=True)
    source = find_source()
    layers = int(GGUFReader(source).fields["llama.block_count"].contents())
    spec = util.find_spec("xllamacpp")
    folder = Path(spec.origin or "").parent if spec else Path()
    routine = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so")))).ggml_quantize_chunk
    routine.restype = ctypes.c_size_t
    routine.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    for name, file_type, recipe in (("Q4_K_M", 15, q4_k_m), ("Q2_K", 10, q2_k)):
        made: Counter[str] = Counter()

        def quantise(tensor: Any, values: Any, recipe: Any = recipe, made: Any = made) -> tuple[Any, Type]:
            wanted = (
                Type.Q8_0
                if tensor.name == "token_embd.weight"
                else fitting(recipe(tensor.name, layers), values.shape[1])
            )
            made[wanted.name] += 1
            return _quantised(routine, values, wanted), wanted

        convert.rewrite(source, out / f"{name}.gguf", file_type, quantise)
        print(f"{out / name}.gguf: {(out / f'{name}.gguf').stat().st_size:,} bytes, {dict(made)}")


def _quantised(routine: Any, values: Any, wanted: Type) -> Any:
    block, size = GGML_QUANT_SIZES[wanted]
    rows, columns = values.shape
    source = np.ascontiguousarray(values, dtype=np.float32)
    data = np.empty((rows, columns // block * size), dtype=np.uint8)
    wrote = routine(int(wanted), source.ctypes.data, data.ctypes.data, 0, rows, columns, None)
    if wrote != data.nbytes:
        raise SystemExit(f"ggml_quantize_chunk wrote {wrote} bytes of {data.nbytes}")
    return data


if __name__ == "__main__":
    main(Path(sys.argv[1]))

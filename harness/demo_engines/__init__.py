"""The engines `enginegate demo` gates: llama.cpp's own server on the embedded weights, and one that only says "a"."""

#!/bin/bash
# Unpack parts made by pack.sh; once both model pieces are there, make the model folders. Safe to repeat.
# usage: install.sh PART...
set -euo pipefail
source "$(dirname "$0")/env.sh"
mkdir -p "$CLIENT" "$VLLM" "$MODELS" "$EG/gguf" "$RUNS"

unpack() { # archive, folder
  local done=$EG/unpacked-$(basename "$1")-$(stat -c %s "$1")
  [ -e "$done" ] && return
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' "$1" "$2"
  touch "$done"
}

jobs=()
for part in "$@"; do
  for archive in "$part"/*.tar.xz; do
    [ -e "$archive" ] || continue
    case $archive in */client.tar.xz) folder=$CLIENT ;; *) folder=$VLLM ;; esac
    unpack "$archive" "$folder" & jobs+=($!)
  done
  cp "$part"/model.gguf.xz.* "$EG/gguf/" 2>/dev/null || true
done
for job in "${jobs[@]}"; do wait "$job"; done
say "unpacked: $*"

# vLLM's first import reads thousands of cold files, which takes longer than everything after it: begin while the other
# parts are still on their way.
if [ -e "$VLLM/vllm" ] && [ ! -e "$EG/imported" ]; then
  touch "$EG/imported"
  PYTHONPATH=$VLLM VLLM_NO_USAGE_STATS=1 setsid python3 -c 'import vllm.entrypoints.openai.api_server, vllm.v1.engine.core
import vllm.v1.worker.gpu_worker, vllm.model_executor.models.llama' >"$EG/import.log" 2>&1 </dev/null &
fi

if [ -e "$EG/gguf/model.gguf.xz.0" ] && [ -e "$EG/gguf/model.gguf.xz.1" ] && [ ! -e "$MODELS/made" ]; then
  [ -e "$CLIENT/bin/aiperf" ] || { say "the client part is missing: no model folder yet"; exit 0; }
  cat "$EG/gguf"/model.gguf.xz.[01] | python3 -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.stdin.buffer), open(sys.argv[1], "wb"), 1 << 20)' "$EG/gguf/model.gguf"
  say "GGUF joined"
  client_python "$REPO/scripts/gpu/make_models.py" "$MODELS" "$EG/gguf/model.gguf"
  touch "$MODELS/made"
  say "models: $(ls "$MODELS")"
fi

#!/bin/bash
# Pack what a GPU machine without a network lacks, in parts small enough to be copied one at a time.
#
# usage: pack.sh OUT [VLLM_BUNDLE]      runs on a Linux x86-64 machine with pip, unzip, binutils and xz
#   OUT/client.tar.xz   AIPerf, lm-eval and their dependencies for Python 3.12 (requirements.txt beside this), trimmed
#   OUT/part1..3        with VLLM_BUNDLE, a folder that holds vllm.tar.xz, site.tar.xz (vLLM and its dependencies) and
#                       model.gguf.xz.* (SmolLM2-135M-Instruct as Q4_1) somewhere below it: the three parts that
#                       install.sh takes, each at most PART_MIB (55: with the working tree that is under 64)
# WORK (default: a temporary folder) keeps the downloads.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
bundle=${2:+$(cd "$2" && pwd)}
limit=$((${PART_MIB:-55} * 1024 * 1024))
if [ -n "${WORK:-}" ]; then mkdir -p "$WORK"; work=$(cd "$WORK" && pwd); else work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi

fetch_client() {
  local wheels=$work/wheels
  mkdir -p "$wheels"
  # No wheel of their own: pure Python, built here.
  grep -E '^(rouge-score|sqlitedict|word2number)==' "$here/requirements.txt" >"$work/pure.txt"
  grep -vE '^(#|rouge-score|sqlitedict|word2number)' "$here/requirements.txt" >"$work/binary.txt"
  local platforms=()
  for tag in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${tag}_x86_64"); done
  for tag in 2014 2010 1; do platforms+=(--platform "manylinux${tag}_x86_64"); done
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --find-links "$wheels" -d "$wheels" -r "$work/binary.txt"
  python3 -m pip wheel -q --no-deps --find-links "$wheels" -w "$wheels" -r "$work/pure.txt"
}

pack_client() {
  local site=$work/client
  rm -rf "$site" && mkdir -p "$site/bin"
  for wheel in "$work"/wheels/*.whl; do unzip -qo "$wheel" -d "$site"; done
  # Data and code that a headless `aiperf profile` and an offline lm-eval never open.
  find "$site" -type d \( -name tests -o -name test -o -name __pycache__ \) -prune -exec rm -rf {} +
  find "$site" \( -name '*.pyi' -o -name '*.a' -o -name RECORD \) -delete
  find "$site/lm_eval/tasks" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
  find "$site" -type f -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true
  printf '#!/usr/bin/env python3\nimport sys\n\nfrom aiperf.cli import app\n\nif __name__ == "__main__":\n    sys.exit(app())\n' >"$site/bin/aiperf"
  chmod +x "$site/bin/aiperf"
  tar -C "$site" --owner=0 --group=0 -cf - . | xz -T0 -6 >"$out/client.tar.xz"
}

arrange() {
  local one=$out/part1 two=$out/part2 three=$out/part3
  rm -rf "$one" "$two" "$three" && mkdir "$one" "$two" "$three"
  find "$bundle" -name vllm.tar.xz -exec ln {} "$one/" \;
  find "$bundle" -name site.tar.xz -exec ln {} "$one/" \;
  find "$bundle" -name 'model.gguf.xz.*' | sort | xargs cat >"$work/model.gguf.xz"
  # Parts two and three of equal size: the model in two pieces, the client with the smaller one.
  local piece=$((($(stat -c %s "$work/model.gguf.xz") + $(stat -c %s "$out/client.tar.xz")) / 2))
  split -b "$piece" -d -a 1 "$work/model.gguf.xz" "$work/model.gguf.xz."
  mv "$work/model.gguf.xz.0" "$two/" && mv "$work/model.gguf.xz.1" "$three/" && rm "$work/model.gguf.xz"
  ln -f "$out/client.tar.xz" "$three/"
  for part in "$one" "$two" "$three"; do
    local size
    size=$(du -sb "$part" | cut -f1)
    echo "$part: $((size / 1024 / 1024)) MiB"
    [ "$size" -le $((limit + 65536)) ] || { echo "$part is over ${PART_MIB:-55} MiB" >&2; exit 1; }
  done
}

[ -e "$out/client.tar.xz" ] || { fetch_client && pack_client; }  # remove it to pack it anew
du -h "$out/client.tar.xz"
[ -z "$bundle" ] || arrange

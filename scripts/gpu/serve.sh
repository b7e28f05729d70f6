#!/bin/bash
# Start the servers of examples/gpu, all at once, detached, and wait until each answers. One that answers is left alone.
#
# usage: serve.sh NAME...     names: eager compiled fp8 int4 eager-8b compiled-8b      stop.sh NAME... ends them
#        serve.sh run NAME    in the foreground, for the `launch` of a plan
# --kv-cache-memory-bytes instead of a share of the memory: vLLM then measures no free memory while it starts, which two
# servers that start on one GPU would spoil for each other.
set -euo pipefail
source "$(dirname "$0")/env.sh"
small=(--max-model-len 8192 --kv-cache-memory-bytes 8G --gpu-memory-utilization 0.1 --no-enable-prefix-caching)
large=(--max-model-len 8192 --kv-cache-memory-bytes 20G --gpu-memory-utilization 0.25 --no-enable-prefix-caching
  --load-format dummy)
mkdir -p "$EG/servers"

port_of() {
  case $1 in
    eager) echo 8100 ;; compiled) echo 8101 ;; fp8) echo 8102 ;; int4) echo 8103 ;;
    eager-8b) echo 8110 ;; compiled-8b) echo 8111 ;;
    *) echo "serve.sh: no server is called $1; one of: eager compiled fp8 int4 eager-8b compiled-8b" >&2; exit 2 ;;
  esac
}

answers() { python3 -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=2)' "http://127.0.0.1:$1/health" 2>/dev/null; }

run() { # name
  local name=$1 port model flags
  port=$(port_of "$name")
  case $name in
    eager) model=smollm2-135m flags=("${small[@]}" --enforce-eager) ;;
    compiled) model=smollm2-135m flags=("${small[@]}") ;;
    fp8) model=smollm2-135m flags=("${small[@]}" --quantization fp8) ;;
    int4) model=smollm2-int4 flags=("${small[@]}") ;;
    eager-8b) model=dense-8b flags=("${large[@]}" --enforce-eager) ;;
    compiled-8b) model=dense-8b flags=("${large[@]}") ;;
  esac
  local served=smollm2-135m
  [ "$model" = dense-8b ] && served=dense-8b
  export PYTHONPATH=$VLLM PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1
  export DO_NOT_TRACK=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0 VLLM_CACHE_ROOT=$EG/cache/vllm-$name
  export TORCHINDUCTOR_CACHE_DIR=$EG/cache/inductor-$name TRITON_CACHE_DIR=$EG/cache/triton-$name
  exec python3 -m vllm.entrypoints.openai.api_server --model "$MODELS/$model" --served-model-name $served \
    --host 127.0.0.1 --port "$port" --dtype bfloat16 --max-logprobs 100 "${flags[@]}"
}

start() { # name
  answers "$(port_of "$1")" && return
  setsid "$0" run "$1" >"$EG/servers/$1.log" 2>&1 </dev/null &
  echo $! >"$EG/servers/$1.pid"
  say "$1: started on port $(port_of "$1")"
}

if [ "${1:-}" = run ]; then run "${2:-}"; fi

for name in "$@"; do port_of "$name" >/dev/null; done
for name in "$@"; do start "$name"; done
waiting=("$@") deadline=$((SECONDS + ${WAIT:-300}))
while [ ${#waiting[@]} -gt 0 ]; do
  still=()
  for name in "${waiting[@]}"; do
    if answers "$(port_of "$name")"; then
      say "$name: answers"
    elif ! kill -0 "$(cat "$EG/servers/$name.pid")" 2>/dev/null; then
      say "$name: ended; its log:"
      grep -vE '^\s*$' "$EG/servers/$name.log" | tail -40
      exit 1
    else
      still+=("$name")
    fi
  done
  waiting=("${still[@]}")
  if [ $SECONDS -gt $deadline ]; then
    for name in "${waiting[@]}"; do say "$name: no answer yet; its log:"; tail -15 "$EG/servers/$name.log"; done
    exit 1
  fi
  [ ${#waiting[@]} -eq 0 ] || sleep 1
done

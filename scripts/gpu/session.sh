#!/bin/bash
# One short command for each step on a GPU machine without a network. Every step may be repeated: what is done is kept.
#
# usage: session.sh install PART...          unpack parts, make the model folders
#        session.sh serve NAME...            start servers (serve.sh) and say what the machine is
#        session.sh doctor                   what this client can measure, beside what the servers really do
#        session.sh plans SECONDS NAME...    gate examples/gpu/NAME*.yaml in turn, for at most SECONDS together
#        session.sh stop NAME...             end servers
# Results are packed into $OUT, one archive a plan.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/env.sh"
collect=${OUT:-$EG/out}
mkdir -p "$collect" "$RUNS"
step=${1:-help}
shift || true

case $step in
  install) "$here/install.sh" "$@" ;;
  stop) "$here/stop.sh" "$@" ;;
  serve)
    nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total --format=csv,noheader || true
    say "$(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), $(python3 --version), enginegate $(enginegate --version)"
    "$here/serve.sh" "$@"
    code=$?
    cp "$EG"/servers/*.log "$collect/" 2>/dev/null || true
    exit $code
    ;;
  doctor)
    # The shapes of a small model on a fast GPU: one stream, 8, 32 and 128, the last also with four tokens an event.
    timeout -s TERM -k 20 "${DOCTOR_S:-240}" bash -c 'source "$1/env.sh"; shift; enginegate doctor "$@"' - "$here" \
      --endpoint compiled=http://127.0.0.1:8101 --model smollm2-135m --tokenizer "$MODELS/smollm2-135m" \
      --concurrency 1,8,32,128 --shape 12,0.56,1 --shape 12,0.8,8 --shape 14,3.1,32 --shape 20,6.4,128 \
      --shape 20,6.4,128,4 --json >"$collect/doctor.json"
    code=$?
    cat "$collect/doctor.json" | tail -c 6000
    exit $code
    ;;
  plans)
    ends=$((SECONDS + $1))
    shift
    for name in "$@"; do
      plan=$(ls "$REPO"/examples/gpu/"$name"*.yaml | head -1)
      left=$((ends - SECONDS))
      [ -e "$RUNS/$(basename "$plan" .yaml).finished" ] && { say "$name: finished before"; continue; }
      [ $left -gt 45 ] || { say "$name: only $left s left; call again"; exit 9; }
      "$here/run_plan.sh" "$plan" "$left"
      # 0, 3, 4 and 5 are verdicts; 124 and 143 mean that time was up, 1 and 2 that something is broken.
      case $? in
        0 | 3 | 4 | 5) [ -e "$RUNS/$(basename "$plan" .yaml)/verdict.json" ] || exit 1; touch "$RUNS/$(basename "$plan" .yaml).finished" ;;
        124 | 137 | 143) say "$name: time is up; call again"; exit 9 ;;
        *) exit 1 ;;
      esac
    done
    say "all plans asked for are finished"
    ;;
  *) sed -n '2,10p' "$0"; exit 2 ;;
esac

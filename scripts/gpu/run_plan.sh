#!/bin/bash
# Gate a plan, or go on with it, for at most SECONDS; pack it into COLLECT (default $OUT).
#
# usage: run_plan.sh PLAN.yaml SECONDS
# In COLLECT: NAME.tar.xz, the run directory (without AIPerf's raw events when it would be over 15 MiB), once there is a
# verdict. A plan that needs longer is ended, and a second call resumes it.
set -uo pipefail
source "$(dirname "$0")/env.sh"
plan=$1 seconds=$2
name=$(basename "$plan" .yaml) collect=${COLLECT:-${OUT:-$EG/out}}
run=$RUNS/$name
mkdir -p "$collect" "$RUNS"

resume=()
[ -e "$run/plan.yaml" ] && resume=(--resume)
say "$name: gate ${resume[*]:-anew}, at most $seconds s"
timeout -s TERM -k 30 "$seconds" bash -c 'source "$1/env.sh"; shift; enginegate gate "$@"' - "$(dirname "$0")" \
  "$plan" --run-dir "$run" "${resume[@]}"
code=$?
say "$name: exit code $code"
client_python "$REPO/scripts/gpu/where_time_went.py" "$run" || true

[ -e "$run/summary.md" ] && head -c 4000 "$run/summary.md"
if [ -e "$run/verdict.json" ]; then
  archive=$collect/$name.tar.xz
  tar -C "$RUNS" -cf - "$name" | xz -T0 -3 >"$archive"
  if [ "$(stat -c %s "$archive")" -gt $((15 * 1024 * 1024)) ]; then
    tar -C "$RUNS" --exclude='*_raw.jsonl' --exclude=raw_records -cf - "$name" | xz -T0 -3 >"$archive"
    say "$name: AIPerf's raw events are left out"
  fi
  say "$name: $(du -sm "$run" | cut -f1) MiB of run directory, $(du -h "$archive" | cut -f1) in $archive"
fi
exit $code

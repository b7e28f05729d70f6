#!/usr/bin/env bash
# Drive the smoke tier of every profile against a real llama.cpp, then show a request of each as text.
# scripts/profiles_smoke.sh [RUN_DIR]; a run that was ended goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
run=${1:-runs/profiles-smoke-$(date +%Y%m%d-%H%M%S)}
models=$(python -m harness.demo_models)
port=$(python -c 'from harness.demo import free_ports; print(free_ports(1)[0])')
if [ -f "$run/plan.yaml" ]; then
    enginegate sweep --run-dir "$run" --resume
else
    profiles=()
    for name in $(python -c 'from traffic_profiles.profile import list_profiles; print(*list_profiles())'); do
        profiles+=(--profile "$name")
    done
    enginegate sweep --endpoint "llama=http://127.0.0.1:$port" --model smollm2-135m --tokenizer "$models/reference" \
        --launch "llama=exec python -m harness.demo_engines.llama_server --model $models/Q8_0.gguf --alias smollm2-135m --port $port --threads 1 --parallel 4 --ctx 4096" \
        --tier smoke --no-calibration "${profiles[@]}" --run-dir "$run"
fi
python scripts/show_requests.py "$run"

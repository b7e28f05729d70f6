#!/usr/bin/env bash
# Gate real vLLM against real llama.cpp, both ways, with plans that differ only in the endpoints.
# Fails unless both gates end in a verdict (PASS, FAIL or INCONCLUSIVE) and `recheck` agrees with each.
# Needs the enginegate command on PATH or in .venv. $VLLM_VENV: where vLLM is or shall be (default .venv-vllm).
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
export VLLM_VENV=${VLLM_VENV:-.venv-vllm}

scripts/vllm_venv.sh "$VLLM_VENV" || exit 1
mkdir -p models
ln -sfn "$(python -m harness.demo_models)" models/smollm2-135m || exit 1

root=${1:-runs/acceptance-$(date +%Y%m%d-%H%M%S)}
failed=0
lines=()
for plan in vllm-vs-llamacpp llamacpp-vs-vllm; do
    line=$(enginegate gate "examples/$plan.yaml" --no-ci --run-dir "$root/$plan")
    code=$?
    lines+=("$plan: exit $code: $line")
    case $code in
    0 | 3 | 4) ;;
    *) failed=1 ;;
    esac
    enginegate recheck "$root/$plan"
    rechecked=$?
    if [ "$rechecked" -ne "$code" ]; then
        lines+=("$plan: recheck ended with $rechecked, the gate with $code")
        failed=1
    fi
done
printf '%s\n' "${lines[@]}"
exit $failed

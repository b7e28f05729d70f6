# Where things lie on a GPU machine without a network; sourced by the other scripts here.
EG=${EG:-/tmp/enginegate}
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CLIENT=$EG/client VLLM=$EG/vllm MODELS=$EG/models RUNS=$EG/runs
export EG PATH=$CLIENT/bin:$PATH XDG_CACHE_HOME=$EG/cache PYTHONDONTWRITEBYTECODE=
client_python() { PYTHONPATH=$REPO:$CLIENT python3 "$@"; }
enginegate() { client_python -c 'from harness.cli import main; main()' "$@"; }
say() { echo "[$(date +%H:%M:%S) +${SECONDS}s] $*"; }

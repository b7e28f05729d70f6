#!/bin/bash
# End servers that serve.sh started, each with its own process session. usage: stop.sh NAME...
set -euo pipefail
source "$(dirname "$0")/env.sh"
for name in "$@"; do
  pid=$(cat "$EG/servers/$name.pid" 2>/dev/null) || continue
  kill -TERM -- "-$pid" 2>/dev/null || true
done
for name in "$@"; do
  pid=$(cat "$EG/servers/$name.pid" 2>/dev/null) || continue
  for _ in $(seq 30); do kill -0 -- "-$pid" 2>/dev/null || break; sleep 0.5; done
  kill -KILL -- "-$pid" 2>/dev/null || true
  rm -f "$EG/servers/$name.pid"
  say "$name: ended"
done

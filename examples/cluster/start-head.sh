#!/usr/bin/env bash
# Starts the head of a Ray cluster on this host; nodes join with start-node.sh.
# Its ports are none of Ray's usual ones: a recipe that starts a Ray of its own finds those free.
set -euo pipefail
ray start --head --port "${PORT:-26379}" --dashboard-port 28265 --min-worker-port 20002 \
  --max-worker-port 25999 --resources "$(npu-matrix doctor --resources)" "$@"

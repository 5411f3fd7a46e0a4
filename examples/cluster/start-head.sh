#!/usr/bin/env bash
# Starts the head of a Ray cluster on this host. Other hosts join with start-node.sh.
# It does not use Ray's default ports, so a recipe can start its own Ray cluster on them.
set -euo pipefail
ray start --head --port "${PORT:-26379}" --dashboard-port 28265 --min-worker-port 20002 \
  --max-worker-port 25999 --resources "$(npu-matrix doctor --resources)" "$@"

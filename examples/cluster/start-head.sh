#!/usr/bin/env bash
# Starts the head of a Ray cluster on this host; nodes join with start-node.sh.
set -euo pipefail
ray start --head --port "${PORT:-6379}" --resources "$(npu-matrix doctor --resources)" "$@"

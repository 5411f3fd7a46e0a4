#!/usr/bin/env bash
# Adds this host to the cluster with the given head address: start-node.sh 10.0.0.1:26379
set -euo pipefail
address=${1:?the address of the head, such as 10.0.0.1:26379}
shift
ray start --address "$address" --min-worker-port 20002 --max-worker-port 25999 \
  --resources "$(npu-matrix doctor --resources)" "$@"

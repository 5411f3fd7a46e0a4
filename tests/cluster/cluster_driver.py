"""A driver to be killed: runs the naps of `test_cluster` on the cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster_checks import made_up_host, no_cells
from test_cluster import ROOT, naps

from harness.ledger.store import Ledger
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

if __name__ == "__main__":
    address, state, marks = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    with Ledger.open(state) as ledger:
        remote = RemoteSite(cell=no_cells, host=made_up_host, cache=str(state / "cache"), state=str(state))
        run_plan(naps(marks), ledger, RayExecutor(ledger.artifacts, ROOT, remote, address), judge_outcome)

"""How long the numerics tier of one cell takes, and the battery alone. Needs a built cell, and quiet.

    python benchmarks/numerics/tier.py --only 'verl-0-9-1*' --target verl==0.9.1

Goals on two cores: the tier under 60 s, the battery under 15 s. Other options of `npu-matrix` go after `--`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIER_GOAL_S, BATTERY_GOAL_S = 60.0, 15.0
CHECKS = ("loss", "actor")
"""The tier in the default profile; `twin` is in the profile `full`."""


def harness(*arguments: str) -> tuple[float, str, int]:
    """Seconds, output and exit code of one command."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return time.monotonic() - started, done.stdout or done.stderr, done.returncode


def main() -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description="how long the numerics tier takes")
    parser.add_argument("--only", required=True, help="the cell (glob)")
    parser.add_argument("--target", required=True, help="verl==VERSION of that cell")
    parser.add_argument("rest", nargs="*", help="options of npu-matrix itself, after --")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} processors")
    chosen = [option for check in CHECKS for option in ("--check", check)]
    seconds, told, _ = harness(*arguments.rest, "run", "--only", arguments.only, *chosen)
    print(f"what was missing before: {seconds:.1f} s")
    seconds, told, code = harness(*arguments.rest, "run", "--only", arguments.only, *chosen, "--fresh")
    print(f"tier ({', '.join(CHECKS)}): {seconds:.1f} s, goal {TIER_GOAL_S:.0f} s, exit code {code}")
    within = seconds < TIER_GOAL_S
    seconds, told, code = harness(
        *arguments.rest, "numerics", "battery", "--target", arguments.target, "--device", "sim", "--json"
    )
    if not told.startswith("{"):
        print(told)
        return code or 1
    parts = json.loads(told)["seconds"]
    print(f"battery command: {seconds:.1f} s, exit code {code}; of it {parts}")
    alone = parts["battery"] + parts["reference"]
    print(f"battery alone (evaluation and reference): {alone:.1f} s, goal {BATTERY_GOAL_S:.0f} s")
    return 0 if within and alone < BATTERY_GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())

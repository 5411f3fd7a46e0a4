"""Triage over healthy and over failing logs: bytes per second, peak memory, wrong matches.

python benchmarks/triage/triage_benchmark.py --megabytes 300
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from healthy import healthy_log

from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.triage.diagnosis import triage_file, triage_text

GOAL_MB_PER_S = 200


def timed(path: Path) -> tuple[float, int]:
    started = time.perf_counter()
    found = triage_file(path)
    seconds = time.perf_counter() - started
    return path.stat().st_size / 1e6 / seconds, sum(one.signature is not None for one in found.findings)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    catalogue = shipped_catalogue()
    right = sum(
        [one.id for one in triage_text(signature.example.encode()).findings] == [signature.id]
        for signature in catalogue.signatures
    )
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder) / "healthy.log"
        block = healthy_log(20_000_000)
        with healthy.open("wb") as stream:
            for _ in range(max(1, options.megabytes // 20)):
                stream.write(block)
        speed, wrong = max(timed(healthy) for _ in range(3))
        failing = Path(folder) / "failing.log"
        errors = b"".join(f"{signature.example}\n".encode() for signature in catalogue.signatures)
        with failing.open("wb") as stream:
            for _ in range(options.megabytes * 10):
                stream.write(block[:100_000] + errors)
        dense, _ = timed(failing)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    json.dump(
        {
            "schema": {"name": "npu-matrix.benchmark.triage", "version": 1},
            "fixtures": f"{right}/{len(catalogue.signatures)}",
            "healthy_megabytes": options.megabytes,
            "healthy_mb_per_s": round(speed),
            "healthy_wrong_matches": wrong,
            "errors_everywhere_mb_per_s": round(dense),
            "peak_mb": round(peak),
            "goal_mb_per_s": GOAL_MB_PER_S,
        },
        sys.stdout,
        indent=2,
    )
    print()
    return int(wrong > 0 or right < len(catalogue.signatures) or speed < GOAL_MB_PER_S)


if __name__ == "__main__":
    sys.exit(main())

"""Which objective every verl release computes: its own functions, from its wheel, judged on a CPU.

    python benchmarks/numerics/releases.py --python CELL/bin/python [--python OTHER/bin/python]

The wheels are unpacked, nothing of them is replaced: they run on the packages of an environment in which some
verl can be imported, the first of those given in which this one can.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.numerics.loss.candidate import load_facts, load_results
from harness.numerics.loss.cases.loss_battery import default_battery
from harness.numerics.loss.cases.loss_case import LossCase, save_cases
from harness.numerics.loss.loss_compare import compare
from harness.numerics.loss.loss_measurements import LossStatus
from harness.numerics.loss.loss_reference_program import references
from harness.numerics.loss.release_objectives import release_objective

RELEASES = ("0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
ROOT = Path(__file__).resolve().parents[2]


def fetch(version: str, folder: Path) -> Path:
    """The unpacked wheel of a release, from the package index unless its wheel is in `folder` already."""
    wheels = sorted(folder.glob(f"verl-{version}-*.whl"))
    if not wheels:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, f"verl=={version}", "--dest", str(folder)], check=True)
        wheels = sorted(folder.glob(f"verl-{version}-*.whl"))
    place = folder / f"verl-{version}"
    if not place.is_dir():
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(place)
    return place


def evaluate(tree: Path, pythons: Sequence[Path], battery: Path, out: Path) -> tuple[Path | None, str]:
    """The first interpreter that could evaluate the release, or None and the last one's last words."""
    words = ""
    for python in pythons:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)]),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": "1",
        }
        program = [str(python), "-W", "ignore", "-m", "harness.numerics.loss.loss_program"]
        done = subprocess.run(
            [*program, "--cases", str(battery), "--out", str(out), "--device", "cpu", "--faults"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return python, ""
        words = (done.stderr.strip().splitlines() or [""])[-1]
    return None, words


def judged(version: str, cases: Sequence[LossCase], results_file: Path) -> dict[str, Any]:
    """Counts, findings and failures of one release."""
    facts = load_facts(results_file)
    if facts.verl != version:
        raise RuntimeError(f"verl {facts.verl} was imported instead of {version}")
    profile = release_objective(version)
    found = compare(cases, load_results(results_file), references(cases, profile), profile)
    failed = [case.name for case in found.cases if case.status is LossStatus.FAIL and case.is_required]
    return {
        "counts": dict(found.counts),
        "failed": failed,
        "findings": {finding.id: len(finding.cases) for finding in found.findings},
        "worst_budget": found.worst_budget,
        "missed_faults": [fault.fault for fault in found.self_test if not fault.caught],
        "seconds": dict(facts.seconds),
    }


def main() -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description="which objective every verl release computes")
    parser.add_argument(
        "--python", type=Path, action="append", required=True, help="environment to run it in"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels; downloaded into a temporary one without"
    )
    parser.add_argument("--out", type=Path, help="where the figures are written as JSON")
    arguments = parser.parse_args()
    cases = default_battery()
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="npu-matrix-releases-") as scratch:
        folder = arguments.wheels or Path(scratch)
        battery = Path(scratch) / "battery.npz"
        save_cases(battery, cases)
        before: set[str] = set()
        for version in RELEASES:
            started = time.monotonic()
            results = Path(scratch) / f"{version}.npz"
            python, words = evaluate(fetch(version, folder), arguments.python, battery, results)
            if python is None:
                print(f"{version}: not evaluated: {words}")
                continue
            row = judged(version, cases, results)
            table[version] = row
            counts = ", ".join(f"{number} {status}" for status, number in sorted(row["counts"].items()))
            print(f"{version}: {counts}; worst {row['worst_budget']:.0%}; {time.monotonic() - started:.0f} s")
            print(f"  missed faults: {row['missed_faults'] or 'none'}")
            now = set(row["findings"])
            for kind, names in (("  from here on", now - before), ("  no longer", before - now)):
                for name in sorted(names):
                    print(f"{kind}: {name} ({row['findings'].get(name, 0)} cases)")
            before = now
            for name in row["failed"]:
                print(f"  wrong: {name}")
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0 if len(table) == len(RELEASES) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Precision and recall of checks `api` and `npu-ops`: `python -m benchmarks.compat [--python PYTHON ...]`.

Each `--python` is an interpreter with transformers installed: every name the verl releases import from it is
then imported for real, and the checker's answer held against that. Nothing else here needs an environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.cli.lint import run_command
from harness.compat.api import check_consumer
from harness.compat.border import BorderFinding
from harness.compat.npu_ops import misuses, pinned_torch_npu, read_torch_npu, read_uses, silent_changes
from harness.compat.published import fetch_sources
from harness.compat.reach import references
from harness.compat.surface import Standing, Surface

VERL = ("0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
# Runs inside an environment: which of the dotted names (JSON on stdin) can be imported?
ORACLE = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
import transformers
answers = {}
for name in json.load(sys.stdin):
    module, _, attribute = name.rpartition(".")
    try:
        found = importlib.import_module(module)
        answers[name] = hasattr(found, attribute) or bool(importlib.import_module(name))
    except ImportError as error:
        # Of another package that is not installed here: no answer.
        lacking = getattr(error, "name", None) or ""
        if not lacking or lacking.partition(".")[0] == "transformers":
            answers[name] = False
    except Exception:
        pass
print(json.dumps([transformers.__version__, answers]))
"""


def sources(cache: Path, spec: str) -> Path:
    """The sources of `name==version`."""
    name, _, version = spec.partition("==")
    return fetch_sources(name, version, cache=cache, command=run_command)


def pairs(
    cache: Path, rows: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], int, list[BorderFinding], float]]:
    """Each pair with its number of uses, its findings and the seconds that took, packages at hand."""
    for row in rows:
        consumer = Surface(sources(cache, row["consumer"]))
        providers = {spec.replace("==", " "): Surface(sources(cache, spec)) for spec in row["providers"]}
        started = time.monotonic()
        uses, found = check_consumer(consumer, providers)
        yield row, uses, list(found), time.monotonic() - started


def border_table(cache: Path, rows: list[dict[str, Any]]) -> None:
    """Findings of each pair."""
    for row, uses, found, seconds in pairs(cache, rows):
        breaking = [f for f in found if f.breaks]
        names = {f.name for f in breaking}
        wanted = [name for name in row.get("finds", ()) if name not in names]
        at_import = sum(f.at_import for f in breaking)
        said = f"MISSED {wanted}" if wanted else ""
        print(
            f"{row['consumer']:<22} {' '.join(row['providers']):<58} {uses:>5} uses  "
            f"{len(breaking):>3} unguarded ({at_import} at import)  "
            f"{sum(bool(f.guarded) for f in found):>3} guarded  {seconds:5.1f} s  {said}"
        )
        for finding in breaking if "finds" not in row else ():
            print(f"    {finding.file}:{finding.line}: {finding.text}")


def operator_table(cache: Path, rows: list[dict[str, Any]]) -> None:
    """Wrong uses of torch_npu, those that a package has with its own torch_npu apart."""
    for row in rows:
        file = sources(cache, row["consumer"])
        torch_npu = read_torch_npu(row["torch_npu"], sources(cache, f"torch-npu=={row['torch_npu']}"))
        started = time.monotonic()
        uses = read_uses(file)
        wrong = [use for use in misuses("x", uses, torch_npu) if not use.guarded]
        pinned = pinned_torch_npu(file)
        names = {use.name for use in wrong}
        if pinned and pinned != row["torch_npu"]:
            made_for = read_torch_npu(pinned, sources(cache, f"torch-npu=={pinned}"))
            names |= {change.name for change in silent_changes("x", uses, made_for, torch_npu)}
        missed = [name for name in row.get("finds", ()) if name not in names]
        print(
            f"{row['consumer']:<22} torch-npu=={row['torch_npu']:<14} "
            f"{len(uses.calls) + len(uses.names):>5} uses  {len(wrong):>3} wrong  "
            f"{time.monotonic() - started:5.1f} s  {f'MISSED {missed}' if missed else ''}"
        )
        for use in wrong if row["released"] else ():
            print(f"    {use}")


def oracle_table(cache: Path, python: str) -> None:
    """The checker's answer on imported names against a real import of each."""
    wanted: dict[str, set[str]] = {}
    for version in VERL:
        uses = references(Surface(sources(cache, f"verl=={version}")), {"transformers"})
        wanted[version] = {use.target for use in uses if use.kind == "import" and "." in use.target}
    every = sorted(set().union(*wanted.values()))
    done = subprocess.run(
        [python, "-c", ORACLE],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    installed, answers = json.loads(done.stdout.splitlines()[-1])
    surface = Surface(sources(cache, f"transformers=={installed}"))
    counts: Counter[str] = Counter()
    for name, there in answers.items():
        standing = surface.find(name).standing
        if standing is Standing.UNKNOWN:
            counts["no answer, there" if there else "no answer, missing"] += 1
        else:
            said = standing is Standing.FOUND
            counts["right" if said == there else "false alarm" if there else "missed"] += 1
            counts["really missing"] += not there
            if said != there:
                print(f"    {name}: said {standing.value}")
    print(f"transformers {installed}: {len(answers)} names imported for real: {dict(sorted(counts.items()))}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/npu-matrix")
    parser.add_argument("--python", action="append", default=[], help="an interpreter with transformers")
    chosen = parser.parse_args()
    data = yaml.safe_load(Path(__file__).with_name("pairs.yaml").read_text("utf-8"))
    for title in ("released", "wrong"):
        print(f"\n{title} together: names across borders")
        border_table(chosen.cache, data[title])
    print("\noperators of torch_npu")
    operator_table(chosen.cache, data["operators"])
    for python in chosen.python:
        print(f"\nimported names, by {python}")
        oracle_table(chosen.cache, python)


if __name__ == "__main__":
    main()

"""Precision and recall of checks `api` and `npu-ops`: `python -m benchmarks.compat [--python PYTHON ...]`.

Each `--python` is an interpreter with transformers installed: every name the verl releases import from it is
then imported for real, and the checker's answer held against that. Nothing else here needs an environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.compat.known import known_table
from harness.compat.api.consumers import CONSUMERS
from harness.compat.operators.operator_analysis import (
    find_changed_defaults,
    find_misuses,
    read_torch_npu_api,
    read_torch_npu_uses,
)
from harness.compat.operators.operator_check import pinned_torch_npu
from harness.compat.surface.api_surface import ApiSurface, Presence
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_pairs import ConsumerAnalysis, Package
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import UseFinding, check_uses
from harness.sources.packages.release_sources import fetch_sources
from harness.workspace.downloads import run_quietly

VERL = ("0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
# Runs inside an environment: which of the dotted names (JSON on stdin) can be imported?
ORACLE = """
import importlib, json, os, sys, warnings
# A cell's torch would load torch_npu, which wants a device.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
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
    return fetch_sources(name, version, cache=cache, command=run_quietly)


def package(cache: Path, spec: str) -> Package:
    """`name==version` with its sources."""
    name, _, version = spec.partition("==")
    return Package(name=name, version=version, file=sources(cache, spec))


def made_for(cache: Path, consumer: Package, provider: Package) -> Package | None:
    """The provider in the version the consumer was published for, where that is another one."""
    known = next(one for one in CONSUMERS if one.package == consumer.name).made_for(consumer.version)
    version = known.get(provider.name, provider.version)
    return package(cache, f"{provider.name}=={version}") if version != provider.version else None


def border_table(cache: Path, rows: list[dict[str, Any]], judged: Mapping[str, str]) -> Counter[str]:
    """Findings of each pair; of released pairs also how each is known to be true. Returns the sums."""
    sums: Counter[str] = Counter()
    for row in rows:
        consumer = package(cache, row["consumer"])
        findings: list[UseFinding] = []
        uses, started = 0, time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            borders = ConsumerAnalysis(consumer, AnalysisCache(folder=Path(folder), code="benchmark"))
            for spec in row["providers"]:
                provider = package(cache, spec)
                found = borders.check_provider(provider, made_for(cache, consumer, provider))
                uses += found.uses
                findings += found.findings
        breaking = [one for one in findings if one.breaks]
        wanted = [name for name in row.get("finds", ()) if name not in {one.name for one in breaking}]
        sums += Counter(pairs=1, uses=uses, unguarded=len(breaking), missed=len(wanted))
        sums += Counter(known=len(row.get("finds", ())))
        print(
            f"{row['consumer']:<22} {' '.join(row['providers'])}: {uses} uses, {len(breaking)} unguarded "
            f"({sum(one.at_import for one in breaking)} at import), "
            f"{sum(bool(one.guarded) for one in findings)} guarded, {time.monotonic() - started:.1f} s"
            + (f", MISSED {wanted}" if wanted else "")
        )
        for one in breaking if "finds" not in row else ():
            why = judged.get(f"{row['consumer']} {one.file}:{one.line}", "")
            sums += Counter(true=bool(why), unjudged=not why)
            print(f"    {one.kind} {one.file}:{one.line}: {one.text}\n        {why or 'NOT JUDGED'}")
    return sums


def seeded_table(cache: Path, rows: list[dict[str, Any]], each: int) -> Counter[str]:
    """Recall on seeded faults: names that a consumer uses are renamed in all of the provider's text."""
    sums: Counter[str] = Counter()
    for row in rows:
        consumer = package(cache, row["consumer"])
        for spec in row["providers"]:
            provider = package(cache, spec)
            uses = [
                use
                for use in find_uses(consumer.surface, {provider.top}).uses
                if not use.guarded
                and use.kind in ("import", "attribute", "call", "super")
                and "." in use.target
            ]
            there = sorted({use.target for use in uses if _is_defined(provider.surface, use.target)})
            # The digest draws: the same names on every machine.
            chosen = sorted(there, key=lambda name: hashlib.sha256(name.encode()).digest())[:each]
            reported = [_reports(consumer, provider, name, uses) for name in chosen]
            found, faults = reported.count(True), len(chosen) - reported.count(None)
            sums += Counter(seeded=faults, found=found)
            print(f"{row['consumer']:<22} {spec:<24} {found} of {faults} renamed names reported")
    return sums


def _is_defined(surface: ApiSurface, name: str) -> bool:
    answer = surface.find(name)
    return answer.presence is Presence.FOUND and answer.definition is not None


def _reports(consumer: Package, provider: Package, name: str, uses: Sequence[Use]) -> bool | None:
    """Whether the fault is found; None when there is none: a base class of Python's own has the name."""
    word = re.compile(rb"\b%s\b" % re.escape(name.rpartition(".")[2].encode()))
    texts = {file: provider.surface.source(module) for module, file in provider.surface.files()}
    changes = {file: word.sub(b"renamed_away", text) for file, text in texts.items() if word.search(text)}
    surface = ApiSurface(provider.file, changes)
    if surface.find(name).presence is Presence.FOUND:
        return None
    concerned = [use for use in uses if use.target == name]
    found = check_uses(concerned, {provider.top: (provider.label, surface)}, consumer.surface)
    return any(finding.breaks for finding in found)


def operator_table(cache: Path, rows: list[dict[str, Any]]) -> None:
    """Wrong uses of torch_npu, those that a package has with its own torch_npu apart."""
    for row in rows:
        file = sources(cache, row["consumer"])
        torch_npu = read_torch_npu_api(row["torch_npu"], sources(cache, f"torch-npu=={row['torch_npu']}"))
        started = time.monotonic()
        consumer = Package(name=row["consumer"].partition("==")[0], version="", file=file)
        with tempfile.TemporaryDirectory() as folder:
            uses = read_torch_npu_uses(consumer, AnalysisCache(folder=Path(folder), code="benchmark"))
        wrong = [use for use in find_misuses("x", uses, torch_npu) if not use.guarded]
        pinned = pinned_torch_npu(file)
        names = {use.name for use in wrong}
        if pinned and pinned != row["torch_npu"]:
            made_for = read_torch_npu_api(pinned, sources(cache, f"torch-npu=={pinned}"))
            names |= {change.name for change in find_changed_defaults("x", uses, made_for, torch_npu)}
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
        uses = find_uses(ApiSurface(sources(cache, f"verl=={version}")), {"transformers"}).uses
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
    surface = ApiSurface(sources(cache, f"transformers=={installed}"))
    counts: Counter[str] = Counter()
    for name, there in answers.items():
        presence = surface.find(name).presence
        if presence is Presence.UNKNOWN:
            counts["no answer, there" if there else "no answer, missing"] += 1
        else:
            said = presence is Presence.FOUND
            counts["right" if said == there else "false alarm" if there else "missed"] += 1
            counts["really missing"] += not there
            if said != there:
                print(f"    {name}: said {presence.value}")
    print(f"transformers {installed}: {len(answers)} names imported for real: {dict(sorted(counts.items()))}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/npu-matrix")
    parser.add_argument("--known", action="store_true", help="only what is known of real releases")
    parser.add_argument("--seeded", type=int, default=6, help="names to rename for each pair")
    parser.add_argument("--python", action="append", default=[], help="an interpreter with transformers")
    chosen = parser.parse_args()
    print("known of real releases")
    missed = known_table(chosen.cache)
    if chosen.known:
        raise SystemExit(min(missed, 1))
    data = yaml.safe_load(Path(__file__).with_name("pairs.yaml").read_text("utf-8"))
    print("\nreleased together: names across borders")
    good = border_table(chosen.cache, data["released"], data["judged"])
    share = f"{good['true']} of {good['unguarded']}" if good["unguarded"] else "none of none"
    print(f"precision: {share} unguarded findings judged true, {good['uses']} uses in {good['pairs']} pairs")
    print("\nknown not to go together: names across borders")
    bad = border_table(chosen.cache, data["wrong"], {})
    print(f"recall: {bad['known'] - bad['missed']} of {bad['known']} known uses that break are reported")
    print("\nnames renamed in the provider")
    seeded = seeded_table(chosen.cache, data["released"], chosen.seeded)
    print(f"recall: {seeded['found']} of {seeded['seeded']} renamed names are reported")
    print("\noperators of torch_npu")
    operator_table(chosen.cache, data["operators"])
    for python in chosen.python:
        print(f"\nimported names, by {python}")
        oracle_table(chosen.cache, python)


if __name__ == "__main__":
    main()

"""Names that packages use from each other: precision and recall of the checks `api` and `npu-ops`.

`pairs.yaml` is the input. Pairs that were released together should have no finding that is not known to be
true; each finding is judged in `pairs.yaml` by reading the provider's sources. Pairs that are not compatible
have uses that must be found. Further faults are seeded: a name that the consumer uses unguarded is renamed in
all of the provider's text.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import Figure, user_cache
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
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_finding import UseFinding
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly

SEEDED = 6


def sources(cache: Path, spec: str) -> Path:
    """The sources of `name==version`."""
    name, _, version = spec.partition("==")
    return ReleaseFetcher(cache=cache, command=run_quietly).sources(name, version).file


def package(cache: Path, spec: str) -> Package:
    """`name==version` with its sources."""
    name, _, version = spec.partition("==")
    return Package(name=name, version=version, file=sources(cache, spec))


def made_for(cache: Path, consumer: Package, provider: Package) -> Package | None:
    """The version of the provider for which the consumer was published, or None if it is the same."""
    known = next(one for one in CONSUMERS if one.package == consumer.name).made_for(consumer.version)
    version = known.get(provider.name, provider.version)
    return package(cache, f"{provider.name}=={version}") if version != provider.version else None


def _is_defined(surface: ApiSurface, name: str) -> bool:
    answer = surface.find(name)
    return answer.presence is Presence.FOUND and answer.definition is not None


def _reports(consumer: Package, provider: Package, name: str, uses: Sequence[Use]) -> bool | None:
    """Whether the fault is reported; None if it is no fault, because a base class of Python has the name."""
    word = re.compile(rb"\b%s\b" % re.escape(name.rpartition(".")[2].encode()))
    texts = {file: provider.surface.source(module) for module, file in provider.surface.files()}
    changes = {file: word.sub(b"renamed_away", text) for file, text in texts.items() if word.search(text)}
    surface = ApiSurface(provider.file, changes)
    if surface.find(name).presence is Presence.FOUND:
        return None
    concerned = [use for use in uses if use.target == name]
    found = check_uses(concerned, {provider.top: (provider.label, surface)}, consumer.surface)
    return any(finding.breaks for finding in found)


def borders(cache: Path, row: Mapping[str, Any]) -> tuple[int, list[UseFinding]]:
    """Uses of a pair's names, and the unguarded findings."""
    consumer = package(cache, row["consumer"])
    findings: list[UseFinding] = []
    uses = 0
    with tempfile.TemporaryDirectory() as folder:
        analysis = ConsumerAnalysis(consumer, AnalysisCache(folder=Path(folder), code="benchmark"))
        for spec in row["providers"]:
            provider = package(cache, spec)
            found = analysis.check_provider(provider, made_for(cache, consumer, provider))
            uses += found.uses
            findings += found.findings
    return uses, [one for one in findings if one.breaks]


def seeded(cache: Path, row: Mapping[str, Any]) -> tuple[int, int]:
    """Names renamed in the providers of a pair, and how many of them are reported."""
    consumer = package(cache, row["consumer"])
    reported: list[bool | None] = []
    for spec in row["providers"]:
        provider = package(cache, spec)
        uses = [
            use
            for use in find_uses(consumer.surface, {provider.top}).uses
            if not use.guarded and use.kind in ("import", "attribute", "call", "super") and "." in use.target
        ]
        there = sorted({use.target for use in uses if _is_defined(provider.surface, use.target)})
        # Sorted by digest: the same names on every machine.
        names = sorted(there, key=lambda name: hashlib.sha256(name.encode()).digest())[:SEEDED]
        reported += [_reports(consumer, provider, name, uses) for name in names]
    return len(reported) - reported.count(None), reported.count(True)


def operator_names(cache: Path, row: Mapping[str, Any]) -> set[str]:
    """Operators that a release uses wrongly with a torch_npu, or whose defaults changed in it."""
    file = sources(cache, row["consumer"])
    torch_npu = read_torch_npu_api(row["torch_npu"], sources(cache, f"torch-npu=={row['torch_npu']}"))
    consumer = Package(name=row["consumer"].partition("==")[0], version="", file=file)
    with tempfile.TemporaryDirectory() as folder:
        uses = read_torch_npu_uses(consumer, AnalysisCache(folder=Path(folder), code="benchmark"))
    names = {use.name for use in find_misuses("x", uses, torch_npu) if not use.guarded}
    pinned = pinned_torch_npu(file)
    if pinned and pinned != row["torch_npu"]:
        made_for_api = read_torch_npu_api(pinned, sources(cache, f"torch-npu=={pinned}"))
        names |= {change.name for change in find_changed_defaults("x", uses, made_for_api, torch_npu)}
    return names


def figures() -> Iterator[Figure]:
    cache = user_cache()
    data = yaml.safe_load(Path(__file__).with_name("pairs.yaml").read_text("utf-8"))
    uses, unjudged, findings = 0, 0, 0
    for row in data["released"]:
        number, breaking = borders(cache, row)
        uses += number
        findings += len(breaking)
        unjudged += sum(f"{row['consumer']} {one.file}:{one.line}" not in data["judged"] for one in breaking)
    yield Figure(
        claim=f"findings not known to be true, of {findings} in {uses} uses of pairs released together",
        measured=unjudged,
        limit=0,
    )
    known = [(row, set(row.get("finds", ()))) for row in data["wrong"]]
    missed = sum(len(names - {one.name for one in borders(cache, row)[1]}) for row, names in known)
    yield Figure(
        claim=f"known breaking uses missed, of {sum(len(names) for _row, names in known)}",
        measured=missed,
        limit=0,
    )
    wrong = [(row, set(row.get("finds", ()))) for row in data["operators"]]
    missed = sum(len(names - operator_names(cache, row)) for row, names in wrong if names)
    yield Figure(
        claim=f"known wrong operators missed, of {sum(len(names) for _row, names in wrong)}",
        measured=missed,
        limit=0,
    )
    counts = [seeded(cache, row) for row in data["released"]]
    faults, found = (sum(count) for count in zip(*counts, strict=True))
    yield Figure(
        claim=f"renamed names reported, of {faults}",
        measured=100 * found / faults,
        unit="%",
        limit=70,
        is_lower_limit=True,
    )

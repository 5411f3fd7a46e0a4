"""Find the names that the consumers use and that the pinned versions of their providers do not have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.compat.api.api_measurements import ApiFinding, ApiMeasured, CheckedPair
from harness.compat.api.consumers import CONSUMERS
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.analysis_process import serve
from harness.compat.uses.package_pairs import ConsumerAnalysis, Package


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A package and the zip with its sources. `changes`: file -> its text after our patches."""

    name: str
    version: str
    file: str
    changes: Mapping[str, str] = field(default_factory=dict)

    def package(self) -> Package:
        """The package to analyse."""
        return Package(name=self.name, version=self.version, file=Path(self.file), changes=self.changes)


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What to analyse.

    cache, code: of the `AnalysisCache`. patches: file -> ids of our patches that change it.
    made_for: consumer -> the providers it was published for, where the cell has another version of them.
    not_read, misfits: as in `ApiMeasured`.
    """

    cache: str
    code: str
    packages: tuple[PackageFile, ...]
    made_for: Mapping[str, tuple[PackageFile, ...]] = field(default_factory=dict)
    patches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()


def examine(request: ApiRequest) -> ApiMeasured:
    """Check each consumer in the request against each of its providers."""
    cache = AnalysisCache(folder=Path(request.cache) / "pairs", code=request.code)
    packages = {item.name: item.package() for item in request.packages}
    pairs: list[CheckedPair] = []
    findings: list[ApiFinding] = []
    uses: Counter[str] = Counter()
    unparsed: set[str] = set()
    for consumer in CONSUMERS:
        package = packages.get(consumer.package)
        providers = [packages[name] for name in consumer.providers if name in packages]
        if package is None or not providers:
            continue
        analysis = ConsumerAnalysis(package, cache)
        imported = analysis.imported_modules(consumer.roots)
        made_for = {item.name: item.package() for item in request.made_for.get(package.name, ())}
        for provider in providers:
            result = analysis.check_provider(provider, made_for.get(provider.name))
            pairs.append(CheckedPair(package.name, package.version, provider.name, provider.version))
            uses[package.name] += result.uses
            unparsed.update(result.unparsed)
            findings += (
                ApiFinding(
                    kind=found.kind,
                    file=found.file,
                    line=found.line,
                    provider=found.provider,
                    name=found.name,
                    text=found.text,
                    guarded=found.guarded,
                    at_import=found.at_import,
                    breaks=found.breaks,
                    consumer=package.name,
                    always=found.breaks and found.at_import and _module(found.file) in imported,
                    patches=request.patches.get(found.file, ()),
                )
                for found in result.findings
            )
    return ApiMeasured(
        pairs=tuple(pairs),
        findings=tuple(findings),
        uses=dict(uses),
        unparsed=tuple(sorted(unparsed)),
        not_read=request.not_read,
        misfits=request.misfits,
    )


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


if __name__ == "__main__":
    sys.exit(serve(ApiRequest, examine, *sys.argv[1:]))

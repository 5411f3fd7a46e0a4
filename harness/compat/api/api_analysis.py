"""Find the names that the consumers use and that the pinned versions of their providers do not have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.compat.api.api_measurements import SHARED, ApiFinding, ApiMeasured, CheckedPair
from harness.compat.api.consumers import CONSUMERS, Consumer
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.analysis_process import serve
from harness.compat.uses.package_pairs import ConsumerAnalysis, Package, searched_names
from harness.compat.uses.use_finding import UseFinding
from harness.sources.packages.release_archive import ReleaseArchive


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What to analyse.

    cache: the cache folder of all checks. code: as in `AnalysisCache`. python: version of the cell's Python.
    made_for: consumer -> the providers it was published for, where the cell has another version of them.
    consumers: the packages whose uses are checked. added_by: file -> line -> id of our patch that adds it.
    not_read, misfits, archives_read, absent_commits: as in `ApiMeasured`.
    """

    cache: Path
    code: str
    packages: tuple[Package, ...]
    python: str = ""
    consumers: tuple[Consumer, ...] = CONSUMERS
    made_for: Mapping[str, tuple[Package, ...]] = field(default_factory=dict)
    added_by: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    archives_read: tuple[ReleaseArchive, ...] = ()
    absent_commits: tuple[str, ...] = ()


def examine(request: ApiRequest) -> ApiMeasured:
    """Check each consumer in the request against each of its providers, and what our patches break in it."""
    cache = AnalysisCache(folder=request.cache / "pairs", code=request.code)
    packages = {package.name: package for package in request.packages}
    pairs: list[CheckedPair] = []
    findings: list[ApiFinding] = []
    uses: Counter[str] = Counter()
    unparsed: set[str] = set()
    for consumer in request.consumers:
        package = packages.get(consumer.package)
        providers = [packages[name] for name in consumer.providers if name in packages]
        if package is None or not (providers or package.changes):
            continue
        analysis = ConsumerAnalysis(package, cache, searched_names(package, providers))
        imported = analysis.imported_modules(consumer.roots)
        made_for = {provider.name: provider for provider in request.made_for.get(package.name, ())}
        results = [
            (provider, analysis.check_provider(provider, made_for.get(provider.name)))
            for provider in providers
        ]
        if package.changes:
            results.append((package, analysis.check_own_names()))
        for provider, result in results:
            pairs.append(CheckedPair(package.name, package.version, provider.name, provider.version))
            uses[package.name] += result.uses
            unparsed.update(result.unparsed)
            for finding in (one for one in result.findings if not _is_elsewhere(one, providers)):
                if finding.kind == "syntax" and is_newer_python(request.python):
                    unparsed.add(finding.file)
                    continue
                module = _module(finding.file)
                breaks_import = finding.breaks and finding.at_import
                always = breaks_import and module in imported
                counted = breaks_import and not always and provider.name in consumer.required
                findings.append(
                    ApiFinding(
                        **vars(finding),
                        consumer=package.name,
                        always=always,
                        patch=_adding_patch(finding, package, request),
                        importers=len(analysis.importing_modules(module, SHARED)) if counted else 0,
                    )
                )
    return ApiMeasured(
        pairs=tuple(pairs),
        findings=tuple(findings),
        uses=dict(uses),
        unparsed=tuple(sorted(unparsed)),
        not_read=request.not_read,
        misfits=request.misfits,
        archives_read=request.archives_read,
        absent_commits=request.absent_commits,
    )


def _is_elsewhere(finding: UseFinding, providers: Sequence[Package]) -> bool:
    """Whether another package can have the name: several share the folder `megatron`."""
    top, _dot, rest = finding.name.partition(".")
    module = f"{top}.{rest.partition('.')[0]}"
    return any(
        one.top == top and top not in dict(one.surface.files()) and not one.surface.has_module(module)
        for one in providers
    )


def _adding_patch(finding: UseFinding, package: Package, request: ApiRequest) -> str:
    lines = (package.changes.get(finding.file) or "").splitlines()[finding.line - 1 : finding.line]
    return request.added_by.get(finding.file, {}).get(lines[0], "") if lines else ""


def is_newer_python(version: str) -> bool:
    """Whether the cell's Python is newer than this one, and so may have other syntax."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return numbers > sys.version_info[:2]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


if __name__ == "__main__":
    sys.exit(serve(ApiRequest, examine, *sys.argv[1:]))

"""Check the uses of one package against others, in any releases or commits: without a cell or a lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement

from harness.compat.api.api_analysis import ApiRequest, examine
from harness.compat.api.api_measurements import ApiMeasured, CheckedPair
from harness.compat.api.consumers import CONSUMERS, Consumer
from harness.compat.api.stated_consumers import entry_modules
from harness.compat.operators.operator_analysis import (
    find_misuses,
    read_torch_npu_api,
    read_torch_npu_uses,
)
from harness.compat.operators.operator_measurements import TorchNpuMisuse
from harness.compat.uses.analysis_cache import AnalysisCache, analysis_code
from harness.compat.uses.package_pairs import Package, searched_names
from harness.errors import InputError
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.release_sources import exact_version, release_requirements

TORCH_NPU = "torch-npu"


@dataclass(frozen=True, kw_only=True)
class CheckedReleases:
    """The names that one package uses of others, and its NPU operators if torch-npu is one of them.

    unused: the providers of which no use was found, so that nothing is known of them.
    """

    names: ApiMeasured
    unused: tuple[str, ...] = ()
    operators: tuple[TorchNpuMisuse, ...] = ()

    @property
    def uses(self) -> int:
        """How many uses were compared."""
        return sum(self.names.uses.values())

    @property
    def breaks(self) -> bool:
        """Whether a use without a guard breaks, at import or when it is called."""
        return any(one.breaks for one in self.names.findings) or any(
            not one.guarded for one in self.operators
        )


def is_release(text: str) -> bool:
    """Whether a text names a release (`vllm==0.9.1`) or a commit (`verl@796871d7`), and so no cell."""
    return "==" in text or "@" in text


def read_package(spec: str, source: ReleaseFetcher) -> Package:
    """The sources of `name==version` or `name@commit`; InputError if they are not available."""
    name, mark, version = spec.partition("==")
    name, _at, commit = (name, "", "") if mark else spec.partition("@")
    if not (name and (version or commit)):
        raise InputError(
            f"{spec!r} names neither a release nor a commit",
            fix="write it like vllm==0.9.1, or verl@796871d7 for a commit of a mirror",
        )
    package = normal_name(name)
    sources = source.find(package, version, commit)
    if sources is None and commit:
        raise InputError(
            f"no mirror has the commit {commit} of {package}",
            fix="fetch a clone with `npu-matrix mirrors update`, or name one in NPU_MATRIX_MIRRORS",
        )
    if sources is None:
        source.require(package, version)
        raise InputError(f"the sources of {package} {version} cannot be read", fix="choose another version")
    return Package(name=package, version=version or commit[:12], file=sources.file)


def check_releases(
    consumer: Package, providers: Sequence[Package], source: ReleaseFetcher
) -> CheckedReleases:
    """Check what the consumer uses of each provider."""
    known = next((one for one in CONSUMERS if one.package == consumer.name), None)
    others = tuple(one for one in providers if one.name != TORCH_NPU)
    asked = Consumer(
        package=consumer.name,
        providers=tuple(one.name for one in others),
        roots=known.roots if known else entry_modules(consumer, [one.top for one in others]),
    )
    request = ApiRequest(
        cache=source.cache,
        code=analysis_code(),
        packages=(consumer, *others),
        consumers=(asked,),
        made_for={consumer.name: tuple(_made_for(consumer, known, others, source))},
    )
    names = examine(request)
    cache = AnalysisCache(folder=source.cache / "pairs", code=request.code)
    found_uses = consumer.uses(cache, searched_names(consumer, others)).uses
    used = {use.target.partition(".")[0] for use in found_uses}
    unused = tuple(one.label for one in others if one.top not in used)
    torch_npu = next((one for one in providers if one.name == TORCH_NPU), None)
    if torch_npu is None:
        return CheckedReleases(names=names, unused=unused)
    uses = read_torch_npu_uses(consumer, cache)
    unused += () if uses.calls or uses.names else (torch_npu.label,)
    found = find_misuses(consumer.name, uses, read_torch_npu_api(torch_npu.version, torch_npu.file))
    pair = CheckedPair(consumer.name, consumer.version, torch_npu.name, torch_npu.version)
    counts = {
        **names.uses,
        consumer.name: names.uses.get(consumer.name, 0) + len(uses.calls) + len(uses.names),
    }
    names = replace(names, pairs=(*names.pairs, pair), uses=counts)
    return CheckedReleases(names=names, unused=unused, operators=found)


def _made_for(
    consumer: Package, known: Consumer | None, providers: Sequence[Package], source: ReleaseFetcher
) -> Iterator[Package]:
    """The versions of the providers that the consumer pins or was published for, if they are others."""
    requirements = map(Requirement, release_requirements(consumer.file))
    pinned = {normal_name(one.name): exact_version(one) for one in requirements}
    wanted = {**pinned, **(known.made_for(consumer.version) if known else {})}
    for provider in providers:
        version = wanted.get(provider.name)
        sources = source.find(provider.name, version) if version and version != provider.version else None
        if version and sources:
            yield Package(name=provider.name, version=version, file=sources.file)

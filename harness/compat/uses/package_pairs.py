"""Check one package's uses of another. The result for a pair of packages is cached by their content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.own_names import broken_own_names
from harness.compat.uses.package_uses import (
    NOT_SHIPPED,
    PackageUses,
    find_uses,
    imported_modules,
    importing_modules,
)
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_finding import UseFinding
from harness.compat.uses.use_visitor import uses_in_file
from harness.digest import digest_bytes, digest_file, digest_json
from harness.sources.python_syntax import parse_source

#: Top-level names of all providers. A consumer is searched for uses of all of them at once.
PROVIDERS = frozenset({"ray", "tensordict", "torch", "torch_npu", "transformers", "vllm"})


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package and the zip with its sources.

    changes: member -> its text after our patches, None if they remove it.
    """

    name: str
    version: str
    file: Path
    changes: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    @cached_property
    def top(self) -> str:
        """The top-level name to import: that of the package, or the one with most modules (megatron-core)."""
        own = self.name.replace("-", "_")
        if own in PROVIDERS or own in self.surface.packages:
            return own
        modules = Counter(module.partition(".")[0] for module, _file in self.surface.files())
        return max(
            (name for name in modules if name not in NOT_SHIPPED), key=modules.__getitem__, default=own
        )

    @cached_property
    def digest(self) -> str:
        """Digest of the sources without the changes."""
        return digest_file(self.file)

    @cached_property
    def surface(self) -> ApiSurface:
        """The API surface without the changes."""
        return ApiSurface(self.file)

    @cached_property
    def patched(self) -> ApiSurface:
        """The API surface with the changes."""
        return ApiSurface(
            self.file,
            {member: None if text is None else text.encode() for member, text in self.changes.items()},
        )

    def uses(self, cache: AnalysisCache, others: Collection[str] = ()) -> PackageUses:
        """Every use of `PROVIDERS` or of other top-level names, without the changes."""
        providers = frozenset(others) or PROVIDERS
        return cache.get(
            "uses",
            [self.digest, *sorted(providers)],
            PackageUses,
            lambda: find_uses(self.surface, providers, cache),
        )


def searched_names(consumer: Package, providers: Iterable[Package]) -> frozenset[str]:
    """The top-level names of which a consumer's uses are searched, to check it against these providers."""
    # A package that others use, such as vllm, can also be a consumer.
    return PROVIDERS.union(provider.top for provider in providers) - {consumer.top}


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """The uses of a provider that were checked.

    uses: the number of these uses. unparsed: files of the consumer that this Python version cannot parse.
    """

    uses: int
    unparsed: tuple[str, ...]
    findings: tuple[UseFinding, ...]


class ConsumerAnalysis:
    """Checks one consumer's uses of several providers: of `PROVIDERS`, or of other top-level names."""

    def __init__(self, consumer: Package, cache: AnalysisCache, others: Collection[str] = ()) -> None:
        self._consumer = consumer
        self._cache = cache
        self._providers = frozenset(others) or PROVIDERS

    @cached_property
    def _uses(self) -> PackageUses:
        return self._consumer.uses(self._cache, self._providers)

    def check_provider(self, provider: Package, made_for: Package | None) -> PairResult:
        """Check the consumer, with our patches applied, against one provider.

        made_for: the version of the provider that the consumer was published for; None when it is `provider`.
        """
        consumer = self._consumer
        inputs = [consumer.digest, provider.label, provider.digest, made_for.digest if made_for else ""]
        if self._providers != PROVIDERS:
            inputs += sorted(self._providers)
        found = self._cache.get("pair", inputs, PairResult, lambda: self._check(provider, made_for))
        if not consumer.changes:
            return found
        patched = self._cache.get(
            "patched",
            [*inputs, self._changes],
            PairResult,
            lambda: self._check_changes(provider, made_for),
        )
        unchanged = [finding for finding in found.findings if finding.file not in consumer.changes]
        before = {(finding.file, finding.kind, finding.name) for finding in found.findings}
        marked = (
            replace(finding, introduced=(finding.file, finding.kind, finding.name) not in before)
            for finding in patched.findings
        )
        return replace(found, findings=(*unchanged, *marked))

    @cached_property
    def _changes(self) -> str:
        """Digest of our patches' changes."""
        changes = sorted(self._consumer.changes.items())
        return digest_json(
            [[name, "" if text is None else digest_bytes(text.encode())] for name, text in changes]
        )

    def check_own_names(self) -> PairResult:
        """What our patches break within the package."""
        consumer = self._consumer

        def check() -> PairResult:
            found = broken_own_names(consumer.surface, consumer.patched, consumer.changes, consumer.label)
            return PairResult(uses=0, unparsed=(), findings=found)

        return self._cache.get(
            "own names", [consumer.digest, consumer.label, self._changes], PairResult, check
        )

    def _check(self, provider: Package, made_for: Package | None) -> PairResult:
        uses = [use for use in self._uses.uses if use.target.partition(".")[0] == provider.top]
        return PairResult(
            uses=len(uses),
            unparsed=self._uses.unparsed,
            findings=_findings(uses, provider, made_for, self._consumer.surface),
        )

    def _check_changes(self, provider: Package, made_for: Package | None) -> PairResult:
        """Check only the files that our patches change."""
        uses: list[Use] = []
        for module, file in self._consumer.patched.files():
            if self._consumer.changes.get(file) is not None:
                source = self._consumer.patched.source(module)
                tree = parse_source(source)
                uses += uses_in_file(tree, source, module, file, {provider.top}) if tree else ()
        return PairResult(
            uses=len(uses),
            unparsed=(),
            findings=_findings(uses, provider, made_for, self._consumer.patched),
        )

    def imported_modules(self, roots: tuple[str, ...]) -> frozenset[str]:
        """The consumer's modules that are imported with `roots`, without imports behind a guard."""
        return self._cache.get(
            "imported",
            [self._consumer.digest, *roots],
            frozenset[str],
            lambda: imported_modules(self._consumer.surface, roots, self._uses.imports),
        )

    def importing_modules(self, module: str, most: int) -> frozenset[str]:
        """As the function of this name, for the consumer without our patches."""
        return self._cache.get(
            "importing",
            [self._consumer.digest, module, str(most)],
            frozenset[str],
            lambda: importing_modules(self._consumer.surface, module, self._uses.imports, most),
        )


def _findings(
    uses: Sequence[Use], provider: Package, made_for: Package | None, consumer: ApiSurface
) -> tuple[UseFinding, ...]:
    target_version = {provider.top: made_for.surface} if made_for else {}
    return check_uses(uses, {provider.top: (provider.label, provider.surface)}, consumer, target_version)

"""What one package's uses of another come to. Answers are kept by content: a pair is looked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.syntax_walk import parse
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_uses import PackageUses, find_uses, imported_modules
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_visitor import uses_in_file
from harness.digest import digest_bytes, digest_file, digest_json

#: What one imports of the packages that uses are looked up in: a consumer is read once for all of them.
PROVIDERS = frozenset({"ray", "tensordict", "torch", "torch_npu", "transformers", "vllm"})


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package by its zip of sources; `changes`: member -> text that our patches put in its place."""

    name: str
    version: str
    file: Path
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    @property
    def top(self) -> str:
        """The name one imports."""
        return self.name.replace("-", "_")

    @cached_property
    def digest(self) -> str:
        """Digest of what the sources are, without the changes."""
        return digest_file(self.file)

    @cached_property
    def surface(self) -> ApiSurface:
        """Its modules, read when somebody asks."""
        return ApiSurface(self.file)

    @cached_property
    def patched(self) -> ApiSurface:
        """The same with the changes."""
        return ApiSurface(self.file, {member: text.encode() for member, text in self.changes.items()})

    def reach(self, answers: AnalysisCache) -> PackageUses:
        """Every use of the providers that are ever asked about, without the changes."""
        kept = answers.get(
            "reach",
            [self.digest, *sorted(PROVIDERS)],
            lambda: find_uses(self.surface, PROVIDERS, answers.get_many).to_json(),
        )
        return PackageUses.from_json(kept)


class ConsumerAnalysis:
    """One consumer's uses of several providers, each pair from the store or newly looked at."""

    def __init__(self, consumer: Package, answers: AnalysisCache) -> None:
        self._consumer = consumer
        self._answers = answers

    @cached_property
    def _reach(self) -> PackageUses:
        return self._consumer.reach(self._answers)

    def check_provider(self, provider: Package, made_for: Package | None) -> dict[str, Any]:
        """`uses`: how many; `findings`: those this provider does not bear, with our patches in place.

        `unparsed`: files of the consumer that this Python cannot parse and that were not looked at.
        """
        consumer = self._consumer
        about = [consumer.digest, provider.label, provider.digest, made_for.digest if made_for else ""]
        found = self._answers.get("pair", about, lambda: self._look(provider, made_for))
        if not consumer.changes:
            return dict(found)
        changed = [[member, digest_bytes(text.encode())] for member, text in sorted(consumer.changes.items())]
        ours = self._answers.get(
            "patched", [*about, digest_json(changed)], lambda: self._look_at_changes(provider, made_for)
        )
        kept = [finding for finding in found["findings"] if finding["file"] not in consumer.changes]
        return {**found, "findings": kept + ours}

    def _look(self, provider: Package, made_for: Package | None) -> dict[str, Any]:
        uses = [use for use in self._reach.uses if use.target.partition(".")[0] == provider.top]
        return {
            "uses": len(uses),
            "unparsed": list(self._reach.unparsed),
            "findings": self._findings(uses, provider, made_for, self._consumer.surface),
        }

    def _look_at_changes(self, provider: Package, made_for: Package | None) -> list[dict[str, Any]]:
        uses: list[Use] = []
        for module, file in self._consumer.patched.files():
            if file in self._consumer.changes:
                source = self._consumer.patched.source(module)
                tree = parse(source)
                uses += uses_in_file(tree, source, module, file, {provider.top}) if tree else ()
        return self._findings(uses, provider, made_for, self._consumer.patched)

    @staticmethod
    def _findings(
        uses: Sequence[Use], provider: Package, made_for: Package | None, consumer: ApiSurface
    ) -> list[dict[str, Any]]:
        then = {provider.top: made_for.surface} if made_for else {}
        found = check_uses(uses, {provider.top: (provider.label, provider.surface)}, consumer, then)
        return [finding.to_json() for finding in found]

    def imported(self, roots: tuple[str, ...]) -> frozenset[str]:
        """The consumer's modules that importing the roots imports, unless a guard stands before it."""
        about = [self._consumer.digest, *roots]
        found = self._answers.get(
            "imported",
            about,
            lambda: sorted(imported_modules(self._consumer.surface, roots, self._reach.imports)),
        )
        return frozenset(found)

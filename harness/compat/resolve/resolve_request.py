"""The input of a resolution: a cell's pins and target platform as the files and arguments that uv reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from harness.compat.resolve.replaced_requirements import (
    ReleaseMetadata,
    contradicting_requirements,
    replaced_requirement,
    target_environment,
)
from harness.errors import InputError
from harness.matrix.model.environment_facets import PinnedOverride, PinsFacet
from harness.sources.git.mirrors import find_source, short_revision
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_archive import CROSS_PLATFORM, TargetPlatform
from harness.sources.packages.resolve_measurements import SourcePackage
from harness.sources.packages.source_requirements import source_requirements


@dataclass(frozen=True, kw_only=True)
class ResolveRequest:
    """The requirements of a cell and its target platform.

    overrides: requirements that replace what one package requires.
    from_source: packages that are built from a repository; they are not resolved themselves.
    indexes: package -> additional indexes, which are searched if the user's own ones lack it.
    host: whether the target is this machine.
    declared: package -> what it declares, for packages of `from_source` whose commit a mirror has.
    source_requirements: the same with what overrides replace.
    """

    requirements: tuple[str, ...]
    overrides: tuple[PinnedOverride, ...]
    from_source: tuple[SourcePackage, ...]
    indexes: Mapping[str, tuple[str, ...]]
    python: str
    arch: str
    host: bool
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source_requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_facets(cls, pins: PinsFacet, platform: Mapping[str, object]) -> ResolveRequest:
        """The request for the facets `pins` and `platform`; InputError for an invalid requirement."""
        built = {normal_name(item.package) for item in pins.from_source}
        return cls(
            # Keep the order of matrix.yaml: uv selects versions of the first requirements first. With
            # packages of third parties in front, it would select releases of the stack that are years old.
            requirements=tuple(text for text in pins.requirements if _name(text) not in built),
            overrides=tuple(
                one for one in pins.overrides if one.yields_to or _name(one.requirement) not in built
            ),
            from_source=tuple(SourcePackage(**vars(item)) for item in pins.from_source),
            indexes=pins.index,
            python=str(platform["python"]),
            arch=str(platform["arch"]),
            host=bool(platform.get("host", False)),
        )

    def with_sources(self, mirrors: Sequence[Path]) -> ResolveRequest:
        """This request with the requirements of the packages built from source whose commit a mirror has.

        Only if the target is this machine. On hardware these packages are installed into an environment that
        was resolved without their requirements.
        """
        if not self.host:
            return self
        declared = {}
        for item in self.from_source:
            repository = find_source(mirrors, item.commit, item.repository)
            if repository is not None:
                declared[item.package] = tuple(source_requirements(repository.tree(item.commit)))
        used = {
            package: tuple(replaced_requirement(text, self.replacements(package)) for text in requires)
            for package, requires in declared.items()
        }
        return replace(self, declared=declared, source_requirements=used)

    def source_metadata(self) -> Iterator[ReleaseMetadata]:
        """What the packages built from source declare, where a mirror has their commit."""
        for item in self.from_source:
            if item.package in self.declared:
                yield ReleaseMetadata(
                    name=normal_name(item.package),
                    version=short_revision(item.commit),
                    requires=self.declared[item.package],
                )

    def replacements(self, package: str) -> dict[str, SpecifierSet]:
        """Name of a required package -> the versions that overrides allow instead of what `package` requires.

        Several overrides of the same requirement apply together.
        """
        found: dict[str, SpecifierSet] = {}
        for override in self.overrides:
            if override.of == normal_name(package) and override.requirement:
                requirement = Requirement(override.requirement)
                name = normal_name(requirement.name)
                found[name] = found.get(name, SpecifierSet()) & requirement.specifier
        return found

    def reads_metadata_of(self, package: str) -> bool:
        """Whether an override concerns the requirements of a package."""
        return any(normal_name(package) in (override.of, override.yields_to) for override in self.overrides)

    def with_yielded_requirements(self, published: Sequence[ReleaseMetadata]) -> ResolveRequest:
        """This request with overrides of single requirements instead of those with `yields_to`.

        Of the package `of`, the requirements are replaced that contradict those of the package that is
        installed after it, according to the metadata of both releases.
        """
        releases = {release.name: release for release in published}
        environment = target_environment(self.python, self.arch, host=self.host)
        found: list[PinnedOverride] = []
        for override in self.overrides:
            earlier, later = releases.get(override.of), releases.get(override.yields_to)
            if not override.yields_to:
                found.append(override)
            elif earlier and later:
                found += (
                    replace(override, requirement=name, yields_to="")
                    for name in contradicting_requirements(earlier.requires, later.requires, environment)
                    if name not in self.replacements(override.of)
                )
        return replace(self, overrides=tuple(found))

    @property
    def target(self) -> str:
        """The target platform in words."""
        return f"Python {self.python} on {'this machine' if self.host else f'{self.arch} {CROSS_PLATFORM}'}"

    def arguments(self) -> list[str]:
        """uv's arguments for the target platform."""
        return self.platform.arguments()

    @property
    def platform(self) -> TargetPlatform:
        """The target platform."""
        return TargetPlatform(python=self.python, arch=self.arch, host=self.host)

    def write(self, folder: Path) -> None:
        """Write `requirements.in`."""
        from_source = (text for texts in self.source_requirements.values() for text in texts)
        lines = (*self.requirements, *from_source)
        (folder / "requirements.in").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def requirement_names(requirements: Sequence[str]) -> tuple[str, ...]:
    """The normalized package names of requirements."""
    return tuple(_name(requirement) for requirement in requirements)


def pinned_releases(requirements: Sequence[str]) -> dict[str, str]:
    """Normalised name -> version, for the requirements of exactly one version."""
    found = {}
    for requirement in map(Requirement, requirements):
        clauses = [(clause.operator, clause.version) for clause in requirement.specifier]
        if len(clauses) == 1 and clauses[0][0] == "==" and "*" not in clauses[0][1]:
            found[normal_name(requirement.name)] = clauses[0][1]
    return found


def _name(requirement: str) -> str:
    try:
        return normal_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        raise InputError(
            f"{requirement!r} is not a valid requirement", why=str(error), fix="write it as name==version"
        ) from error

"""Requirements that overrides replace: what uv reads instead, and what the lock violates because of them.

uv applies its option `--overrides` to the requirements of every package, so it would also hide conflicts that
no override was written for. `dependency-metadata` in uv's settings replaces the requirements of one release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

EXTRA = re.compile(r"\bextra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, kw_only=True)
class ReleaseMetadata:
    """What the metadata of a release requires. requires_python: "" for any version."""

    name: str
    version: str
    requires: tuple[str, ...]
    requires_python: str = ""

    def with_replacements(self, replacements: Mapping[str, SpecifierSet]) -> ReleaseMetadata:
        """This metadata with other versions allowed for the packages that `replacements` names."""
        return ReleaseMetadata(
            name=self.name,
            version=self.version,
            requires=tuple(replaced_requirement(text, replacements) for text in self.requires),
            requires_python=self.requires_python,
        )

    def uv_table(self) -> str:
        """The entry of uv's settings that replaces the metadata of the release."""
        lines = [
            "[[dependency-metadata]]",
            f"name = {json.dumps(self.name)}",
            f"version = {json.dumps(self.version)}",
            f"requires-dist = {json.dumps(list(self.requires))}",
        ]
        if self.requires_python:
            lines.append(f"requires-python = {json.dumps(self.requires_python)}")
        extras = sorted(_extras(self.requires))
        if extras:
            lines.append(f"provides-extra = {json.dumps(extras)}")
        return "\n".join((*lines, ""))


def replaced_requirement(text: str, replacements: Mapping[str, SpecifierSet]) -> str:
    """A requirement with the versions that `replacements` allows for its package, if it names the package.

    Its extras and its marker stay. A requirement of a URL is replaced too.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return text
    specifier = replacements.get(canonicalize_name(requirement.name))
    if specifier is None:
        return text
    requirement.specifier, requirement.url = specifier, None
    return str(requirement)


def target_environment(python: str, arch: str, *, host: bool) -> dict[str, str]:
    """The marker variables of the target platform: this machine, or Linux with glibc on `arch`."""
    environment = {str(name): str(value) for name, value in default_environment().items()}
    if not host:
        environment.update(
            os_name="posix",
            sys_platform="linux",
            platform_system="Linux",
            platform_machine=arch,
            platform_release="",
            platform_version="",
            implementation_name="cpython",
            platform_python_implementation="CPython",
        )
    parts = python.split(".")
    full = python if len(parts) > 2 else f"{python}.0"
    environment.update(python_version=".".join(parts[:2]), python_full_version=full)
    environment.update(implementation_version=full)
    return environment


def violated_requirements(
    requires: Iterable[str],
    installed: Mapping[str, str],
    environment: Mapping[str, str],
    extras: Collection[str] = (),
) -> tuple[Requirement, ...]:
    """The requirements that `installed` (normalised name -> version) does not satisfy.

    Requirements whose marker does not hold in `environment` for any of `extras` are ignored. Versions are
    compared as installers do: `==2.7.1` allows 2.7.1+cpu, but not 2.7.1.post1, and an installed pre-release
    is compared like any other version.
    """
    return tuple(
        requirement
        for requirement in _active(requires, environment, extras)
        if not _satisfied(requirement, installed.get(canonicalize_name(requirement.name)))
    )


def contradicting_requirements(
    earlier: Iterable[str], later: Iterable[str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The names of packages of which no version satisfies both requirements, in alphabetical order."""
    required = [_specifiers(requires, environment) for requires in (earlier, later)]
    shared = sorted(required[0].keys() & required[1].keys())
    return tuple(name for name in shared if not _intersect(required[0][name], required[1][name]))


def _specifiers(requires: Iterable[str], environment: Mapping[str, str]) -> dict[str, SpecifierSet]:
    found: dict[str, SpecifierSet] = {}
    for requirement in _active(requires, environment, ()):
        name = canonicalize_name(requirement.name)
        found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return found


def _intersect(left: SpecifierSet, right: SpecifierSet) -> bool:
    """Whether a version satisfies both: if any does, one at or next to a version that they name does."""
    both = left & right
    named = [clause.version.removesuffix(".*") for clause in both]
    tried = ["0", *named, *(f"{one}.post1" for one in named), *(f"{one}.1" for one in named)]
    tried += [f"{one}.dev0" for one in named]
    return any(both.contains(version, prereleases=True) for version in tried if _is_version(version))


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def required_extras(requirements: Sequence[str]) -> dict[str, frozenset[str]]:
    """Normalised name -> the extras that these requirements name."""
    found: dict[str, frozenset[str]] = {}
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        found[name] = found.get(name, frozenset()) | requirement.extras
    return found


def _active(
    requires: Iterable[str], environment: Mapping[str, str], extras: Collection[str]
) -> Iterator[Requirement]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        values = [{**environment, "extra": extra} for extra in ("", *extras)]
        if marker is None or any(marker.evaluate(value) for value in values):
            yield requirement


def _satisfied(requirement: Requirement, version: str | None) -> bool:
    if version is None:
        return False
    return requirement.url is not None or requirement.specifier.contains(version, prereleases=True)


def _extras(requires: Iterable[str]) -> set[str]:
    """The extras that the markers of requirements name."""
    found: set[str] = set()
    for text in requires:
        try:
            marker = Requirement(text).marker
        except InvalidRequirement:
            continue
        if marker is not None:
            found.update(EXTRA.findall(str(marker)))
    return found

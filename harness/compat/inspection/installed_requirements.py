"""Compares what installed packages require of each other, of Python and the platform with what is there."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import compatible_tags, cpython_tags, platform_tags
from packaging.version import InvalidVersion, Version

from harness.compat.inspection.distributions import Distribution
from harness.compat.resolve.replaced_requirements import (
    ReleaseMetadata,
    target_environment,
    violated_requirements,
)
from harness.compat.resolve.resolve_request import ResolveRequest

#: Extensions of other packages are compiled against their C++ interface, which patch releases may change.
COMPILED_AGAINST = frozenset({"torch", "torch-npu"})


def is_near(package: str, specifier: str, installed: str) -> bool:
    """Whether a requirement names one release, and what is installed is a patch release or build beside it.

    Such a requirement records the release that was tested, and documents install others over it: of 65 stacks
    that people report as working, three have triton-ascend 3.2.1 instead of 3.2.0 or 3.2.2. A bound and
    another minor release are decisions of the authors. Of `COMPILED_AGAINST` only builds of one release are
    near: 2.8.0 and 2.8.0.post2.
    """
    try:
        clauses, version = tuple(SpecifierSet(specifier)), Version(installed)
        named = Version(clauses[0].version) if len(clauses) == 1 and clauses[0].operator == "==" else None
    except (InvalidSpecifier, InvalidVersion):  # ==2.7.* names more than one release
        return False
    if named is None:
        return False
    parts = 3 if package in COMPILED_AGAINST else 2
    left, right = ((*one.release, 0, 0)[:parts] for one in (named, version))
    return (named.epoch, left) == (version.epoch, right)


@dataclass(frozen=True, kw_only=True)
class Unsatisfied:
    """A requirement that the installed version does not satisfy.

    installed: "" if the package is missing. is_near: see the function of that name.
    """

    package: str
    version: str
    requirement: str
    needs: str
    installed: str
    is_near: bool = False

    def __str__(self) -> str:
        found = f"{self.needs} {self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.package} {self.version} requires {self.requirement}, but {found}"


def unsatisfied_requirements(
    distributions: Sequence[Distribution], request: ResolveRequest
) -> Iterator[Unsatisfied]:
    """The requirements that are not satisfied, without those that overrides of the matrix replace.

    request: of the same versions; its overrides and platform count.
    """
    installed = {one.name: one.version for one in reversed(distributions)}
    # A distribution that another one of the same name hides is not imported.
    active = [one for one in distributions if installed[one.name] == one.version]
    metadata = [ReleaseMetadata(name=one.name, version=one.version, requires=one.requires) for one in active]
    yielded = request.with_yielded_requirements(metadata)
    environment = target_environment(request.python, request.arch, host=request.host)
    for one in metadata:
        required = one.with_replacements(yielded.replacements(one.name)).requires
        for requirement in violated_requirements(required, installed, environment):
            name = requirement.name.lower().replace("_", "-").replace(".", "-")
            requirement.marker = None
            yield Unsatisfied(
                package=one.name,
                version=one.version,
                requirement=str(requirement),
                needs=name,
                installed=installed.get(name, ""),
                is_near=is_near(name, str(requirement.specifier), installed.get(name, "")),
            )


def wrong_platforms(distributions: Sequence[Distribution], python: str, arch: str) -> Iterator[str]:
    """A sentence for each package whose wheel is for another Python or machine."""
    for one in distributions:
        if one.requires_python and python and not _permits(one.requires_python, python):
            yield f"{one.name} {one.version} requires Python {one.requires_python}, and this is {python}"
        elif one.tags and python and arch and not _fits(one.tags, python, arch):
            shown = ", ".join(one.tags[:2])
            yield (
                f"{one.name} {one.version} was installed from a wheel for {shown}, and this is Python "
                f"{python} on {arch}"
            )


def _permits(specifier: str, python: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def _fits(tags: Sequence[str], python: str, arch: str) -> bool:
    for tag in tags:
        interpreter, _, rest = tag.partition("-")
        abi, _, platform = rest.partition("-")
        is_ours = platform == "any" or platform.endswith(f"_{arch}")
        if is_ours and (interpreter, abi) in _interpreters(".".join(python.split(".")[:2])):
            return True
    return False


@functools.cache
def _interpreters(python: str) -> frozenset[tuple[str, str]]:
    """The interpreter and ABI tags that a CPython can import."""
    major, minor = (int(part) for part in python.split("."))
    own = next(iter(platform_tags()))
    tags = [*cpython_tags((major, minor), platforms=[own])]
    tags += compatible_tags((major, minor), f"cp{major}{minor}", platforms=[own])
    return frozenset((tag.interpreter, tag.abi) for tag in tags)

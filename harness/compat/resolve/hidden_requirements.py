"""What a lock violates because overrides of matrix.yaml replace requirements."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from harness.compat.resolve.replaced_requirements import (
    ReleaseMetadata,
    required_extras,
    target_environment,
    violated_requirements,
)
from harness.compat.resolve.resolve_request import ResolveRequest, requirement_names
from harness.sources.packages.lockfile import LockedPackage
from harness.sources.packages.resolve_measurements import HiddenRequirement


def hidden_requirements(
    published: Sequence[ReleaseMetadata], request: ResolveRequest, lock: Sequence[LockedPackage]
) -> tuple[HiddenRequirement, ...]:
    """The published requirements that the lock violates, each with the override that replaces it.

    uv checks all other requirements itself, so the lock violates none of them.
    """
    locked = {package.name: package.version for package in lock}
    environment = target_environment(request.python, request.arch, host=request.host)
    extras = required_extras(request.requirements)
    found = []
    releases = [release for release in published if locked.get(release.name) == release.version]
    for release in (*releases, *(request.source_metadata() if lock else ())):
        overrides = {
            name: override
            for override in request.overrides
            if override.of == release.name
            for name in requirement_names([override.requirement])
        }
        violated = violated_requirements(
            release.requires, locked, environment, extras.get(release.name, frozenset())
        )
        for requirement in violated:
            name = canonicalize_name(requirement.name)
            if override := overrides.get(name):
                requirement.marker = None
                found.append(
                    HiddenRequirement(
                        of=release.name,
                        version=release.version,
                        requirement=str(requirement),
                        locked=locked.get(name, ""),
                        reason=override.reason,
                        source=override.source,
                    )
                )
    return tuple(dict.fromkeys(found))

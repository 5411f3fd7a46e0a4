"""The published releases that are nearest to a version that the package index does not have."""

from __future__ import annotations

from packaging.version import Version

from harness.errors import InfrastructureError, InputError
from harness.sources.packages.index_lookup import (
    ANY_PRERELEASE,
    FINAL_IF_POSSIBLE,
    PackageIndex,
    ReleaseNotFoundError,
    require_release_name,
)


def nearest_releases(index: PackageIndex, package: str, version: str) -> tuple[str, ...]:
    """The two releases before `version` and the one after it, lowest first; the newest if it has no order.

    Final releases are preferred for a final version. Empty if the index has no release of the package or is
    not reachable.
    """
    try:
        wanted = Version(version)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return tuple(filter(None, [_selected(index, package, FINAL_IF_POSSIBLE)]))
    kind = ANY_PRERELEASE if wanted.is_prerelease else FINAL_IF_POSSIBLE
    below = _selected(index, f"{package}<{wanted.public}", kind)
    lower = _selected(index, f"{package}<{below}", kind) if below else ""
    above = _selected(index, f"{package}>{wanted.public}", (*kind, "--resolution", "lowest"))
    return tuple(dict.fromkeys(filter(None, (lower, below, above))))


def require_release(index: PackageIndex, package: str, version: str) -> None:
    """ReleaseNotFoundError with the nearest releases as its remedy, unless the index has this release.

    For versions that a user gives. InfrastructureError if the index is not reachable.
    """
    require_release_name(package, "0")
    try:
        require_release_name(package, version)
        index.files([f"{package}=={version}"])
    except InputError as error:
        problem = error.problems[0]
        found = nearest_releases(index, package, version)
        fix = f"nearest published: {', '.join(found)}" if found else problem.fix
        raise ReleaseNotFoundError(problem.what, why="" if found else problem.why, fix=fix) from error


def _selected(index: PackageIndex, requirement: str, options: tuple[str, ...]) -> str:
    try:
        return index.files([requirement], None, options)[0].version
    except (ReleaseNotFoundError, InfrastructureError, IndexError):
        return ""

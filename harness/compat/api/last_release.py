"""Find the last release of a package that had a name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from packaging.version import Version

from harness.compat.surface.api_surface import ApiSurface, Presence
from harness.sources.packages.pip_program import pip_command, pip_environment
from harness.sources.packages.release_fetcher import ReleaseFetcher

LIST_TIMEOUT_S = 120.0
AVAILABLE = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)


def last_version_with(versions: Sequence[str], has: Callable[[str], bool | None]) -> str:
    """The last version with a name that later versions do not have, or "". `versions`: oldest first.

    Searches backwards in growing steps and then bisects, so that `has` is called for few versions. If the
    name was removed several times, the version before any of these removals is returned. None from `has`
    (unknown) counts as False.
    """
    high, low, step = len(versions), len(versions) - 1, 1
    while low >= 0 and not has(versions[low]):
        high, low, step = low, (max(0, low - step) if low else -1), step * 2
    if low < 0:
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has(versions[middle]) else (low, middle)
    return versions[low]


def last_releases_with(
    package: str, before: str, names: Iterable[str], source: ReleaseFetcher
) -> dict[str, str]:
    """Dotted name -> the last final release before `before` that has it, if any."""
    versions = earlier_releases(package, before, source)
    surfaces: dict[str, ApiSurface | None] = {}

    def has(name: str, version: str) -> bool | None:
        if version not in surfaces:
            sources = source.find(package, version)
            surfaces[version] = ApiSurface(sources.file) if sources else None
        surface = surfaces[version]
        presence = surface.find(name).presence if surface else Presence.UNKNOWN
        return None if presence is Presence.UNKNOWN else presence is Presence.FOUND

    found = {name: last_version_with(versions, partial(has, name)) for name in sorted(names)}
    return {name: version for name, version in found.items() if version}


def earlier_releases(package: str, before: str, source: ReleaseFetcher) -> list[str]:
    """The final releases on the index before a version, oldest first; empty when pip cannot list them."""
    argv = [*pip_command(), "index", "versions", "--disable-pip-version-check", "--no-input", package]
    done = source.command(argv, env=pip_environment(os.environ), timeout=LIST_TIMEOUT_S)
    listed = AVAILABLE.search(done.tail)
    if done.returncode or not listed:
        return []
    limit = Version(before)
    found = []
    for text in listed["versions"].split(","):
        try:
            version = Version(text.strip())
        except ValueError:  # InvalidVersion, or a number with thousands of digits
            continue
        if version < limit and not version.is_prerelease:
            found.append(version)
    return [str(version) for version in sorted(found)]

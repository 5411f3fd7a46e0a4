"""Which packages of a list use packages of the matrix, so that `api` compares them.

A package is related if its metadata requires one of them, also for an extra, or if it is named after one
(vllm-omni, which does not require vllm). Metadata come from the environment itself, the shipped pack, or the
package index, which is asked for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from email import message_from_bytes

from packaging.requirements import InvalidRequirement, Requirement

from harness.compat.inspection.distributions import Distribution
from harness.compat.inspection.stated_packages import Inventory, StatedPackage, public_version
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.errors import HarnessError, InputError
from harness.sources.packages.index_lookup import PublishedFile
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.release_sources import release_requirements

#: How long the index is asked, by how many threads, and how many packages are compared at most.
SECONDS, THREADS, MOST = 20.0, 8, 16


@dataclass(frozen=True, kw_only=True)
class RelatedPackages:
    """names: of related packages. left_out: in words, what was not compared."""

    names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def related_packages(
    inventory: Inventory,
    distributions: Sequence[Distribution],
    pack: SurfacePack | None,
    matrix_packages: Collection[str],
    fetcher: ReleaseFetcher,
) -> RelatedPackages:
    """The packages of an inventory that require others of it that are packages of the matrix."""
    stated = inventory.packages
    requires: dict[str, tuple[str, ...]] = {one.name: one.requires for one in distributions}
    for name, one in stated.items() if pack else ():
        release = pack.release(name, public_version(one.version)) if pack and name not in requires else None
        if release:
            requires[name] = tuple(map(str, release.requirements))
    # What a package of the matrix requires is below it and does not use it.
    below = {
        name
        for one in stated.keys() & set(matrix_packages)
        for name, is_extra in _required(requires.get(one, ())).items()
        if not is_extra
    }
    others = [one for name, one in stated.items() if name not in {*requires, *below, *matrix_packages}]
    asked = ask_index(others, fetcher) if others else {}
    wanted = frozenset(matrix_packages) & stated.keys()
    always: list[str] = []
    sometimes: list[str] = []
    for name, texts in {**requires, **asked}.items():
        if name in matrix_packages or name not in stated:
            continue
        uses = {extra for one, extra in _required(texts).items() if one in wanted}
        is_named = any(name.startswith(f"{one}-") for one in wanted)
        if uses or is_named:
            (always if is_named or not all(uses) else sometimes).append(name)
    found = (*sorted(always), *sorted(sometimes))
    unknown = sorted(one.name for one in others if one.name not in asked)
    left = []
    if unknown:
        left.append(f"uses of {_shown(unknown)}: what they require is not known")
    if found[MOST:]:
        left.append(f"uses of {_shown(found[MOST:])}: {MOST} other packages were compared")
    return RelatedPackages(names=found[:MOST], left_out=tuple(left))


def ask_index(packages: Sequence[StatedPackage], fetcher: ReleaseFetcher) -> Mapping[str, tuple[str, ...]]:
    """Name -> requirements, of the packages for which the index answers in time."""
    end = time.monotonic() + SECONDS
    files = _listed(packages, fetcher, end)
    pool = ThreadPoolExecutor(THREADS)
    asked = {
        pool.submit(_published, one, files[one.name], fetcher): one.name
        for one in packages
        if one.name in files
    }
    done, _late = wait(asked, timeout=max(0.0, end - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    found = {asked[one]: one.result() for one in done}
    return {name: requires for name, requires in found.items() if requires is not None}


def _listed(
    packages: Sequence[StatedPackage], fetcher: ReleaseFetcher, end: float
) -> dict[str, list[PublishedFile]]:
    """Name -> the files of the release. The index refuses a list with a release that it does not have."""
    if not packages or time.monotonic() > end:
        return {}
    try:
        listed = fetcher.listed([(one.name, public_version(one.version)) for one in packages])
    except InputError:
        middle = len(packages) // 2
        halves = (packages[:middle], packages[middle:]) if middle else ()
        return {name: files for half in halves for name, files in _listed(half, fetcher, end).items()}
    except HarnessError:
        return {}
    found: dict[str, list[PublishedFile]] = {}
    for file in listed:
        found.setdefault(normal_name(file.package), []).append(file)
    return found


def _published(
    one: StatedPackage, files: Sequence[PublishedFile], fetcher: ReleaseFetcher
) -> tuple[str, ...] | None:
    """The requirements of a release, None if its files cannot be read. Not every index serves metadata."""
    try:
        first = min(files, key=lambda file: not file.name.endswith(".whl"))
        if metadata := fetcher.metadata_of(first):
            return tuple(map(str, message_from_bytes(metadata).get_all("Requires-Dist", [])))
        sources = fetcher.sources_of_files(one.name, public_version(one.version), files)
        return tuple(release_requirements(sources.file))
    except HarnessError:
        return None


def _required(texts: Sequence[str]) -> dict[str, bool]:
    """Required package -> whether only extras require it."""
    found: dict[str, bool] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        is_extra = "extra" in str(requirement.marker or "")
        name = normal_name(requirement.name)
        found[name] = found.get(name, True) and is_extra
    return found


def _shown(names: Sequence[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")

"""Limits that no requirement in force states: optional requirements, NumPy 2, and keys that are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from packaging.version import InvalidVersion, Version

from harness.compat.inspection.extra_floors import below_floors
from harness.compat.inspection.newer_majors import newest_until, published
from harness.compat.inspection.numpy_majors import NUMPY, KnownCann, numpy_misfits
from harness.compat.inspection.taken_keys import TakenKey, new_keys, taken_keys
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.compat.resolve.replaced_requirements import target_environment
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.compat.uses.package_pairs import Package
from harness.errors import HarnessError
from harness.matrix.version_matrix import Matrix
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.inspection.inspection_report import Problem, Stage


def numpy_problems(
    pack: SurfacePack, stated: Mapping[str, str], matrix: Matrix, cann: str
) -> Iterator[Problem]:
    """Packages that cannot be used with the stated NumPy. cann: the CANN that is there, "" if not known."""
    table = matrix.published.get("vllm-ascend")
    known = KnownCann(cann=cann, published=table.column("cann") if table else {})
    for one in numpy_misfits(pack, stated, known):
        yield Problem(
            stage=Stage.FIRST_STEP,
            fails=True,
            check="requirements",
            text=str(one),
            source=one.source,
            involved=(one.package, NUMPY),
            remedy=f"install numpy {one.newest}",
        )


def extra_problems(
    pack: SurfacePack, stated: Mapping[str, str], request: ResolveRequest
) -> Iterator[Problem]:
    """Stated releases below the lower bound of an optional requirement of another stated package."""
    environment = target_environment(request.python, request.arch, host=request.host)
    for one in below_floors(pack, stated, environment):
        yield Problem(
            stage=Stage.FIRST_STEP,
            fails=True,
            check="requirements",
            text=str(one),
            source=f"metadata of {one.package} {one.version}",
            involved=(one.package, one.needs),
            remedy=f"install {one.needs}{one.floor}, or an earlier {one.package}",
        )


def key_problems(pack: SurfacePack, stated: Mapping[str, str], fetcher: ReleaseFetcher) -> Iterator[Problem]:
    """Keys that a stated package registers with another one, which has them itself in a later release."""
    for package, needs, before in _with_later_releases(pack, stated):
        for one in _taken(pack, fetcher, (package, stated[package]), (needs, before, stated[needs])):
            yield Problem(
                stage=Stage.IMPORT if one.is_imported else Stage.LATER,
                fails=one.is_imported,
                check="api",
                text=f"{one}, which {needs} {stated[needs]} has itself and refuses (ValueError); {package} "
                f"{stated[package]} was published when {needs} {before} was the newest",
                involved=(package, needs),
                remedy=f"install {needs} {before}, or a later {package}",
            )


def _with_later_releases(pack: SurfacePack, stated: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """A package, one that it requires, and the newest release of that when the package was published.

    Only those of which the stated release is later.
    """
    for package, version in stated.items():
        surface, date = pack.release(package, version), published(pack, package, version)
        required = {normal_name(one.name) for one in surface.requirements} if surface else set()
        for needs in sorted(required & stated.keys()):
            newest = newest_until(pack, needs, date) if date else None
            with suppress(InvalidVersion):
                if newest is not None and Version(stated[needs]) > newest:
                    yield package, needs, str(newest)


def _taken(
    pack: SurfacePack, fetcher: ReleaseFetcher, own: tuple[str, str], other: tuple[str, str, str]
) -> list[TakenKey]:
    needs, before, now = other
    old, new = pack.release(needs, before), pack.release(needs, now)
    if old is None or new is None or not new_keys(old, new):
        return []
    try:
        package = Package(name=own[0], version=own[1], file=fetcher.sources(*own).file)
        return list(taken_keys(package, old, new))
    except HarnessError:
        return []

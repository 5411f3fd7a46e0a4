"""Which package's class or function an error message means, where several packages have one of that name.

`EngineArgs` in a message has no module. The file that used it imports it from somewhere, and so do the other
files of its package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.definition_history import bases_in_other_packages
from harness.compat.knowledge.surface_pack import ReleaseSurface, SurfacePack
from harness.compat.surface.api_surface import module_of_file
from harness.verdict.triage.derived.failed_use import FailedUse
from harness.verdict.triage.derived.logged_versions import ShownVersions
from harness.verdict.triage.derived.package_names import package_of_file
from harness.verdict.triage.derived.stack_releases import path_in_package


def meant_packages(pack: SurfacePack, use: FailedUse, shown: ShownVersions) -> list[str]:
    """The packages whose class or function is meant, by its first name.

    First those that the failing code imports it from; otherwise those that define it, of these only those
    that the log names, if it names any.
    """
    owner, user = use.owner.partition(".")[0], package_of_file(use.user)
    defining = [name for name in pack.packages if pack.modules_defining(name, owner)]
    defining = [name for name in defining if _may_define(pack, name, owner, shown)] or defining
    if len(defining) < 2:
        return defining
    imported = _imported_by(pack, use, user, shown) & set(defining) if pack.has(user) else set()
    if imported:
        return [name for name in defining if name in imported]
    named = [name for name in defining if is_named(name, use, shown)]
    return named or [name for name in defining if not _derives(pack, name, owner, defining)] or defining


def is_named(package: str, use: FailedUse, shown: ShownVersions) -> bool:
    """Whether a log names a package: by its version, in a path of the traceback or in that of the owner."""
    files = (use.user, use.defined_in, *(frame.file for frame in use.stack))
    return package in shown or package in map(package_of_file, files)


def _derives(pack: SurfacePack, package: str, owner: str, defining: Sequence[str]) -> bool:
    """Whether a package's class is derived from that of the same name in another of these packages."""
    bases = bases_in_other_packages(pack, package, "", owner)
    return any(base.name == owner and base.package in defining for base in bases)


def is_imported_from(pack: SurfacePack, use: FailedUse, package: str, shown: ShownVersions) -> bool:
    """Whether the failing file, in the release that the log shows, imports the owner from a package."""
    user, owner = package_of_file(use.user), use.owner.partition(".")[0]
    if user not in shown or user == package or not pack.has(user):
        return False
    path, surfaces = path_in_package(use.user, pack.paths(user)), _around(pack, user, shown[user].version)
    return bool(surfaces) and all(set(_origins(pack, one, path, owner)) == {package} for one in surfaces)


def _around(pack: SurfacePack, package: str, version: str) -> list[ReleaseSurface]:
    """The release of this version; if it was not read, those before and after it."""
    own = pack.release(package, version)
    if own is not None:
        return [own]
    try:
        wanted = Version(version)
    except InvalidVersion:
        return []
    read = [(Version(one), surface) for one, surface in pack.surfaces(package) if surface is not None]
    before = [surface for one, surface in read if one < wanted]
    after = [surface for one, surface in read if one > wanted]
    return [before[-1], after[0]] if before and after else []


def _may_define(pack: SurfacePack, package: str, owner: str, shown: ShownVersions) -> bool:
    """Whether the installed release defines the owner; True if the release is not known."""
    surface = pack.release(package, shown[package].version) if package in shown else None
    if surface is None:
        return True
    paths = pack.modules_defining(package, owner)
    names = (surface.api.names(module_of_file(path)) for path in paths if path in surface.names())
    return any(owner in one.defined for one in names if one)


def _imported_by(pack: SurfacePack, use: FailedUse, user: str, shown: ShownVersions) -> set[str]:
    owner = use.owner.partition(".")[0]
    path = path_in_package(use.user, pack.paths(user))
    surface = _release(pack, user, path, shown)
    if surface is None:
        return set()
    in_file = set(_origins(pack, surface, path, owner))
    if in_file:
        return in_file
    files = surface.containing(owner.encode())
    return {origin for file in files for origin in _origins(pack, surface, file, owner)}


def _release(pack: SurfacePack, package: str, path: str, shown: ShownVersions) -> ReleaseSurface | None:
    """The installed release if the pack has it, otherwise the newest one with the file, if it is known."""
    installed = pack.release(package, shown[package].version) if package in shown else None
    if installed is not None:
        return installed
    surfaces = [surface for _version, surface in pack.surfaces(package) if surface is not None]
    return next((one for one in reversed(surfaces) if not path or path in one.names()), None)


def _origins(pack: SurfacePack, surface: ReleaseSurface, path: str, name: str) -> Iterator[str]:
    """The packages from which a file imports a name, its own package if it defines it."""
    names = surface.api.names(module_of_file(path)) if path.endswith(".py") else None
    if names is None:
        return
    if name in names.defined:
        yield surface.package
    for module, imported in names.imported.get(name, ()):
        origin = pack.package_of(f"{module}.{imported}" if imported else module)
        if origin:
            yield origin

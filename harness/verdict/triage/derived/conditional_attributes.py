"""Attributes that the class of an object assigns in the installed release, but not for every object.

`'LLMEngine' object has no attribute 'model_executor'`: vllm 0.10.0 assigns it, but only in some settings of
the engine. So no other version is the remedy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from harness.compat.knowledge.surface_pack import ReleaseSurface, SurfacePack
from harness.compat.surface.api_surface import module_of_file
from harness.compat.surface.module_names import class_attributes
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import ShownVersions
from harness.verdict.triage.derived.meant_packages import meant_packages


def conditional_attribute(pack: SurfacePack, use: FailedUse, shown: ShownVersions) -> DerivedCause | None:
    """What follows if a class of this name in the installed release assigns the attribute; None if none does.

    Of a release, the pack knows that a class assigns an attribute, and not under which condition.
    """
    if use.expected is not Expected.ATTRIBUTE or not use.owner.isidentifier() or not use.names:
        return None
    packages, name = meant_packages(pack, use, shown), use.names[0]
    if len(packages) != 1 or packages[0] not in shown:
        return None
    package = packages[0]
    installed = pack.release(package, shown[package].version.partition("+")[0])
    files = (
        _assigning(installed, pack.modules_defining(package, use.owner), use.owner, name) if installed else []
    )
    if installed is None or not files:
        return None
    release = f"{package} {installed.release.version}"
    return DerivedCause(
        degree=Degree.SYMPTOM,
        sentence=(
            f"`{use.owner}` of {release} ({', '.join(files)}) has `{name}`, and this object does not: it is "
            "assigned only in some settings or later than it is read here, or the object is of another class"
        ),
        proof=(f"sources of {release} (surface pack {pack.digest[-12:]})",),
        packages=(package,),
        remedy=(
            f"find in these files when `{name}` is assigned, and change the setting that decides it, or the "
            "code that reads it; another version is not needed for it"
        ),
    )


def _assigning(surface: ReleaseSurface, paths: Iterable[str], owner: str, name: str) -> list[str]:
    """The files whose class of this name assigns an attribute that is no field, which every object has."""
    found = []
    for path in (one for one in paths if one in surface.names()):
        definition = surface.api.find(f"{module_of_file(path)}.{owner}").definition
        node = definition.node if definition else None
        if isinstance(node, ast.ClassDef) and name in class_attributes(node) - _fields(node):
            found.append(path)
    return found


def _fields(node: ast.ClassDef) -> set[str]:
    return {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }

"""Causes in the files of an installation: another package wrote into its folder, or files are missing."""

from __future__ import annotations

from harness.compat.knowledge.surface_pack import ReleaseSurface, SurfacePack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import ShownVersions
from harness.verdict.triage.derived.package_names import INSTALLED, OPERATOR_NAMESPACES, package_of_file
from harness.verdict.triage.derived.requirement_causes import REPLACED_BY


def overwritten_folder(pack: SurfacePack, use: FailedUse) -> DerivedCause | None:
    """A file is where a folder of modules was, and several packages install into this folder."""
    top = use.owner.partition(".")[0]
    packages = pack.packages_of(top) if use.expected is Expected.MODULE and use.is_shadowed else ()
    if len(packages) < 2:
        return None
    names = " and ".join(packages)
    return DerivedCause(
        degree=Degree.LIKELY,
        sentence=(
            f"{names} install into one folder, `{top}`, and the one that was installed last has overwritten "
            f"files of the other: `{use.owner}` is not there any more"
        ),
        proof=(f"each of them has the module `{top}` (surface pack {pack.digest[-12:]})",),
        packages=packages,
        remedy=f"uninstall {names}, then install only the one that this environment needs",
    )


def damaged_installation(use: FailedUse, shown: ShownVersions) -> DerivedCause | None:
    """The installed release has the name, but the file in which Python looked for it does not.

    To be asked only if the release that the log shows was read and has it.
    """
    package = package_of_file(use.defined_in)
    is_import = use.expected is Expected.NAME and bool(INSTALLED.search(use.defined_in))
    if not is_import or use.is_shadowed or package not in shown:
        return None
    dotted = f"{use.owner}.{use.names[0]}"
    release = f"{package} {shown[package].version}"
    return DerivedCause(
        degree=Degree.LIKELY,
        sentence=(
            f"{release} has `{dotted}`, but {use.defined_in} does not: the installation is incomplete, "
            f"or another package or release has overwritten files in its folder"
        ),
        proof=(f"{release} in the surface pack, and the path in the message",),
        packages=(package,),
        remedy=f"uninstall {package} until pip finds none, then install it again",
    )


def unregistered_operator(pack: SurfacePack, use: FailedUse, shown: ShownVersions) -> DerivedCause | None:
    """An operator that a compiled extension registers: it was not loaded, if it was built for another torch.

    So only for packages with releases that each require one release of torch. The message proves that it was
    not loaded, and the sentence names every way to that.
    """
    namespace = use.owner.partition("::")[0]
    package = OPERATOR_NAMESPACES.get(namespace, "")
    is_lookup = use.expected is Expected.OPERATOR and "::" in use.owner and not use.names
    if not is_lookup or namespace == "npu" or package in REPLACED_BY:
        return None
    release = pack.release(package, shown[package].version) if package in shown else None
    read = [release] if release else [one for _version, one in pack.surfaces(package) if one is not None]
    exact = [one for one in read if _exact_torch(one)]
    wanted = _exact_torch(release) if release else ""
    is_met = "torch" in shown and wanted == f"torch=={shown['torch'].version.partition('+')[0]}"
    if not exact or is_met:
        return None
    needs = f" ({package} {release.release.version} requires {wanted})" if release and wanted else ""
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=(
            f"the compiled extension of {package}, which registers `{use.owner}`, was not loaded: it was "
            f"built for another torch than the installed one{needs}, or is missing, damaged or not imported"
        ),
        proof=(f"{package}: {len(exact)} of {len(read)} releases in the pack require one release of torch",),
        packages=(package, "torch"),
        remedy=f"install the {package} that was released for your torch, from the same index as torch",
        is_open=True,
    )


def _exact_torch(release: ReleaseSurface) -> str:
    """The requirement of one release of torch, "" if it has none."""
    return next(
        (
            f"torch{one.specifier}"
            for one in release.requirements
            if one.name == "torch" and str(one.specifier).startswith("==")
        ),
        "",
    )

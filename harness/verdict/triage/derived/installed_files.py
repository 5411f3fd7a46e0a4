"""Causes in the files of an installation: another package wrote into its folder, or files are missing."""

from __future__ import annotations

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import ShownVersions
from harness.verdict.triage.derived.package_names import INSTALLED, package_of_file


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

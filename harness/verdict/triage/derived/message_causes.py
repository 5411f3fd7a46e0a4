"""Causes that the message of an error proves alone, without the releases of packages."""

from __future__ import annotations

import re

from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.package_names import package_of_file, package_of_import

#: Versions of the libraries of C and C++, as the dynamic linker names them.
LIBRARY_OF_C = re.compile(r"(?:GLIBC|GLIBCXX|CXXABI)_\d")


def told_by_message(use: FailedUse) -> DerivedCause | None:
    """The cause that the message states; None if it states none."""
    if use.expected is Expected.VERSION:
        return _compared(use)
    if use.expected is Expected.METADATA:
        return _no_metadata(use)
    if is_missing_key(use):
        return _missing_key(use)
    if use.expected is Expected.CONFIG_NODE:
        return _no_container(use)
    if is_old_library(use):
        return _old_library(use)
    return _not_installed(use) if is_missing_module(use) else None


def is_missing_module(use: FailedUse) -> bool:
    """Whether Python has found nothing of a top-level module."""
    is_top_level = "." not in use.owner and not use.names and not use.is_shadowed
    return use.expected is Expected.MODULE and is_top_level


def is_old_library(use: FailedUse) -> bool:
    """Whether the dynamic linker has found a library of C or C++ that lacks a version."""
    return use.expected is Expected.LIBRARY_VERSION and bool(LIBRARY_OF_C.match("".join(use.names[:1])))


def _old_library(use: FailedUse) -> DerivedCause:
    """Versions of these libraries only grow: one that lacks a version is older than it."""
    name, library = use.names[0], use.owner
    is_c = name.startswith("GLIBC_")
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=(
            f"the loaded {'glibc' if is_c else 'libstdc++'} ({library}) does not have {name}: it is older "
            "than the one that the library which needs it was built with"
        ),
        proof=("message of the dynamic linker",),
        packages=(),
        remedy=(
            "use a newer system (CANN images with Ubuntu 22.04 or later), or a build of the package for this "
            "one"
            if is_c
            else "put the folder of a newer libstdc++, for example that of the conda environment, first in "
            "LD_LIBRARY_PATH, or use a CANN image with Ubuntu 22.04 or later"
        ),
    )


def _compared(use: FailedUse) -> DerivedCause:
    """A program has compared the version of a package that it uses with what it needs, and says both."""
    wanted, user = use.names[0], use.owner or package_of_file(use.user)
    package = re.split(r"[ =<>!~(]", wanted)[0]
    installed = use.defined_in if use.defined_in.startswith(package) else f"{package} {use.defined_in}"
    who = user or "the program that reports it"
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=f"{who} needs {wanted}, and {installed} is installed",
        proof=("both versions stand in the message",),
        packages=tuple(filter(None, (package, user))),
        remedy=f"install {wanted}, or a release of {who} that works with {installed}",
    )


def _not_installed(use: FailedUse) -> DerivedCause:
    """Python has found no folder or file of a top-level module: no version of its package is the reason."""
    module = use.owner
    package, user = package_of_import(module), package_of_file(use.user)
    importer = f", which {user} imports" if user and user != package else ""
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=(
            f"this Python finds no module `{module}`{importer}: its package is not, or not completely, "
            "installed in this environment, or the job runs with another Python or PYTHONPATH than intended"
        ),
        proof=("message of Python",),
        packages=tuple(dict.fromkeys(filter(None, (package, user)))),
        remedy=(
            f"install the package of `{module}` for the Python of this process, or start the job with the "
            "Python that has it"
        ),
        is_open=True,
    )


def _no_metadata(use: FailedUse) -> DerivedCause:
    """A program has asked for the version of a package, and Python has found no metadata of it."""
    package = use.owner.rstrip(".")
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=(
            f"{package} is not installed for this Python, although its modules may be there: a folder of "
            "source code on PYTHONPATH has no metadata, and so no version"
        ),
        proof=("message of importlib.metadata",),
        packages=tuple(dict.fromkeys(filter(None, (package, package_of_file(use.user))))),
        remedy=f"install {package} (`pip install -e FOLDER` for a folder of its source code)",
        is_open=True,
    )


def is_missing_key(use: FailedUse) -> bool:
    """Whether a program read a key that the configuration of its job does not have."""
    is_told = bool(use.names) and (bool(use.stack) or use.is_read)
    return use.expected is Expected.CONFIG_KEY and is_told and not use.owner


def _missing_key(use: FailedUse) -> DerivedCause:
    """OmegaConf names the key, and the traceback, if it is there, the file that reads it."""
    key, reader = use.names[0], package_of_file(use.user) or use.user
    who = reader or "the program"
    frame = ", and the innermost frame of the traceback" if reader else ""
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=f"{who} reads the key `{key}`, which the configuration of this job does not have",
        proof=(f"message of OmegaConf{frame}",),
        packages=tuple(filter(None, (package_of_file(use.user),))),
        remedy=(
            f"add the key with its full path (`+PATH.{key}=VALUE`), or start the job with the configuration "
            f"files and the entry point of this version of {who}"
        ),
    )


def _no_container(use: FailedUse) -> DerivedCause:
    """OmegaConf names a value and the key that the configuration reads in it."""
    node, key = use.owner, use.names[0]
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=(
            f"the configuration reads `{key}` in `{node}`, which is a single value in this job, without keys"
        ),
        proof=("message of OmegaConf",),
        packages=(),
        remedy=(
            f"give `{node}` the keys that the configuration reads; if its values are files of a group of "
            f"configurations, choose one with `{node.replace('.', '/')}=NAME` instead of `{node}=NAME`"
        ),
    )

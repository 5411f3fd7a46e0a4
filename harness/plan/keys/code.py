"""Digests of the checks' own code: keys change when a check asks its question differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.check import Check
from harness.digest import digest_json, digest_tree
from harness.package import PACKAGE_ROOT

SIMULATOR = "harness.devices.sim"
IGNORED_SUFFIXES = {".pyc", ".pyo", ".md"}


def source_files(dotted: str, package_root: Path = PACKAGE_ROOT) -> tuple[Path, ...]:
    """The files behind a module or package of this project, data included; ValueError without any.

    package_root: the folder `harness` of the tree to look in, this very program's by default.
    """
    path = package_root.parent.joinpath(*dotted.split("."))
    if path.is_dir():
        return tuple(file for file in path.rglob("*") if file.is_file() and not counted_out(file))
    module = path.with_suffix(".py")
    if not module.is_file():
        raise ValueError(f"{dotted} names no module of this project")
    return (module,)


def simulator_digest(package_root: Path = PACKAGE_ROOT) -> str:
    """Digest of the simulated device: what runs on another simulator is another outcome."""
    return digest_tree(package_root, source_files(SIMULATOR, package_root))


def counted_out(file: Path) -> bool:
    """Whether a file says nothing of what the code does: compiled copies, prose."""
    return file.suffix in IGNORED_SUFFIXES or "__pycache__" in file.parts


def code_digests(checks: Iterable[Check], package_root: Path = PACKAGE_ROOT) -> Mapping[str, str]:
    """Check name -> digest of the code its outcome depends on; each file set is read once.

    That is the code it declares in `sources`, and that of the checks it needs (`checks` holds them first): a
    lock resolved otherwise makes another environment, and another environment another loss. Facets need no
    such rule: a check reads every facet of what it needs. ValueError when a source is not in the tree.
    """
    files: dict[str, str] = {}
    digests: dict[str, str] = {}

    def digest(dotted: str) -> str:
        if dotted not in files:
            files[dotted] = digest_tree(package_root, source_files(dotted, package_root))
        return files[dotted]

    by_name: dict[str, Check] = {}
    for check in checks:
        by_name[check.name] = check
        own = [(name, digest(name)) for name in sorted(check.sources)]
        needed = [
            (need, digests[need], dict(by_name[need].params)) for need in check.needs if need in digests
        ]
        digests[check.name] = digest_json([own, needed] if needed else own)
    return digests

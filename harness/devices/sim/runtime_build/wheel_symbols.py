"""What an installed torch_npu expects from CANN: sonames nobody provides, symbols nobody defines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.devices.sim.runtime_build.cuda_stubs import AbsentCuda, absent_cuda
from harness.devices.sim.runtime_build.elf import Imports, SharedObject
from harness.devices.sim.runtime_build.system_libraries import has_system_library, system_library
from harness.errors import InputError, Location

RUNTIME_SONAME = "libascendcl.so"

# Packages beside torch_npu whose compiled parts need CANN too.
_COMPILED_AGAINST_CANN = ("vllm_ascend",)


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """sonames: missing libraries; symbols: functions no library defines; machine: its ELF name. Sorted.

    cuda: what torch itself needs of NVIDIA and nobody has.
    """

    machine: str
    torch: str
    torch_npu: str
    sonames: tuple[str, ...]
    symbols: tuple[str, ...]
    cuda: AbsentCuda


def expectations(site_packages: Path) -> Expectations:
    """Read the shared objects of torch_npu in `site_packages`.

    InputError when torch or torch_npu is not installed there or a library is corrupt.
    """
    own = _libraries(site_packages, "torch_npu")
    providers = sorted((site_packages / "torch_npu.libs").glob("*.so*"))
    providers += sorted(
        path for path in (site_packages / "torch" / "lib").glob("*.so*") if path.name.startswith("lib")
    )
    for package in _COMPILED_AGAINST_CANN:
        own += sorted((site_packages / package).glob("*.so"))
    imports = [_imports(path) for path in own]
    present = {path.name for path in [*own, *providers]} | {item.soname for item in imports}
    needed = {name for item in imports for name in item.needed}
    absent = sorted(needed - present)
    sonames = [name for name in absent if not has_system_library(name)]
    system = [path for name in absent if name not in sonames and (path := system_library(name))]
    return Expectations(
        machine=imports[0].machine,
        torch=_version(site_packages, "torch"),
        torch_npu=_version(site_packages, "torch_npu"),
        sonames=tuple(sonames),
        symbols=tuple(sorted(_unsatisfied(imports, [*own, *providers, *system], set(sonames)))),
        cuda=absent_cuda(site_packages),
    )


def _libraries(site_packages: Path, package: str) -> list[Path]:
    found = sorted((site_packages / package).rglob("*.so"))
    if not found:
        raise InputError(
            f"{package} is not installed in this environment",
            where=Location(site_packages),
            why=f"there is no shared library under {package}/",
            fix=f"install {package.replace('_', '-')} into it",
        )
    return found


def _imports(path: Path) -> Imports:
    with SharedObject(path) as library:
        return library.imports()


def _unsatisfied(imports: Iterable[Imports], definers: Iterable[Path], missing: set[str]) -> set[str]:
    wanted = {
        name
        for item in imports
        for name, version_file in item.undefined.items()
        # A versioned symbol says who defines it; the interpreter defines its own API.
        if (not version_file or version_file in missing) and not re.match(r"_?Py", name)
    }
    with contextlib.ExitStack() as stack:
        for path in definers:
            library = stack.enter_context(SharedObject(path))
            wanted = {name for name in wanted if not library.defines(name)}
    return wanted


def _version(site_packages: Path, package: str) -> str:
    """Version of the installed distribution, by its dist-info folder."""
    for folder in site_packages.glob(f"{package}-*.dist-info"):
        return folder.name[len(package) + 1 : -len(".dist-info")]
    raise InputError(
        f"{package} is installed without its metadata",
        where=Location(site_packages),
        why=f"there is no {package}-*.dist-info",
        fix=f"install {package.replace('_', '-')} again",
    )

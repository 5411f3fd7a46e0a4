"""The libraries and symbols that an installed torch_npu needs from CANN."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.devices.sim.runtime_build.cuda_stubs import AbsentCuda, absent_cuda
from harness.devices.sim.runtime_build.elf import Imports, SharedObject, read_imports
from harness.devices.sim.runtime_build.system_libraries import has_system_library, system_library
from harness.errors import InputError, Location

RUNTIME_SONAME = "libascendcl.so"

# Other packages whose compiled extensions need CANN.
_COMPILED_AGAINST_CANN = ("vllm_ascend",)


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What the simulated runtime must provide.

    machine: the architecture, by its ELF name. sonames: missing libraries, sorted. symbols: functions that no
    library defines, sorted. cuda: what torch itself needs from missing NVIDIA libraries.
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
    imports = [read_imports(path) for path in own]
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


def operator_functions(site_packages: Path) -> frozenset[str]:
    """The functions of CANN that torch_npu looks up by name when an operator is called."""
    found: set[str] = set()
    for path in _libraries(site_packages, "torch_npu"):
        for name in re.findall(
            rb"\0((?:aclnn|acl(?:Create|Destroy)|aclop)[A-Z]\w*)(?=\0)", path.read_bytes()
        ):
            text = name.decode("ascii")
            found.add(text)
            if text.startswith("aclnn") and not text.endswith("GetWorkspaceSize"):
                found.add(text + "GetWorkspaceSize")
    return frozenset(found)


def _libraries(site_packages: Path, package: str) -> list[Path]:
    libraries = sorted((site_packages / package).rglob("*.so"))
    if not libraries:
        raise InputError(
            f"{package} is not installed in this environment",
            where=Location(site_packages),
            why=f"there is no shared library under {package}/",
            fix=f"install {package.replace('_', '-')} into it",
        )
    return libraries


def _unsatisfied(imports: Iterable[Imports], definers: Iterable[Path], missing: set[str]) -> set[str]:
    """The undefined symbols that no library in `definers` defines. missing: sonames that nobody provides."""
    symbols = {
        name
        for item in imports
        for name, soname in item.undefined.items()
        # The version of a symbol names its library. The interpreter defines the symbols of Python's C API.
        if (not soname or soname in missing) and not re.match(r"_?Py", name)
    }
    for path in definers:
        with SharedObject(path) as library:
            symbols = {name for name in symbols if not library.defines(name)}
    return symbols


def _version(site_packages: Path, package: str) -> str:
    """Version of an installed package, from the name of its dist-info folder."""
    for folder in site_packages.glob(f"{package}-*.dist-info"):
        return folder.name[len(package) + 1 : -len(".dist-info")]
    raise InputError(
        f"{package} is installed without its metadata",
        where=Location(site_packages),
        why=f"there is no {package}-*.dist-info",
        fix=f"install {package.replace('_', '-')} again",
    )

"""Stubs for the NVIDIA libraries that a CUDA build of torch loads, but does not use without a GPU.

The package index has only CUDA builds of torch for x86_64, and the NVIDIA libraries are larger than all other
packages of a cell together. Locks omit these libraries, and this module generates stubs for the symbols that
torch's libraries need from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.devices.sim.runtime_build.compiler import require_function_name
from harness.devices.sim.runtime_build.elf import Imports, SharedObject, read_imports
from harness.devices.sim.runtime_build.system_libraries import has_system_library, system_library
from harness.package import data_file

SOURCE = data_file("devices/sim/runtime_build/absent/cuda.c")
LIBRARY = "libnpusim_cuda_absent.so"

# The libraries that `import torch` loads. Others are opened only when CUDA is used.
_ENTRIES = ("libtorch_python.so", "libtorch_global_deps.so")
# Released together with torch and built against the same CUDA.
_BUILT_WITH_TORCH = ("torchvision", "torchaudio")
_VENDOR_FILES = ("nvidia/*/lib/*.so*", *(f"{name}.libs/*.so*" for name in _BUILT_WITH_TORCH))
_NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so.*")
_DEFINED = re.compile(r"^ABSENT_API [^;{]*?(\w+)\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class AbsentCuda:
    """The NVIDIA libraries to replace; both fields are empty for a build of torch without CUDA.

    sonames: the missing libraries. symbols: function -> the symbol version with which torch needs it, or "".
    """

    sonames: tuple[str, ...] = ()
    symbols: Mapping[str, str]


def absent_cuda(site_packages: Path) -> AbsentCuda:
    """What `import torch` needs from missing NVIDIA libraries; InputError for a corrupt library."""
    folder = site_packages / "torch" / "lib"
    others = [path for name in _BUILT_WITH_TORCH for path in sorted((site_packages / name).rglob("*.so"))]
    installed = {path.name for pattern in _VENDOR_FILES for path in site_packages.glob(pattern)}
    installed |= {path.name for path in (*folder.glob("*.so*"), *others)}
    loaded = _loaded_libraries(folder)
    for library in others:
        imports = read_imports(library)
        # A library that also needs another missing library, such as libsox, cannot be loaded anyway.
        if all(
            name in installed or _NVIDIA.fullmatch(name) or has_system_library(name)
            for name in imports.needed
        ):
            loaded[library] = imports
    missing = {name for imports in loaded.values() for name in imports.needed} - installed
    sonames = {name for name in missing if _NVIDIA.fullmatch(name) and not has_system_library(name)}
    if not sonames:
        return AbsentCuda(symbols={})
    system = [path for name in missing - sonames if (path := system_library(name))]
    return AbsentCuda(
        sonames=tuple(sorted(sonames)),
        symbols=dict(sorted(_needed_symbols(loaded.values(), sonames, [*loaded, *system]).items())),
    )


def _needed_symbols(loaded: Iterable[Imports], sonames: set[str], definers: Iterable[Path]) -> dict[str, str]:
    """Symbol -> version, for the symbols of the libraries `sonames` and those that no library defines."""
    symbols: dict[str, str] = {}
    for imports in loaded:
        for name, soname in imports.undefined.items():
            if soname in sonames:
                symbols[name] = imports.versions[name]
            elif not soname and not re.match(r"_?Py", name):
                # The interpreter defines the symbols of Python's C API.
                symbols.setdefault(name, "")
    for path in definers:
        with SharedObject(path) as library:
            symbols = {
                name: version for name, version in symbols.items() if version or not library.defines(name)
            }
    return symbols


def absent_source(symbols: Mapping[str, str]) -> str:
    """C source of the functions that cuda.c does not define. Each prints its name and ends the process."""
    functional = frozenset(_DEFINED.findall(SOURCE.read_text("utf-8")))
    lines = [
        "void cuda_absent(const char *function);\n",
        '#define VISIBLE __attribute__((visibility("default")))\n',
        "#define ABSENT(name) VISIBLE int name(void) { cuda_absent(#name); return 0; }\n",
    ]
    for name in symbols:
        require_function_name(name, "torch")
        if name not in functional:
            lines.append(f"ABSENT({name})\n")
    return "".join(lines)


def version_script(symbols: Mapping[str, str]) -> str:
    """A linker script that gives each function the symbol version with which torch needs it."""
    versions: dict[str, list[str]] = {}
    for name, version in symbols.items():
        if version:
            versions.setdefault(version, []).append(name)
    return "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
        for version, names in sorted(versions.items())
    )


def _loaded_libraries(folder: Path) -> dict[Path, Imports]:
    """The libraries of torch that `import torch` loads, directly or for another library."""
    loaded: dict[Path, Imports] = {}
    paths = [folder / name for name in _ENTRIES]
    while paths:
        path = paths.pop()
        if path not in loaded and path.is_file():
            loaded[path] = read_imports(path)
            paths += [folder / name for name in loaded[path].needed]
    return loaded

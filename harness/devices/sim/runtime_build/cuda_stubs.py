"""Stand-ins for the NVIDIA libraries a CUDA build of torch loads and, without a GPU, never calls.

The package index has no other build of torch for x86_64, and the libraries weigh more than all else in a
cell. They are left out of its lock, and what torch's own libraries ask of them is stubbed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.devices.sim.runtime_build.compiler import require_function_name
from harness.devices.sim.runtime_build.elf import Imports, SharedObject
from harness.devices.sim.runtime_build.system_libraries import has_system_library, system_library
from harness.package import data_file

SOURCE = data_file("devices/sim/runtime_build/absent/cuda.c")
LIBRARY = "libnpusim_cuda_absent.so"

# What Python's import of torch loads; libraries that torch opens on first use of CUDA are not among it.
_ENTRIES = ("libtorch_python.so", "libtorch_global_deps.so")
# Released together with torch and built against the same CUDA.
_BESIDE_TORCH = ("torchvision", "torchaudio")
_VENDOR_FILES = ("nvidia/*/lib/*.so*", *(f"{name}.libs/*.so*" for name in _BESIDE_TORCH))
_NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so.*")
_DEFINED = re.compile(r"^ABSENT_API [^;{]*?(\w+)\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class AbsentCuda:
    """sonames: NVIDIA libraries torch needs and nobody has. symbols: function -> the symbol version it is
    asked for, "" for none. Both are empty for a build of torch without CUDA."""

    sonames: tuple[str, ...] = ()
    symbols: Mapping[str, str]


def absent_cuda(site_packages: Path) -> AbsentCuda:
    """What the import of torch in `site_packages` needs of NVIDIA; InputError for a corrupt library."""
    folder = site_packages / "torch" / "lib"
    beside = [path for name in _BESIDE_TORCH for path in sorted((site_packages / name).rglob("*.so"))]
    there = {path.name for pattern in _VENDOR_FILES for path in site_packages.glob(pattern)}
    there |= {path.name for path in (*folder.glob("*.so*"), *beside)}
    loaded = _closure(folder)
    for library in beside:
        imports = _imports(library)
        # What also lacks something else, such as libsox, does not load on any machine.
        if all(
            name in there or _NVIDIA.fullmatch(name) or has_system_library(name) for name in imports.needed
        ):
            loaded[library] = imports
    unknown = {name for imports in loaded.values() for name in imports.needed} - there
    sonames = {name for name in unknown if _NVIDIA.fullmatch(name) and not has_system_library(name)}
    if not sonames:
        return AbsentCuda(symbols={})
    system = [path for name in unknown - sonames if (path := system_library(name))]
    return AbsentCuda(
        sonames=tuple(sorted(sonames)),
        symbols=dict(sorted(_asked(loaded.values(), sonames, [*loaded, *system]).items())),
    )


def _asked(loaded: Iterable[Imports], sonames: set[str], definers: Iterable[Path]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for imports in loaded:
        for name, file in imports.undefined.items():
            if file in sonames:
                wanted[name] = imports.versions[name]
            elif not file and not re.match(r"_?Py", name):
                # The interpreter defines its own API.
                wanted.setdefault(name, "")
    for path in definers:
        with SharedObject(path) as library:
            wanted = {
                name: version for name, version in wanted.items() if version or not library.defines(name)
            }
    return wanted


def absent_source(symbols: Mapping[str, str]) -> str:
    """C text of functions that end the process with their name, for all that cuda.c does not define."""
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
    """A linker's version script: each function under the symbol version torch asks for."""
    versions: dict[str, list[str]] = {}
    for name, version in symbols.items():
        if version:
            versions.setdefault(version, []).append(name)
    return "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
        for version, names in sorted(versions.items())
    )


def _closure(folder: Path) -> dict[Path, Imports]:
    """Library of torch -> what it asks of others, for all that the import of torch loads."""
    found: dict[Path, Imports] = {}
    waiting = [folder / name for name in _ENTRIES if (folder / name).is_file()]
    while waiting:
        path = waiting.pop()
        found[path] = _imports(path)
        needed = (folder / name for name in found[path].needed)
        waiting += [
            other for other in needed if other not in found and other not in waiting and other.is_file()
        ]
    return found


def _imports(path: Path) -> Imports:
    with SharedObject(path) as library:
        return library.imports()

"""Shared libraries of an environment: what they need of each other and of the system, and nobody gives.

A symbol counts as missing only if no library of the environment defines it and every library that its own one
names was found, or if its name says which package must define it (`c10::`, `at::` and `torch::` are of
libtorch) and that package is there. Versions such as GLIBC_2.34 are compared with the tables of the library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compat.inspection.distributions import Distribution, Installation
from harness.compat.inspection.file_faults import recorded_names
from harness.devices.sim.runtime_build.elf import Imports, SharedObject
from harness.devices.sim.runtime_build.system_libraries import has_system_library, system_library
from harness.errors import InputError

_ELF = b"\x7fELF"
#: Mangled names of the namespaces c10, at and torch, which only libtorch defines.
_LIBTORCH = re.compile(r"_ZN(?:K|V|KV)?(?:3c10|2at|5torch)\d|_Z(?:TV|TI|TS)N(?:3c10|2at|5torch)\d")
_INTERPRETER = re.compile(r"_?_?Py[A-Z_]|_Py_")
#: Libraries of the Ascend toolkit, of its NNAL package (libatb) and of the driver.
_ASCEND = re.compile(
    r"lib(ascend\w*|hccl\w*|acl\w*|acl_\w+|opapi\w*|nnopbase|ge_\w+|graph\w*|runtime|profapi|msprof\w*|atb|"
    r"atb_\w+|asdops|mki|lcal|tiling_api|register|platform|error_manager|unified_dlog|c_sec|dcmi|drvdsmi_host|"
    r"exe_graph|lowering|tdt_\w+|metadef|mmpa|aicpu\w*|op_\w+|cust_\w+|optiling\w*|eager_style\w*)\.so(\.\d+)*"
)
#: An extension module that the interpreter can import.
_MODULE = re.compile(r"\.(?:cpython-3\d+\w*(?:-[\w-]+)?|abi3)\.so$")
#: The modules that `import torch` and `import torch_npu` load first.
_ROOT_MODULE = re.compile(r"/(?:torch|torch_npu)/_C\.[^/]*so$")
_MOST_SYMBOLS = 5


@dataclass(frozen=True, kw_only=True)
class LibraryFault:
    """A library that cannot be loaded, or not completely.

    path: below its site-packages. library, symbols, version: the missing library, symbols, or symbol version.
    certain: whether importing the package needs it; otherwise only a module that may never be imported does.
    package: that has the library. of: the package that must give what is missing, or "".
    """

    path: str
    package: str
    version: str
    library: str = ""
    symbols: tuple[str, ...] = ()
    more: int = 0
    needs_version: str = ""
    of: str = ""
    certain: bool = True

    def __str__(self) -> str:
        if self.needs_version:
            return f"{self.path} needs {self.needs_version} of {self.library}, which has no such version"
        if self.library:
            return f"{self.path} needs the library {self.library}, which nobody gives"
        names = ", ".join(self.symbols) + (f" and {self.more} more" if self.more else "")
        by = f"{self.of} here does not define" if self.of else "no library here defines"
        return f"{self.path} needs symbols that {by}: {names}"


@dataclass(frozen=True, kw_only=True)
class ComparedLibraries:
    """faults, how many libraries were read, and what could not be looked at, in words."""

    faults: tuple[LibraryFault, ...]
    compared: int
    unread: tuple[str, ...]


def compare_libraries(installation: Installation, distributions: Sequence[Distribution]) -> ComparedLibraries:
    """Read the libraries of every package."""
    return _Libraries(installation, distributions).compare()


class _Libraries:
    def __init__(self, installation: Installation, distributions: Sequence[Distribution]) -> None:
        self._installation = installation
        self._paths = tuple(_libraries(installation.sites))
        self._by_name: dict[str, Path] = {}
        self._imports: dict[Path, Imports] = {}
        self._unreadable: list[str] = []
        self._owner = dict(recorded_names(distributions))
        self._versions = {one.name: one.version for one in distributions}

    def compare(self) -> ComparedLibraries:
        for path in self._paths:
            self._read(path)
        for path, imports in self._imports.items():
            self._by_name.setdefault(path.name, path)
            if imports.soname:
                self._by_name.setdefault(imports.soname, path)
        faults = [*self._missing_libraries(), *self._missing_versions(), *self._missing_symbols()]
        unread = (
            [f"{len(self._unreadable)} libraries could not be read, such as {self._unreadable[0]}"]
            if self._unreadable
            else []
        )
        absent = sorted(
            {name for item in self._imports.values() for name in item.needed if self._is_ascend(name)}
        )
        if absent:
            unread.append(f"CANN or NNAL is not here, so {', '.join(absent[:4])} were not compared")
        return ComparedLibraries(faults=tuple(faults), compared=len(self._imports), unread=tuple(unread))

    def _read(self, path: Path) -> None:
        try:
            with SharedObject(path) as library:
                self._imports[path] = library.imports()
        except InputError as error:
            self._unreadable.append(f"{path.name}: {error.problems[0].why}")

    def _is_ascend(self, soname: str) -> bool:
        return bool(_ASCEND.fullmatch(soname)) and not self._is_found(soname)

    def _is_found(self, soname: str) -> bool:
        return soname in self._by_name or self._system(soname) is not None

    def _system(self, soname: str) -> Path | None:
        """The file of a library outside the packages."""
        if not self._installation.is_on_host:
            files = (folder / soname for folder in self._installation.libraries)
            return next((file for file in files if file.is_file()), None)
        folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        for folder in filter(None, folders):
            if (Path(folder) / soname).is_file():
                return Path(folder) / soname
        found = system_library(soname)
        # A system library in an unusual folder: it is there, and its tables are not compared.
        return found or (Path("/") if has_system_library(soname) else None)

    def _fault(self, path: Path, **what: object) -> LibraryFault:
        name = self._package(path)
        site = self._site(path)
        return LibraryFault(
            path=str(path.relative_to(site)),
            package=name,
            version=self._versions.get(name, ""),
            **what,  # type: ignore[arg-type]
        )

    def _site(self, path: Path) -> Path:
        return next((one for one in self._installation.sites if path.is_relative_to(one)), path.parent)

    def _package(self, path: Path) -> str:
        """The package that recorded the library, else the folder in which it is."""
        owner = self._owner.get(path.name)
        return owner.name if owner else path.relative_to(self._site(path)).parts[0]

    def _missing_libraries(self) -> Iterator[LibraryFault]:
        """Libraries that are needed and not there.

        Certain if a package of this environment recorded the library, or `import` of torch loads it.
        """
        loaded = self._always_loaded()
        for path, imports in self._imports.items():
            for soname in imports.needed:
                if self._is_found(soname) or _ASCEND.fullmatch(soname):
                    continue
                owner = self._owner.get(soname)
                yield self._fault(
                    path,
                    library=soname,
                    of=owner.name if owner else "",
                    certain=owner is not None or path in loaded,
                )

    def _always_loaded(self) -> frozenset[Path]:
        """The libraries that the root modules load, directly or through others."""
        queue = [path for path in self._imports if _ROOT_MODULE.search(path.as_posix())]
        seen = set(queue)
        while queue:
            needed = self._imports[queue.pop()].needed
            paths = [self._by_name[name] for name in needed if name in self._by_name]
            queue += [path for path in paths if path not in seen]
            seen.update(paths)
        return frozenset(seen)

    def _missing_versions(self) -> Iterator[LibraryFault]:
        """Symbol versions (GLIBC_2.34, CXXABI_1.3.13) that the library itself does not have."""
        given: dict[str, frozenset[str]] = {}
        for path, imports in self._imports.items():
            for soname, version in imports.needed_versions:
                if soname not in given:
                    given[soname] = self._given_versions(soname)
                if given[soname] and version not in given[soname]:
                    yield self._fault(path, library=soname, needs_version=version)

    def _given_versions(self, soname: str) -> frozenset[str]:
        place = self._by_name.get(soname) or self._system(soname)
        if place is None or not place.is_file():
            return frozenset()
        try:
            with SharedObject(place) as library:
                return library.given_versions()
        except InputError:
            return frozenset()

    def _missing_symbols(self) -> Iterator[LibraryFault]:
        wanted: dict[str, list[Path]] = {}
        without_cann = {
            self._package(path)
            for path, imports in self._imports.items()
            if any(map(self._is_ascend, imports.needed))
        }
        for path, imports in self._imports.items():
            is_open = self._package(path) in without_cann
            complete = not is_open and all(map(self._is_found, imports.needed))
            for name, soname in imports.undefined.items():
                # A symbol with a version belongs to that library, whose versions were compared.
                if soname or _INTERPRETER.match(name):
                    continue
                if (complete and imports.needed) or self._must_be_in_libtorch(name):
                    wanted.setdefault(name, []).append(path)
        for place in [*self._paths, *self._needed_system_libraries()]:
            if not wanted:
                return
            try:
                with SharedObject(place) as library:
                    wanted = {name: users for name, users in wanted.items() if not library.defines(name)}
            except InputError:
                continue
        by_path: dict[Path, list[str]] = {}
        for name, users in wanted.items():
            for path in users:
                by_path.setdefault(path, []).append(name)
        for path, names in by_path.items():
            of = "torch" if any(map(self._must_be_in_libtorch, names)) else ""
            yield self._fault(
                path,
                symbols=tuple(sorted(names)[:_MOST_SYMBOLS]),
                more=max(0, len(names) - _MOST_SYMBOLS),
                of=of,
                certain=bool(of) or bool(_MODULE.search(path.name)),
            )

    def _must_be_in_libtorch(self, name: str) -> bool:
        has_torch = "libc10.so" in self._by_name and "libtorch_cpu.so" in self._by_name
        return has_torch and bool(_LIBTORCH.match(name))

    def _needed_system_libraries(self) -> Iterable[Path]:
        """The libraries of the system that any library here needs, with those that they need."""
        found: dict[Path, None] = {}
        queue = sorted({name for item in self._imports.values() for name in item.needed})
        queue += ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
        seen = set(queue)
        while queue:
            name = queue.pop()
            place = None if name in self._by_name else self._system(name)
            if place is None or not place.is_file():
                continue
            found[place] = None
            try:
                with SharedObject(place) as library:
                    needed = library.imports().needed
            except InputError:
                continue
            queue += [one for one in needed if one not in seen]
            seen.update(needed)
        return found


def _libraries(sites: Iterable[Path]) -> Iterator[Path]:
    """The ELF files below these folders. Symbolic links are left out: their targets are there, too."""
    for site in sites:
        for folder, _folders, files in os.walk(site):
            for name in sorted(files):
                if ".so" not in name:
                    continue
                path = Path(folder) / name
                try:
                    if path.is_symlink() or not path.is_file():
                        continue
                    with path.open("rb") as stream:
                        if stream.read(4) == _ELF:
                            yield path
                except OSError:
                    continue

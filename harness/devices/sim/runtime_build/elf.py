"""Reads which libraries and symbols a 64-bit little-endian ELF shared object needs and defines.

It reads only what the dynamic loader uses (program headers, dynamic section, hash tables), so stripped and
patched libraries work. pyelftools finds the same symbols, but takes 0.34 s instead of 0.02 s for
libtorch_npu.so and 1.8 s instead of 0.004 s for libtorch_cpu.so. Format: System V ABI, generic part, with the
GNU extensions.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from harness.errors import InputError, Location

MACHINES = {62: "x86_64", 183: "aarch64"}

_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_DYNSYM = 11
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 1, 4, 5, 6, 10, 14
_DT_GNU_HASH, _DT_VERSYM, _DT_VERDEF, _DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_SHN_UNDEF, _STB_WEAK, _VER_FLG_WEAK = 0, 2, 2
_SYMBOL_BYTES = 24
_MAX_NAME_BYTES = 1 << 16
_MAX_VERSIONS = 1 << 12


class _CorruptError(Exception):
    """The bytes are not a readable shared object; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What a shared object needs from other ones.

    needed: the sonames in DT_NEEDED, in order. undefined: strong undefined symbol -> the soname to which its
    symbol version belongs, "" when it has no version. versions: strong undefined symbol with a version -> the
    name of the version. needed_versions: each soname with a version that it must have, such as GLIBC_2.34.
    """

    machine: str
    soname: str
    needed: tuple[str, ...]
    undefined: Mapping[str, str]
    versions: Mapping[str, str]
    needed_versions: tuple[tuple[str, str], ...] = ()


class SharedObject:
    """An open shared object; use it as a context manager. InputError when it is not readable as ELF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise _unreadable(path, str(error)) from error
        try:
            self.machine = self._read_header()
            self._dynamic = self._read_dynamic()
        except _CorruptError as error:
            self._data.close()
            raise _unreadable(path, str(error)) from error

    def __enter__(self) -> SharedObject:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def imports(self) -> Imports:
        """Everything that this object needs from other ones; InputError when a table is corrupt."""
        try:
            soname = self._dynamic.get(_DT_SONAME)
            undefined = list(self._undefined())
            return Imports(
                machine=self.machine,
                soname=self._name(soname[0]) if soname else "",
                needed=tuple(self._name(offset) for offset in self._dynamic.get(_DT_NEEDED, ())),
                undefined={name: file for name, file, _version in undefined},
                versions={name: version for name, _file, version in undefined if version},
                needed_versions=tuple(self._needed_versions(weak=False).values()),
            )
        except _CorruptError as error:
            raise _unreadable(self.path, str(error)) from error

    def defines(self, name: str) -> bool:
        """Whether the loader would find `name` in this object, by the object's hash table."""
        try:
            if _DT_GNU_HASH in self._dynamic:
                return self._gnu_lookup(name.encode())
            if _DT_HASH in self._dynamic:
                return self._sysv_lookup(name.encode())
        except _CorruptError as error:
            raise _unreadable(self.path, str(error)) from error
        return False

    def given_versions(self) -> frozenset[str]:
        """The symbol versions that this object defines, such as GLIBC_2.34; InputError when corrupt."""
        try:
            table = self._dynamic.get(_DT_VERDEF)
            return frozenset(self._definitions(self._offset(table[0]))) if table else frozenset()
        except _CorruptError as error:
            raise _unreadable(self.path, str(error)) from error

    def _definitions(self, position: int) -> Iterator[str]:
        for _ in range(_MAX_VERSIONS):
            _version, _flags, _number, _count, _hash, first, following = self._unpack("<HHHHIII", position)
            yield self._name(self._unpack("<II", position + first)[0])
            if not following:
                return
            position += following
        raise _CorruptError(f"it defines more than {_MAX_VERSIONS} symbol versions")

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        if not 0 <= offset <= len(self._data) - struct.calcsize(layout):
            raise _CorruptError(f"it ends before offset {offset}")
        return struct.unpack_from(layout, self._data, offset)

    def _read_header(self) -> str:
        if self._data[:4] != b"\x7fELF":
            raise _CorruptError("it does not begin with the ELF magic number")
        if self._data[4:6] != b"\x02\x01":
            raise _CorruptError("it is not a 64-bit little-endian object")
        kind, machine = self._unpack("<HH", 16)
        if kind != 3:
            raise _CorruptError(f"its type is {kind}, not a shared object")
        if machine not in MACHINES:
            raise _CorruptError(f"its machine {machine} is neither x86_64 nor aarch64")
        return MACHINES[machine]

    def _read_dynamic(self) -> dict[int, list[int]]:
        (table,) = self._unpack("<Q", 32)
        size, count = self._unpack("<HH", 54)
        self._loads: list[tuple[int, int, int]] = []
        dynamic: tuple[int, int] | None = None
        for index in range(count):
            kind, _flags, offset, address, _physical, length = self._unpack("<IIQQQQ", table + index * size)
            if kind == _PT_LOAD:
                self._loads.append((address, length, offset))
            elif kind == _PT_DYNAMIC:
                dynamic = (offset, length)
        if dynamic is None:
            raise _CorruptError("it has no dynamic section")
        entries: dict[int, list[int]] = {}
        for position in range(dynamic[0], dynamic[0] + dynamic[1], 16):
            tag, value = self._unpack("<QQ", position)
            if tag == 0:
                break
            entries.setdefault(tag, []).append(value)
        if _DT_STRTAB not in entries or _DT_SYMTAB not in entries:
            raise _CorruptError("its dynamic section has no string table or no symbol table")
        self._strings = self._offset(entries[_DT_STRTAB][0])
        self._string_bytes = entries.get(_DT_STRSZ, [0])[0]
        self._symbols = self._offset(entries[_DT_SYMTAB][0])
        return entries

    def _offset(self, address: int) -> int:
        for start, length, offset in self._loads:
            if start <= address < start + length:
                return address - start + offset
        raise _CorruptError(f"address {address:#x} is in no loaded segment")

    def _name(self, offset: int) -> str:
        start = self._strings + offset
        if offset >= self._string_bytes or start >= len(self._data):
            raise _CorruptError(f"string {offset} is outside the string table")
        end = self._data.find(b"\0", start, start + _MAX_NAME_BYTES)
        if end < 0:
            raise _CorruptError(f"string {offset} has no end")
        return self._data[start:end].decode("utf-8", "replace")

    def _symbol(self, index: int) -> tuple[int, ...]:
        return self._unpack("<IBBHQQ", self._symbols + index * _SYMBOL_BYTES)

    def _undefined(self) -> Iterator[tuple[str, str, str]]:
        """Each strong undefined symbol: its name, the soname to which its version belongs, the version."""
        versions = self._needed_versions()
        table = self._dynamic.get(_DT_VERSYM)
        version_table = self._offset(table[0]) if table else None
        for index in range(1, self._undefined_bound()):
            name, info, _other, section, _value, _size = self._symbol(index)
            if section != _SHN_UNDEF or info >> 4 == _STB_WEAK or not name:
                continue
            file, version = "", ""
            if version_table is not None:
                (number,) = self._unpack("<H", version_table + 2 * index)
                file, version = versions.get(number & 0x7FFF, ("", ""))
            yield self._name(name), file, version

    def _undefined_bound(self) -> int:
        """One more than the index of the last symbol that can be undefined."""
        if _DT_GNU_HASH in self._dynamic:
            # Undefined symbols come before those of the GNU table. An empty table does not give their number.
            buckets, first, bloom, _shift = self._unpack("<4I", self._offset(self._dynamic[_DT_GNU_HASH][0]))
            start = self._offset(self._dynamic[_DT_GNU_HASH][0]) + 16 + bloom * 8
            if buckets and any(self._data[start : start + 4 * buckets]):
                return first
        if _DT_HASH in self._dynamic:
            return self._unpack("<2I", self._offset(self._dynamic[_DT_HASH][0]))[1]
        return self._section_symbols()

    def _section_symbols(self) -> int:
        (table,) = self._unpack("<Q", 40)
        size, count = self._unpack("<HH", 58)
        for index in range(count):
            position = table + index * size
            if self._unpack("<I", position + 4)[0] == _SHT_DYNSYM:
                return self._unpack("<Q", position + 32)[0] // _SYMBOL_BYTES
        raise _CorruptError("no table gives the number of its symbols")

    def _needed_versions(self, *, weak: bool = True) -> dict[int, tuple[str, str]]:
        """Number of a symbol version -> the soname to which it belongs, and its name.

        weak: include versions without which the loader only warns.
        """
        table = self._dynamic.get(_DT_VERNEED)
        versions: dict[int, tuple[str, str]] = {}
        if not table:
            return versions
        position = self._offset(table[0])
        for _ in range(_MAX_VERSIONS):
            _version, count, file, first, following = self._unpack("<HHIII", position)
            entry = position + first
            for _ in range(count):
                _hash, flags, other, name, step = self._unpack("<IHHII", entry)
                if weak or not flags & _VER_FLG_WEAK:
                    versions[other & 0x7FFF] = (self._name(file), self._name(name))
                if not step:
                    break
                entry += step
            if not following:
                return versions
            position += following
        raise _CorruptError(f"it has more than {_MAX_VERSIONS} tables of symbol versions")

    def _gnu_lookup(self, name: bytes) -> bool:
        table = self._offset(self._dynamic[_DT_GNU_HASH][0])
        buckets, first, bloom, shift = self._unpack("<4I", table)
        if not buckets or not bloom:
            return False
        value = _gnu_hash(name)
        (word,) = self._unpack("<Q", table + 16 + value // 64 % bloom * 8)
        if not word >> value % 64 & word >> (value >> shift) % 64 & 1:
            return False
        bucket_table = table + 16 + bloom * 8
        (index,) = self._unpack("<I", bucket_table + value % buckets * 4)
        if index < first:
            return False
        chain = bucket_table + buckets * 4 - first * 4
        while True:
            (entry,) = self._unpack("<I", chain + index * 4)
            if entry | 1 == value | 1 and self._is_definition(index, name):
                return True
            if entry & 1:
                return False
            index += 1

    def _sysv_lookup(self, name: bytes) -> bool:
        table = self._offset(self._dynamic[_DT_HASH][0])
        buckets, chains = self._unpack("<2I", table)
        if not buckets:
            return False
        (index,) = self._unpack("<I", table + 8 + _sysv_hash(name) % buckets * 4)
        for _ in range(chains):
            if index == 0:
                return False
            if self._is_definition(index, name):
                return True
            (index,) = self._unpack("<I", table + 8 + (buckets + index) * 4)
        return False

    def _is_definition(self, index: int, name: bytes) -> bool:
        offset, _info, _other, section, _value, _size = self._symbol(index)
        start = self._strings + offset
        return section != _SHN_UNDEF and self._data[start : start + len(name) + 1] == name + b"\0"


def read_imports(path: Path) -> Imports:
    """What a shared object needs from other ones; InputError when it is not readable as ELF."""
    with SharedObject(path) as library:
        return library.imports()


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        "this shared library cannot be read",
        where=Location(path),
        why=why,
        fix="install the package that contains it again",
    )


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _sysv_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value

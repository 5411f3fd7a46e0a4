"""Reads lists of packages: `pip freeze`, `pip list`, requirements files, and the output of collect_env.

A line that is not understood is counted and named, never guessed. Options of requirements files are not
followed: `-r` and `-c` would read files that the list names, and `--index-url` would ask servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement

from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage
from harness.devices.host.soc import soc_family
from harness.matrix.cells.pins import normal_package
from harness.sources.packages.release_sources import exact_version

MAX_BYTES = 8 << 20
_MOST_UNREAD = 5
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Lines of collect_env of PyTorch, vLLM and vllm-ascend: `Versions of relevant libraries:` and what follows.
_LIBRARY = re.compile(r"\[(?:pip3?|conda)\]\s+([A-Za-z0-9][\w.-]*)(?:==|\s+)v?([0-9][\w.+!-]*)")
_FIELDS = {
    "torch": re.compile(r"^PyTorch version:\s*v?([0-9][\w.+-]*)", re.MULTILINE),
    "vllm": re.compile(r"^vLLM Version:\s*v?([0-9][\w.+-]*)", re.MULTILINE),
    "vllm-ascend": re.compile(r"^vLLM Ascend Version:\s*v?([0-9][\w.+-]*)", re.MULTILINE),
}
_PYTHON = re.compile(r"^Python version:\s*([0-9]+\.[0-9]+(?:\.[0-9]+)?)", re.MULTILINE)
_CANN = re.compile(r"package_name=Ascend-cann-toolkit\s+version=(\S+)")
_CANN_LINE = re.compile(r"^CANN(?:\s+version)?\s*[:=]\s*v?([0-9]\S*)", re.MULTILINE | re.IGNORECASE)
_DRIVER = re.compile(r"^\|?\s*npu-smi\s+\S+\s+Version:\s*([0-9][\w.]*)", re.MULTILINE)
_ARCH = re.compile(r"^Architecture:\s*(\S+)", re.MULTILINE)
_CHIP = re.compile(r"^\|\s*\d+\s+(910\w*|Ascend910\w*)\s*\|", re.MULTILINE)
#: A table of `pip list`: a name, blanks, a version, and perhaps the folder of an editable installation.
_TABLE = re.compile(r"^([A-Za-z0-9][\w.-]*)\s+v?([0-9][\w.+!-]*)(?:\s+\S.*)?$")
_HEADING = re.compile(r"^(?:Package\s+Version.*|[- ]+)$")
_COMMIT = re.compile(r"@([0-9a-f]{7,40})(?:#|$)")
_TAG = re.compile(r"@(?:core_)?v?([0-9]+\.[0-9][\w.]*)(?:#|$)")
_ARCHIVE = re.compile(r"(?:^|/)([A-Za-z0-9][\w.]*)-([0-9][\w.+!]*?)(?:-[^/]*\.whl|\.tar\.gz|\.zip)")
_EGG = re.compile(r"#(?:.*&)?egg=([A-Za-z0-9][\w.-]*)")
_EDITABLE_NOTE = re.compile(r"^# Editable .*\(([A-Za-z0-9][\w.-]*)==([0-9][\w.+!-]*)\)")


@dataclass(kw_only=True)
class _Reading:
    """What the lines read so far state."""

    packages: dict[str, StatedPackage] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, version: str, where: str, commit: str = "") -> None:
        name = normal_package(name)
        known = self.packages.get(name)
        if known is not None and known.version != version:
            self.unread.append(f"{where}: {name} {version}, but {known.where} has {known.version}")
            return
        self.packages.setdefault(name, StatedPackage(name=name, version=version, commit=commit, where=where))


def read_list(data: bytes, where: str) -> Inventory:
    """The inventory of a text. It has no packages if the text is none of the known lists."""
    text = _ANSI.sub("", data[:MAX_BYTES].decode("utf-8-sig", "replace")).replace("\r", "")
    if "\x00" in text[:200]:
        text = _ANSI.sub("", data[:MAX_BYTES].decode("utf-16", "replace")).replace("\r", "")
    reading = _Reading()
    if len(data) > MAX_BYTES:
        reading.unread.append(f"only the first {MAX_BYTES >> 20} MiB were read")
    if _LIBRARY.search(text) or "Collecting environment information" in text or _PYTHON.search(text):
        return _collect_env(text, where, reading)
    for number, line in _logical_lines(text):
        _read_line(line.strip(), f"line {number}", reading)
    is_requirements = bool(reading.ranges) or any(
        re.match(r"\s*(?:-r|-c|--\w)", line) for line in text.splitlines()
    )
    kind = SourceKind.REQUIREMENTS if is_requirements else SourceKind.FREEZE
    return _inventory(kind, where, reading)


def _inventory(kind: SourceKind, where: str, reading: _Reading, **facts: str) -> Inventory:
    more = len(reading.unread) - _MOST_UNREAD
    return Inventory(
        kind=kind,
        where=where,
        packages=reading.packages,
        ranges=tuple(reading.ranges),
        unread=(*reading.unread[:_MOST_UNREAD], *([f"{more} more lines"] if more > 0 else [])),
        **facts,
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; a backslash at the end joins a line with the next one."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield start, joined + line
        joined, start = "", 0
    if joined:
        yield start, joined


def _read_line(line: str, where: str, reading: _Reading) -> None:
    note = _EDITABLE_NOTE.match(line)
    if note:
        reading.add(note[1], note[2], where)
    line = re.sub(r"(?:^|\s)#.*$", "", line) if "#egg=" not in line else line
    line = re.sub(r"\s+--hash=\S+", "", line).strip()
    if not line or _HEADING.match(line):
        return
    if line.startswith(("-e ", "--editable")):
        _read_repository(line.split(None, 1)[-1], where, reading)
    elif line.startswith("-"):
        reading.unread.append(f"{where}: the option {line.split()[0].partition('=')[0]} is not followed")
    elif table := _TABLE.match(line):
        reading.add(table[1], table[2], where)
    else:
        _read_requirement(line, where, reading)


def _read_requirement(line: str, where: str, reading: _Reading) -> None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        if re.match(r"(?:git\+|https?://|file:|\.{0,2}/)", line):
            _read_repository(line, where, reading)
        else:
            reading.unread.append(f"{where}: {line[:80]!r} is not a requirement")
        return
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return
    version = exact_version(requirement)
    if requirement.url:
        _read_repository(requirement.url, where, reading, requirement.name)
    elif version:
        reading.add(requirement.name, version, where)
    else:
        requirement.marker = None
        reading.ranges.append(str(requirement))


def _read_repository(address: str, where: str, reading: _Reading, name: str = "") -> None:
    """A package of a repository or a wheel: the version is that of the tag or of the file's name."""
    egg = _EGG.search(address)
    name = name or (egg[1] if egg else "")
    address = address.replace("%2B", "+").replace("%2b", "+")
    wheel = _ARCHIVE.search(address)
    commit, tag = _COMMIT.search(address), _TAG.search(address)
    if wheel and not address.startswith("git+"):
        reading.add(name or wheel[1], wheel[2], where)
    elif name and tag:
        reading.add(name, tag[1], where)
    elif name and commit and normal_package(name) in reading.packages:
        known = reading.packages[normal_package(name)]
        reading.packages[known.name] = StatedPackage(
            name=known.name, version=known.version, commit=commit[1], where=known.where
        )
    else:
        what = name or "a package"
        reading.unread.append(f"{where}: {what} comes from a repository or folder and has no version here")


def _collect_env(text: str, where: str, reading: _Reading) -> Inventory:
    """The inventory of what collect_env prints. "N/A" and similar words are no versions."""
    for match in _LIBRARY.finditer(text):
        reading.add(match[1], match[2], f"line {text.count(chr(10), 0, match.start()) + 1}")
    for name, pattern in _FIELDS.items():
        found = pattern.search(text)
        if found and name not in reading.packages:
            reading.add(name, found[1], f"line {text.count(chr(10), 0, found.start()) + 1}")
    chip = _first(_CHIP, text)
    return _inventory(
        SourceKind.COLLECT_ENV,
        where,
        reading,
        python=_first(_PYTHON, text),
        arch=_first(_ARCH, text),
        cann=_first(_CANN, text) or _first(_CANN_LINE, text),
        driver=_first(_DRIVER, text),
        soc=soc_family(chip) if chip else "",
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].rstrip(",;") if found else ""

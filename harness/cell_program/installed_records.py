"""Compares the files of a newly installed environment with the RECORD files and with our patches.

The host does so for a virtual environment, and a program in its container for an image.
https://packaging.python.org/en/latest/specifications/recording-installed-packages/ defines RECORD: it has the
SHA-256 and the size of every installed file, except of itself, of signatures and of compiled modules.
"""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RECORD = "RECORD"
# The files of a distribution that may have no digest.
WITHOUT_DIGEST = (RECORD, "RECORD.jws", "RECORD.p7s")
COMPILED = ".pyc"
# A publisher may edit it after the build: see `harness.sources.packages.wheel_record`.
METADATA = ".dist-info/METADATA"
CACHE_FOLDER = "__pycache__"


@dataclass(frozen=True, kw_only=True)
class InstalledFile:
    """A file of an environment. digest: SHA-256 in hexadecimal, "" for a symbolic link or a special file."""

    digest: str
    size: int


@dataclass(frozen=True)
class RecordedFile:
    """A line of a RECORD file. digest: SHA-256 in hexadecimal, "" without one. size: None without one."""

    owner: str
    digest: str
    size: int | None


def record_problems(
    files: Mapping[str, InstalledFile],
    site_packages: Path,
    *,
    patched: Mapping[str, Mapping[str, str | None]],
) -> list[str]:
    """What is wrong with the files of an environment, one sentence per file; empty if all is right.

    files: absolute path -> file, without those of the empty virtual environment, which belong to no
    distribution. patched: path below site_packages -> digests before (`pre`) and after (`post`) patching;
    None where the file does not exist.
    """
    recorded, problems = _read_records(files, site_packages)
    patches = {os.path.normpath(site_packages / name): digests for name, digests in patched.items()}
    for path, lines in recorded.items():
        problems += _line_problems(path, lines, files.get(path), patches.get(path))
    for path in files.keys() - recorded.keys():
        if not patches.get(path, {}).get("post"):
            problems.append(f"{path} is installed, but no RECORD lists it.")
    for path, digests in patches.items():
        entry = files.get(path)
        if (entry.digest if entry else None) != digests.get("post"):
            problems.append(f"{path} is not the patched file.")
    return sorted(problems)


def _line_problems(
    path: str,
    lines: list[RecordedFile],
    entry: InstalledFile | None,
    patch: Mapping[str, str | None] | None,
) -> list[str]:
    """What is wrong with one file that RECORD files list."""
    owners = ", ".join(dict.fromkeys(line.owner for line in lines))
    with_digest = [line for line in lines if line.digest]
    if not with_digest and not path.endswith((*WITHOUT_DIGEST, COMPILED)):
        return [f"{path} has no SHA-256 in RECORD of {owners}."]
    if patch is not None:
        # Its present content is compared with the patches, its former content with RECORD.
        matches = any(line.digest == patch.get("pre") for line in with_digest)
        return [] if matches else [f"{path} of {owners} was patched, but RECORD lists another original."]
    if entry is None:
        return [] if path.endswith(COMPILED) else [f"{path} of {owners} is missing."]
    if not entry.digest:
        return [f"{path} of {owners} is not a regular file."]
    # Some distributions share a file, for example a package's empty __init__.py.
    if with_digest and not path.endswith(METADATA) and not any(_fits(line, entry) for line in with_digest):
        return [f"{path} is not the file that RECORD of {owners} lists."]
    return []


def _fits(line: RecordedFile, entry: InstalledFile) -> bool:
    return line.digest == entry.digest and line.size in (None, entry.size)


def _read_records(
    files: Collection[str], site_packages: Path
) -> tuple[dict[str, list[RecordedFile]], list[str]]:
    """Absolute path -> the lines that list it, of all distributions; and the problems of RECORD files."""
    recorded: dict[str, list[RecordedFile]] = {}
    problems: list[str] = []
    for folder in sorted(site_packages.glob("*.dist-info")):
        owner = folder.name.removesuffix(".dist-info")
        if str(folder / RECORD) not in files:
            problems.append(f"{folder} has no RECORD file.")
            continue
        try:
            for path, line in _lines(folder / RECORD, owner, site_packages):
                recorded.setdefault(path, []).append(line)
        except (OSError, ValueError, csv.Error) as error:
            problems.append(f"{folder / RECORD} cannot be read: {error}.")
    return recorded, problems


def _lines(record: Path, owner: str, site_packages: Path) -> Iterator[tuple[str, RecordedFile]]:
    for row in csv.reader(record.read_text("utf-8").splitlines()):
        if not row:
            continue
        name, digest, size = (*row, "", "")[:3]
        yield (
            os.path.normpath(site_packages / name),
            RecordedFile(owner, _sha256(digest), int(size) if size else None),
        )


def _sha256(text: str) -> str:
    """`sha256=` with URL-safe base64 as hexadecimal; "" for another algorithm, which is not accepted."""
    algorithm, _, value = text.partition("=")
    if algorithm != "sha256":
        return ""
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()

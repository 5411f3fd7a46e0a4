"""Metadata in the archives of locked packages that uv does not take into account.

uv ignores upper limits of Requires-Python and reads requirements from the package index. pip enforces these
limits, and the installed package has the metadata of its archive.
"""

from __future__ import annotations

import email
import re
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from harness.compat.resolve.replaced_requirements import ReleaseMetadata
from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.packages.release_sources import SDIST_METADATA
from harness.sources.packages.wheel_record import DESCRIPTION, RECORD, has_digest, recorded_files

BUILD_INFO = "vllm_ascend/_build_info.py"
# `__device_type__ = 'A2'` since vllm-ascend 0.12, `__soc_version__ = 'ASCEND910B1'` before.
BUILT_FOR = re.compile(r"__(?:device_type|soc_version)__\s*=\s*['\"](\w+)['\"]")


@dataclass(frozen=True, kw_only=True)
class ArchiveMetadata:
    """The metadata in a package's archive.

    release: what it requires. is_known: whether the archive has metadata.
    built_for: the chip that the kernels are built for, "" for any chip or if it is unknown.
    differences: descriptions of requirements that only the archive or only the index has.
    was_edited: whether the RECORD of the wheel lists another METADATA.
    """

    release: ReleaseMetadata
    is_known: bool
    built_for: str
    differences: tuple[str, ...]
    was_edited: bool = False

    def refusals(self, python: str) -> tuple[str, ...]:
        """Why pip refuses the archive, or installs something other than what was locked."""
        refusals = []
        name, version, requires_python = self.release.name, self.release.version, self.release.requires_python
        if requires_python and not _allows(requires_python, python):
            refusals.append(
                f"{name} {version} requires Python {requires_python}, but the cell has Python "
                f"{python}. uv installs the package nevertheless, pip refuses."
            )
        if self.differences:
            refusals.append(
                f"{name} {version}: the metadata in the archive differs from the index: "
                f"{'; '.join(self.differences)}."
            )
        return tuple(refusals)

    def remarks(self) -> tuple[str, ...]:
        """What a user should know about the archive."""
        found = []
        if self.built_for:
            found.append(
                f"The wheel of {self.release.name} {self.release.version} on the index is built for "
                f"{self.built_for} only; for other chips, build it from source or use the vendor's variant "
                "index."
            )
        if self.was_edited:
            found.append(
                f"The METADATA in the wheel of {self.release.name} {self.release.version} was edited after "
                "the build: the RECORD of the wheel lists another one."
            )
        return tuple(found)


def read_archive_metadata(name: str, version: str, sources: Path, on_index: bytes = b"") -> ArchiveMetadata:
    """Read the metadata in a zip of sources; InputError when it cannot be read.

    on_index: the metadata that the index serves for this archive; empty if it serves none.
    """
    try:
        with zipfile.ZipFile(sources) as archive:
            members = archive.namelist()
            own = next(filter(DESCRIPTION.fullmatch, members), "")
            was_edited = bool(own) and _was_edited(archive, own)
            own = own or (SDIST_METADATA if SDIST_METADATA in members else "")
            metadata = _message(archive.read(own)) if own else Message()
            build = archive.read(BUILD_INFO).decode("utf-8", "replace") if BUILD_INFO in members else ""
    except UNREADABLE as error:
        raise InputError("these sources cannot be read", where=Location(sources), why=str(error)) from error
    index = _message(on_index) if on_index else None
    built_for = BUILT_FOR.search(build)
    return ArchiveMetadata(
        release=ReleaseMetadata(
            name=name,
            version=version,
            requires=tuple(map(str, metadata.get_all("Requires-Dist", []))),
            requires_python=str(metadata["Requires-Python"] or ""),
        ),
        is_known=bool(own),
        built_for=built_for[1] if built_for else "",
        differences=_differences(metadata, index) if index else (),
        was_edited=was_edited,
    )


def _was_edited(archive: zipfile.ZipFile, metadata: str) -> bool:
    record = next(filter(RECORD.fullmatch, archive.namelist()), None)
    if record is None:
        return False
    digest, _size = recorded_files(archive.read(record)).get(metadata, ("", ""))
    return not has_digest(archive.read(metadata), digest)


def _message(data: bytes) -> Message:
    return email.message_from_string(data.decode("utf-8", "replace"))


def _allows(requires: str, python: str) -> bool:
    try:
        return SpecifierSet(requires).contains(python)
    except InvalidSpecifier:
        return True


def _differences(archive: Message, index: Message) -> tuple[str, ...]:
    in_archive, on_index = _requirements(archive), _requirements(index)
    found = [f"only the archive requires {text}" for text in sorted(in_archive - on_index)]
    found += [f"only the index requires {text}" for text in sorted(on_index - in_archive)]
    limits = [_normalized(str(metadata["Requires-Python"] or "")) for metadata in (archive, index)]
    if limits[0] != limits[1]:
        found.append(
            f"the archive requires Python {limits[0] or '(any)'}, the index Python {limits[1] or '(any)'}"
        )
    return tuple(found)


def _normalized(specifier: str) -> str:
    return ",".join(sorted(part.replace(" ", "") for part in specifier.split(",") if part.strip()))


def _requirements(metadata: Message) -> set[str]:
    return {_requirement(line) for line in metadata.get_all("Requires-Dist", [])}


def _requirement(line: str) -> str:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line
    # `compressed_tensors` and `compressed-tensors` are the same package.
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)

"""What the archives of a lock's packages say of themselves, which the resolver does not heed.

uv leaves upper limits of Requires-Python unheeded and takes requirements from the index. pip heeds the
limits, and what is installed is the archive.
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

from harness.errors import InputError, Location
from harness.sources.packages.release_sources import INDEX_METADATA

METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
BUILD_INFO = "vllm_ascend/_build_info.py"
# `__device_type__ = 'A2'` since vllm-ascend 0.12, `__soc_version__ = 'ASCEND910B1'` before.
BUILT_FOR = re.compile(r"__(?:device_type|soc_version)__\s*=\s*['\"](\w+)['\"]")


@dataclass(frozen=True, kw_only=True)
class ArchiveMetadata:
    """requires_python: "" for any. built_for: the chip its kernels are for, "" for all or unknown.

    differences: requirements that only the archive or only the index states, each with who states it.
    """

    name: str
    version: str
    requires_python: str
    built_for: str
    differences: tuple[str, ...]

    def refusals(self, python: str) -> tuple[str, ...]:
        """Why an installer that reads the archive refuses it, or installs something else than the lock."""
        said = []
        if self.requires_python and not _allows(self.requires_python, python):
            said.append(
                f"{self.name} {self.version} says it is for Python {self.requires_python}, and the cell has "
                f"{python}: uv installs it all the same, pip refuses."
            )
        if self.differences:
            said.append(
                f"{self.name} {self.version}: the archive's metadata is not the index's: "
                f"{'; '.join(self.differences)}."
            )
        return tuple(said)

    def remarks(self) -> tuple[str, ...]:
        """What a user should know of it."""
        if not self.built_for:
            return ()
        text = (
            f"The wheel of {self.name} {self.version} on the index is built for {self.built_for} only; "
            "other chips need their own build or the vendor's variant index."
        )
        return (text,)


def read_archive_metadata(name: str, version: str, sources: Path) -> ArchiveMetadata:
    """What a release's sources (see `published`) say; InputError when they cannot be read."""
    try:
        with zipfile.ZipFile(sources) as archive:
            members = archive.namelist()
            own = next((member for member in members if METADATA.fullmatch(member)), "")
            metadata = _message(archive.read(own)) if own else Message()
            index = _message(archive.read(INDEX_METADATA)) if INDEX_METADATA in members else None
            build = archive.read(BUILD_INFO).decode("utf-8", "replace") if BUILD_INFO in members else ""
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise InputError("these sources cannot be read", where=Location(sources), why=str(error)) from error
    built_for = BUILT_FOR.search(build)
    return ArchiveMetadata(
        name=name,
        version=version,
        requires_python=str(metadata["Requires-Python"] or ""),
        built_for=built_for[1] if built_for else "",
        differences=_differences(metadata, index) if index else (),
    )


def _message(data: bytes) -> Message:
    return email.message_from_string(data.decode("utf-8", "replace"))


def _allows(requires: str, python: str) -> bool:
    try:
        return SpecifierSet(requires).contains(python)
    except InvalidSpecifier:
        return True


def _differences(archive: Message, index: Message) -> tuple[str, ...]:
    own, theirs = _requirements(archive), _requirements(index)
    said = [f"only the archive wants {text}" for text in sorted(own - theirs)]
    said += [f"only the index wants {text}" for text in sorted(theirs - own)]
    limits = [_normal(str(metadata["Requires-Python"] or "")) for metadata in (archive, index)]
    if limits[0] != limits[1]:
        said.append(f"Python {limits[0] or 'any'} in the archive, {limits[1] or 'any'} on the index")
    return tuple(said)


def _normal(specifier: str) -> str:
    return ",".join(sorted(part.replace(" ", "") for part in specifier.split(",") if part.strip()))


def _requirements(metadata: Message) -> set[str]:
    return {_requirement(line) for line in metadata.get_all("Requires-Dist", [])}


def _requirement(line: str) -> str:
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return line
    # `compressed_tensors` here and `compressed-tensors` there are one package.
    wanted.name = canonicalize_name(wanted.name)
    return str(wanted)

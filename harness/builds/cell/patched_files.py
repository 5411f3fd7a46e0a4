"""Installs patched files into an environment, after checking that they replace the expected files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.digest import digest_bytes, digest_file
from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.tree import path_problem

# Source files are far smaller; this limit keeps a damaged archive from filling the disk.
LARGEST_FILE = 16 << 20


@dataclass(frozen=True, kw_only=True)
class _PatchedFile:
    data: bytes
    executable: bool


class MismatchError(Exception):
    """A file in the environment is not the one that a patch was made for. This is a failure of the cell."""


def install_patched(
    archive: Path, manifest: Mapping[str, Mapping[str, str | None]], root: Path
) -> dict[str, str]:
    """Write the archive's files below `root` (site-packages); returns path -> digest of the file on disk.

    manifest: path -> {"pre": digest of the file that the patch was made for, "post": digest of the patched
    file}; without `pre` the file is new, without `post` it is removed. Every file is checked before the first
    is written. MismatchError names the first file that differs; InputError for an archive that contradicts
    its manifest.
    """
    for name in manifest:
        if problem := path_problem(name):
            raise InputError(f"{name!r} cannot be installed", where=Location(archive), why=problem)
    new = _contents(archive, manifest)
    for name, expected in manifest.items():
        _require_pre(root, name, expected.get("pre"), expected.get("post"))
    for name, file in new.items():
        _replace(root / name, file)
    for name, expected in manifest.items():
        if not expected.get("post"):
            root.joinpath(name).unlink(missing_ok=True)
    return {name: _on_disk(root / name) for name in manifest}


def _contents(archive: Path, manifest: Mapping[str, Mapping[str, str | None]]) -> dict[str, _PatchedFile]:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = {info.filename: info for info in opened.infolist() if not info.is_dir()}
            patched = {name for name, expected in manifest.items() if expected.get("post")}
            if set(members) != patched:
                raise InputError(
                    "the archive of patched files contradicts its manifest",
                    where=Location(archive),
                    why=f"{min(set(members) ^ patched)} is in only one of them",
                )
            for name, info in members.items():
                if info.file_size > LARGEST_FILE:
                    raise InputError(f"{name} is too large for a source file", where=Location(archive))
            contents = {name: opened.read(info) for name, info in members.items()}
            executable = {name for name, info in members.items() if info.external_attr >> 16 & 0o100}
    except UNREADABLE as error:
        raise InputError(
            "the archive of patched files cannot be read", where=Location(archive), why=str(error)
        ) from error
    for name, data in contents.items():
        if digest_bytes(data) != manifest[name]["post"]:
            raise InputError(
                f"{name} has another digest than the manifest of patched files says", where=Location(archive)
            )
    return {name: _PatchedFile(data=data, executable=name in executable) for name, data in contents.items()}


def _require_pre(root: Path, name: str, pre: str | None, post: str | None) -> None:
    digest = _on_disk(root / name)
    if digest == (pre or "") or (digest and digest == post):
        return
    if not digest:
        raise MismatchError(f"{name}, which the patch changes, is not in the installed package")
    if not pre:
        raise MismatchError(f"{name}, which the patch adds, is in the installed package already")
    raise MismatchError(f"{name} in the installed package is not the file the patch was made for")


def _on_disk(path: Path) -> str:
    return digest_file(path) if path.is_file() else ""


def _replace(target: Path, file: _PatchedFile) -> None:
    """Write a new file and rename it, because the installed file may be a link into the installer's cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".patched-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(file.data)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        Path(name).chmod(mode | 0o111 if file.executable else mode & ~0o111)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

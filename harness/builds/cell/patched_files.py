"""Putting patched files into an environment, each only where the file it was made from lies."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from harness.digest import digest_bytes, digest_file
from harness.errors import InputError, Location

# A patched tree is source text; this is far above any and far below what fills a disk.
LARGEST_FILE = 16 << 20


class MismatchError(Exception):
    """A file in the environment is not the one a patch was made for. Says something of the cell."""


def install_patched(
    archive: Path, manifest: Mapping[str, Mapping[str, str | None]], root: Path
) -> dict[str, str]:
    """Write the archive's files below `root` (site-packages); path -> digest of what is now on disk.

    manifest: path -> {"pre": digest of the file the patch was made for, "post": of the patched one}; a
    missing `pre` means a new file, a missing `post` a removed one. Every file is checked before
    the first is written.
    MismatchError names the first that differs; InputError for an archive that is not what its manifest says.
    """
    for name in manifest:
        _require_inside(name, archive)
    new = _contents(archive, manifest)
    for name, expected in manifest.items():
        _require_pre(root, name, expected.get("pre"), expected.get("post"))
    for name, data in new.items():
        _replace(root / name, data)
    for name, expected in manifest.items():
        if not expected.get("post"):
            root.joinpath(name).unlink(missing_ok=True)
    return {name: _on_disk(root / name) for name in manifest}


def _contents(archive: Path, manifest: Mapping[str, Mapping[str, str | None]]) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = {info.filename: info for info in opened.infolist() if not info.is_dir()}
            wanted = {name for name, expected in manifest.items() if expected.get("post")}
            if set(members) != wanted:
                strange = min(set(members) ^ wanted)
                raise InputError(
                    "the patched files and their list differ", where=Location(archive), why=strange
                )
            for name, info in members.items():
                if info.file_size > LARGEST_FILE:
                    raise InputError(f"{name} is too large for source text", where=Location(archive))
            contents = {name: opened.read(name) for name in members}
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise InputError(
            "the archive of patched files cannot be read", where=Location(archive), why=str(error)
        ) from error
    for name, data in contents.items():
        if digest_bytes(data) != manifest[name]["post"]:
            raise InputError(f"{name} is not what the list of patched files says", where=Location(archive))
    return contents


def _require_inside(name: str, archive: Path) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise InputError(f"{name!r} would leave the environment", where=Location(archive))


def _require_pre(root: Path, name: str, pre: str | None, post: str | None) -> None:
    found = _on_disk(root / name)
    if found == (pre or "") or (found and found == post):
        return
    if not found:
        raise MismatchError(f"{name} is not in the installed package, and the patch changes it")
    if not pre:
        raise MismatchError(f"{name} is in the installed package already, and the patch adds it")
    raise MismatchError(f"{name} in the installed package is not the file the patch was made for")


def _on_disk(path: Path) -> str:
    return digest_file(path) if path.is_file() else ""


def _replace(target: Path, data: bytes) -> None:
    """Write beside and rename: the installer links files from its cache, which must not change."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".patched-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        Path(name).chmod(mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

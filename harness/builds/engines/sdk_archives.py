"""Files on their way into a container or out of an image: secrets, archives."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from harness.builds.engines.engine import LENT, Mount
from harness.builds.upkeep.temporary_folders import scratch


@contextlib.contextmanager
def secret_files(secrets: Mapping[str, bytes]) -> Iterator[list[Mount]]:
    """Secrets as files only this user can read, for as long as the build takes."""
    with scratch() as folder:
        mounts = []
        for name, data in secrets.items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_bytes(data)
            mounts.append(Mount(source=path, target=f"{LENT}/{name}"))
        yield mounts


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A tar of files by their paths from the root."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def unpack(file: Any, top: str, folder: Path) -> None:
    """What lies below `top` in a tar, into `folder`; links that lead outside are refused."""
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            relative = PurePosixPath(member.name).relative_to(top)
            if str(relative) == ".":
                continue
            member.name = str(relative)
            archive.extract(member, folder, filter="data")

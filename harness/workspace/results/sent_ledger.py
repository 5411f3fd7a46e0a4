"""Reads the file that `npu-matrix first-contact` writes on another host: a ledger in an archive."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from harness.errors import InputError, Location
from harness.ledger.store import FILE_NAME
from harness.workspace.open_ledger import ledger_file

#: A first contact has a few megabytes. Larger archives are not what they claim to be.
MOST_BYTES = 512 << 20
_MEMBERS = (FILE_NAME, "artifacts", "first-contact.json")


@contextlib.contextmanager
def opened_ledger(path: Path) -> Iterator[Path]:
    """The ledger file at `path`, which is a state folder, a ledger file, or an archive to unpack meanwhile.

    InputError if there is none, or if the archive is damaged, has other files or is too large.
    """
    if not path.is_file() or not tarfile.is_tarfile(path):
        yield ledger_file(path)
        return
    with tempfile.TemporaryDirectory(prefix="npu-matrix-sent-") as name:
        folder = Path(name)
        try:
            with tarfile.open(path) as archive:
                _unpack(archive, folder)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise InputError(
                "this archive cannot be read",
                where=Location(path),
                why=str(error),
                fix="ask for the file of `npu-matrix first-contact` again",
            ) from error
        yield ledger_file(folder)


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    total = 0
    for member in archive:
        top = PurePosixPath(member.name).parts[:1]
        if not member.isfile() or top not in [(name,) for name in _MEMBERS]:
            raise tarfile.ReadError(f"{member.name!r} does not belong to a first contact")
        total += member.size
        if total > MOST_BYTES:
            raise tarfile.ReadError(f"it has more than {MOST_BYTES >> 20} MiB")
        archive.extract(member, folder, filter="data")

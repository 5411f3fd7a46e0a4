"""The file of `npu-matrix first-contact`: a ledger in an archive, with a summary for people.

It is written on the host that was measured, and merged elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from harness.atomic_write import replace_bytes
from harness.errors import InputError, Location
from harness.ledger.merge_report import MergeReport
from harness.ledger.store import FILE_NAME, Ledger
from harness.serialisation import to_json
from harness.settings import Settings
from harness.sources.secrets.masking import Masker
from harness.sources.tar_members import write_member
from harness.workspace.open_ledger import ledger_file, open_ledger
from harness.workspace.results.foreign_secrets import ForeignSecrets

#: A first contact has a few megabytes. Larger archives are not what they claim to be.
MOST_BYTES = 512 << 20
SUMMARY = "first-contact.json"
#: What the archive has of a ledger.
_LEDGER = (FILE_NAME, "artifacts")


def write_sent_ledger(settings: Settings, summary: object, out: Path) -> MergeReport:
    """Write the file: the ledger of the state folder, and the summary, both without credentials.

    The report says which outcomes are in it, and which were left out because they contain credentials.
    """
    with tempfile.TemporaryDirectory(prefix="npu-matrix-contact-") as name:
        folder = Path(name)
        with open_ledger(settings):
            # Its journal is written back when it is closed.
            pass
        with Ledger.open(folder) as sent:
            report = sent.merge(settings.path("state") / FILE_NAME, ForeignSecrets())
        document = Masker.of_host(os.environ).json(to_json(summary))
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            _add(archive, SUMMARY, json.dumps(document, indent=2, ensure_ascii=False).encode())
            for kept in _LEDGER:
                for path in _files(folder / kept):
                    _add(archive, path.relative_to(folder).as_posix(), path.read_bytes())
    try:
        replace_bytes(out, stream.getvalue(), mode=0o644)
    except OSError as error:
        raise _cannot_write(out, error) from error
    return report


def ensure_writable(out: Path) -> None:
    """InputError if the file cannot be written; said before the measurements, which take minutes."""
    try:
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
        with tempfile.TemporaryFile(dir=out.absolute().parent):
            pass
    except OSError as error:
        raise _cannot_write(out, error) from error


def _cannot_write(out: Path, error: OSError) -> InputError:
    why = error.strerror or str(error)
    return InputError(f"cannot write {out}", why=why, fix="name another file with --out")


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file without the names and times of this host."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


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
        if not member.isfile() or top not in [(name,) for name in (*_LEDGER, SUMMARY)]:
            raise tarfile.ReadError(f"{member.name!r} does not belong to a first contact")
        total += member.size
        if total > MOST_BYTES:
            raise tarfile.ReadError(f"it has more than {MOST_BYTES >> 20} MiB")
        write_member(archive, member, folder)

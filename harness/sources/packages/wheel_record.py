"""What the RECORD of a wheel says about its files, compared with the files in the archive.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/ defines RECORD: it lists
every file with its digest and size, except for itself and for signatures. Installers do not compare it with
the archive, so they install whatever the archive contains.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import InputError, Location

MAX_RECORD_BYTES = 32 << 20
RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
#: A README that was replaced after the build harms nothing, as in torch_npu 2.5.1.post1 and 2.6.0, and
#: `resolve` compares the requirements with those on the index.
DESCRIPTION = re.compile(r"[^/]+\.dist-info/METADATA")
SIGNATURES = re.compile(r"[^/]+\.dist-info/RECORD\.(?:jws|p7s)")
ALGORITHMS = ("sha256", "sha384", "sha512")
#: pip and uv write compiled modules themselves.
COMPILED = ".pyc"


class ContradictoryWheelError(InputError):
    """A wheel does not contain the files that its RECORD lists. contradiction: how, as part of a sentence."""

    def __init__(self, contradiction: str, where: Location) -> None:
        super().__init__(
            f"this wheel is not used: {contradiction}",
            where=where,
            why="the archive was changed after it was built, or it is damaged",
            fix="use another release, or ask the publisher of the wheel to correct it",
        )
        self.contradiction = contradiction


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """The members of a wheel and their digests in the form `sha256=...`. where: the wheel, for messages."""

    digests: Mapping[str, str]
    where: Location

    def verified(self, member: str, data: bytes) -> bytes:
        """`data`; ContradictoryWheelError unless it is the content that RECORD lists for the member."""
        if not has_digest(data, self.digests[member]):
            raise _other_content(member, self.where)
        return data


def read_record(wheel: zipfile.ZipFile, where: Location) -> WheelRecord:
    """The RECORD of a wheel; ContradictoryWheelError if the archive has other files, or of other sizes.

    Contents are compared by `WheelRecord.verified`, because most of a remote wheel is not fetched.
    """
    infos = [info for info in wheel.infolist() if not info.is_dir()]
    members = {posixpath.normpath(info.filename): info for info in infos}
    if len(members) < len(infos):
        raise ContradictoryWheelError("it contains several files with one name", where)
    name = next(filter(RECORD.fullmatch, members), None)
    if name is None or members[name].file_size > MAX_RECORD_BYTES:
        raise ContradictoryWheelError("it has no RECORD, or one larger than any known", where)
    data = wheel.read(members[name])
    listed = recorded_files(data)
    for path in sorted(listed.keys() - members.keys()):
        if not path.endswith(COMPILED):
            raise ContradictoryWheelError(f"{path!r}, which its RECORD lists, is missing", where)
    digests = {members.pop(name).filename: digest_of(data)}
    for path, info in members.items():
        digest, size = listed.get(path, ("", ""))
        if DESCRIPTION.fullmatch(path) and info.file_size <= MAX_RECORD_BYTES:
            digest, size = digest_of(wheel.read(info)), ""
        if not digest and not SIGNATURES.fullmatch(path):
            raise ContradictoryWheelError(f"{path!r} has no digest in its RECORD", where)
        if size and size != str(info.file_size):
            raise _other_content(path, where)
        digests[info.filename] = digest
    return WheelRecord(digests=digests, where=where)


def _other_content(path: str, where: Location) -> ContradictoryWheelError:
    return ContradictoryWheelError(f"{path!r} is not the file that its RECORD lists", where)


def recorded_files(record: bytes) -> dict[str, tuple[str, str]]:
    """Path -> digest and size, as texts; "" where RECORD states none. ValueError if it is not CSV."""
    rows = csv.reader(io.StringIO(record.decode("utf-8", "replace")))
    try:
        padded = [(*row, "", "") for row in rows if row]
    except csv.Error as error:
        raise ValueError(f"RECORD: {error}") from error
    return {posixpath.normpath(path): (digest, size) for path, digest, size, *_rest in padded}


def digest_of(data: bytes) -> str:
    """The digest of a content as RECORD states it."""
    return f"sha256={_base64(hashlib.sha256(data).digest())}"


def has_digest(data: bytes, digest: str) -> bool:
    """Whether a content has this digest of RECORD; False for algorithms weaker than SHA-256."""
    algorithm, _, value = digest.partition("=")
    if algorithm not in ALGORITHMS:
        return False
    return _base64(hashlib.new(algorithm, data).digest()) == value.rstrip("=")


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

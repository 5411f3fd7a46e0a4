"""The errors with which Python's modules for zip and tar archives report that an archive is damaged.

Their documentation names only a part of them. The others come from the decompressors, from fields that are
out of range, and from members that claim to be encrypted or of an unknown format.
"""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib

UNREADABLE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)
# A Python can be built without lzma.
with contextlib.suppress(ImportError):
    from lzma import LZMAError

    UNREADABLE = (*UNREADABLE, LZMAError)

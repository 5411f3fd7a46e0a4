"""Recognises a full disk, in exceptions and in the messages of other programs such as uv, pip and docker."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

#: What to do, wherever it happens.
FIX = (
    "free space on that disk (`npu-matrix cleanup --dry-run` lists what can be removed), or choose other "
    "folders with --state, --cache, --reports, UV_CACHE_DIR or TMPDIR; then run again"
)
_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
_TEXT = re.compile(
    r"no space left on|disk quota exceeded|\bENOSPC\b|\bEDQUOT\b"
    rf"|\b(?:os error |errno )(?:{errno.ENOSPC}|{errno.EDQUOT})\b"
    r"|(?:disk|file ?system|device|volume) (?:is |was )?full\b"
    r"|(?:not enough|insufficient) (?:free )?(?:disk )?space|not enough space on the disk",
    re.IGNORECASE,
)
#: Python's message if it could write to no candidate for the temporary folder, without the reason.
_NO_TEMPORARY_FOLDER = "No usable temporary directory"


def says_disk_full(text: str) -> bool:
    """Whether a program's message says that a disk or a quota is full."""
    return _TEXT.search(text) is not None


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk or quota caused the error, directly or through its causes."""
    return any(_is_disk_full(one) for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_disk_full(error: BaseException) -> bool:
    if not isinstance(error, OSError):
        # SQLite, pygit2 and others have only the text.
        try:
            return says_disk_full(str(error))
        except Exception:  # noqa: BLE001 - str() of an exception may itself raise
            return False
    if _NO_TEMPORARY_FOLDER in str(error):
        return any(_has_no_space(folder) for folder in (os.environ.get("TMPDIR"), "/tmp") if folder)  # noqa: S108
    return error.errno in _CODES


def without_space(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are on a full disk, each as its nearest folder that exists."""
    found = [_nearest_folder(path) for path in paths if path]
    return [folder for folder in dict.fromkeys(found) if _has_no_space(folder)]


def _nearest_folder(path: str) -> str:
    return next((str(folder) for folder in (Path(path), *Path(path).parents) if os.path.isdir(folder)), ".")  # noqa: PTH112 - False for any text


def _has_no_space(folder: str) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail == 0 or (space.f_files > 0 and space.f_favail == 0)

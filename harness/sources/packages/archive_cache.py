"""Cached files of releases. Their names are digests, and nothing is read that this process has not verified.

A file in the cache is verified against the digest that the lock or the package index states, or made again
from such a file. A digest that is stored in the cache itself proves nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.digest import VerifiedContents
from harness.errors import InfrastructureError

VERIFIED = VerifiedContents()


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A path to write to. Afterwards the file replaces `target` in one step."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
            file = Path(folder) / target.name
            yield file
            file.replace(target)
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"{target} was not written",
            why=str(error),
            fix="run again; if another program cleans this folder, choose another cache with --cache",
        ) from error

"""Zip archives for tests."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_zip(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write a zip archive whose bytes depend only on `files` (member -> content), and return `path`."""
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    return path

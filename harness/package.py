"""Where this package is installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder `harness`."""

IMPORT_ROOT = PACKAGE_ROOT.parent
"""The folder that has to be on PYTHONPATH for a program of this package to start elsewhere."""


def data_folder(name: str) -> Path:
    """A folder of files that come with this package, named from the folder `harness` with slashes.

    Its name must be a literal: what is in the folder is then part of the key of every check that can read it
    (`harness.code_graph`).
    """
    return PACKAGE_ROOT / name


def data_file(name: str) -> Path:
    """A file that comes with this package; see `data_folder`."""
    return PACKAGE_ROOT / name

"""The folder in which this package is installed, and the data files in it."""

from __future__ import annotations

from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder `harness`."""

IMPORT_ROOT = PACKAGE_ROOT.parent
"""The folder that must be on PYTHONPATH to run a program of this package in another interpreter."""


def link_package(folder: Path) -> Path:
    """Make `folder` one from which only this package can be imported, for PYTHONPATH; returns it.

    Packages that are installed next to this one would hide those of the cell, for example numpy.
    """
    folder.mkdir(exist_ok=True)
    link = folder / PACKAGE_ROOT.name
    if not link.is_symlink():
        link.symlink_to(PACKAGE_ROOT)
    return folder


def data_folder(name: str) -> Path:
    """A folder of data files of this package; `name` is its path relative to the folder `harness`.

    Pass a literal. `harness.code_graph` looks for such calls and adds the folder's files to the key of every
    check that can reach the call.
    """
    return PACKAGE_ROOT / name


def data_file(name: str) -> Path:
    """A data file of this package; see `data_folder`."""
    return PACKAGE_ROOT / name

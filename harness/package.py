"""The folder in which this package is installed, and the data files in it."""

from __future__ import annotations

from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder `harness`."""

IMPORT_ROOT = PACKAGE_ROOT.parent
"""The folder that must be on PYTHONPATH to run a program of this package in another interpreter."""

SHIPPED_ROOT = PACKAGE_ROOT / "shipped"
"""In an installed wheel, the folder with the matrix, patches, docs and templates of this project."""


def shipped_root() -> Path:
    """The folder with this project's own `matrix.yaml`, `patches`, `docs` and `docker`.

    In an installed wheel, the build has copied them into the package. In a checkout, also in one that is
    installed as editable, they are beside it.
    """
    return SHIPPED_ROOT if SHIPPED_ROOT.is_dir() else IMPORT_ROOT


def shipped_file(name: str) -> Path:
    """A file or folder of this project outside of its package, such as `docs/schema/matrix.schema.json`."""
    return shipped_root() / name


def data_folder(name: str) -> Path:
    """A folder of data files of this package; `name` is its path relative to the folder `harness`.

    Pass a literal. `harness.code_graph` looks for such calls and adds the folder's files to the key of every
    check that can reach the call.
    """
    return PACKAGE_ROOT / name


def data_file(name: str) -> Path:
    """A data file of this package; see `data_folder`."""
    return PACKAGE_ROOT / name

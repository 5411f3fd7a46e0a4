"""Copies the code that runs inside cells into a folder named by the digest of its content."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.digest import digest_bytes, digest_json
from harness.errors import InfrastructureError, Location

# The files that programs in cells can import. A test computes them and fails if one is missing here.
ROOT_MODULES = (
    "__init__.py",
    "card_locks.py",
    "check.py",
    "digest.py",
    "disk_full.py",
    "errors.py",
    "evidence.py",
    "gc_pause.py",
    "measurements.py",
    "outcome.py",
    "package.py",
    "serialisation.py",
)
PACKAGES = (
    "cell_program",
    "convergence",
    "devices/sim",
    "fixtures",
    "numerics",
    "rollout",
    "upstream_tests/in_cell",
)
# Parent packages of the above, of which only __init__.py is needed.
PARENTS = ("devices", "upstream_tests")


def make_bundle(source: Path, cache: Path) -> Path:
    """A folder for PYTHONPATH with a package `harness` that contains only the code that runs inside cells.

    source: the folder of the package `harness`. Several processes can call this at the same time. A folder
    with other files is made again, because a program of a cell may have written to it. InfrastructureError if
    the cache cannot be written.
    """
    content = {path.relative_to(source).as_posix(): path.read_bytes() for path in _files(source)}
    digest = digest_json({name: digest_bytes(data) for name, data in content.items()})
    folder = cache / "bundle" / digest[:32]
    if _is_intact(folder, content):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".bundle-", dir=folder.parent))
    except OSError as error:
        raise _unwritable(cache, error) from error
    try:
        for name, data in content.items():
            target = work / "harness" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            # Tasks share the folder, so it is read-only: a task that changes it would affect others.
            target.chmod(0o444)
        work.chmod(0o755)
        _publish(work, folder, content)
    except OSError as error:
        raise _unwritable(cache, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _files(source: Path) -> Iterator[Path]:
    for name in ROOT_MODULES:
        yield source / name
    for parent in PARENTS:
        yield source / parent / "__init__.py"
    for package in PACKAGES:
        for path in sorted((source / package).rglob("*")):
            hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(source).parts)
            if path.is_file() and not hidden and path.suffix not in (".pyc", ".pyo"):
                yield path


def _is_intact(folder: Path, content: Mapping[str, bytes]) -> bool:
    """Whether the folder has exactly these files. Compiled modules, whose content is unknown, are removed."""
    found: set[str] = set()
    for path in [*folder.rglob("*")]:
        if "__pycache__" in path.relative_to(folder).parts:
            if path.name == "__pycache__" and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
        elif path.is_symlink():
            return False
        elif not path.is_dir():
            name = path.relative_to(folder).as_posix().removeprefix("harness/")
            if name not in content or path.read_bytes() != content[name]:
                return False
            found.add(name)
    return found == content.keys()


def _publish(work: Path, folder: Path, content: Mapping[str, bytes]) -> None:
    try:
        work.rename(folder)
    except OSError:
        # Another process was first, with the same content; otherwise the folder was changed.
        if not _is_intact(folder, content):
            shutil.rmtree(folder)
            work.rename(folder)


def _unwritable(cache: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        "the cache folder cannot be written",
        where=Location(cache),
        why=str(error),
        fix="free space, or set NPU_MATRIX_CACHE to a folder that can be written",
    )

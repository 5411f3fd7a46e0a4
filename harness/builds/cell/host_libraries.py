"""The shared libraries of this host that an environment uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from harness.builds.cell.interpreter_files import symbolic_links
from harness.builds.installed.file_manifest import WatchedFolder

# The installers of CANN and of the driver write their version there, above the folders of the libraries.
VERSION_FILES = ("version.info", "ascend_toolkit_install.info")
# The dynamic loader loads the libraries that this file names into every program.
PRELOAD = Path("/etc/ld.so.preload")


def library_folders(libraries: Iterable[str], home: Path) -> tuple[WatchedFolder, ...]:
    """What `libraries`, as the loader found them, consist of outside the folder `home` of the environment.

    That is the files, every symbolic link on the way to them (`latest` of an Ascend toolkit), the files with
    the versions of CANN and of the driver, and files that do not exist and that the loader would load instead
    of them.
    """
    files: dict[Path, None] = {}
    inside = (home, home.resolve())
    outside = [path for path in map(Path, libraries) if not any(map(path.resolve().is_relative_to, inside))]
    if outside:
        files[PRELOAD] = None
    for library in outside:
        target = library.resolve()
        found = [link for link in symbolic_links(library) if not link.is_relative_to(home)]
        versions = [folder / name for folder in target.parents for name in VERSION_FILES]
        files |= dict.fromkeys([*found, target, *(path for path in versions if path.is_file())])
    searched = {library.parent for library in outside}
    hiding = {folder / library.name for folder in searched for library in outside}
    files |= dict.fromkeys(path for path in hiding if not os.path.lexists(path))
    return tuple(WatchedFolder(path=str(file.parent), only=(file.name,)) for file in sorted(files))

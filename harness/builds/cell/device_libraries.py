"""The libraries of this host that drive its NPU: those of CANN, of the driver and of the system."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.builds.cell.interpreter_files import symbolic_links
from harness.builds.installed.file_manifest import WatchedFolder

# The installers of CANN and of the driver write their version there, above the folders of the libraries.
VERSION_FILES = ("version.info", "ascend_toolkit_install.info")


def device_folders(libraries: Iterable[str], prefix: Path) -> tuple[WatchedFolder, ...]:
    """What `libraries`, as the loader found them, consist of outside the environment in `prefix`.

    That is the files, every symbolic link on the way to them (`latest` of an Ascend toolkit), and the files
    with the versions of CANN and of the driver.
    """
    inside = prefix.resolve()
    files: dict[Path, None] = {}
    for library in map(Path, libraries):
        target = library.resolve()
        if target.is_relative_to(inside):
            continue
        found = [link for link in symbolic_links(library) if not link.is_relative_to(prefix)]
        versions = [folder / name for folder in target.parents for name in VERSION_FILES]
        files |= dict.fromkeys([*found, target, *(path for path in versions if path.is_file())])
    return tuple(WatchedFolder(path=str(file.parent), only=(file.name,)) for file in sorted(files))

"""What the files of an environment contain, without what differs between two builds of the same packages.

Two builds with the same interpreter have the same identity, so that outcomes survive an environment that was
removed and built again. Builds with another interpreter or other contents have another one.
"""

from __future__ import annotations

import stat
from pathlib import Path

from harness.builds.installed.file_manifest import FileEntry, FileManifest
from harness.cell_program.installed_records import CACHE_FOLDER, COMPILED, RECORD
from harness.digest import digest_bytes

_HOME = "@"
_SCRIPTS = f"{_HOME}/venv/bin/"
# It has the version of the installer.
_SETTINGS = f"{_HOME}/venv/pyvenv.cfg"


def content_identity(manifest: FileManifest, home: Path) -> dict[str, str]:
    """Part of an environment -> digest of its files. OSError if a script cannot be read.

    The parts are the entries of the folder `home` of the environment (`venv`, `sim`), and `host` for what is
    outside it: the interpreter, and the libraries that drive an NPU. Left out are compiled modules, because
    they contain the time of their source, and RECORD, because the files that it lists are compared.
    """
    parts: dict[str, list[str]] = {}
    for path, entry in sorted(manifest.entries.items()):
        name = path.replace(str(home), _HOME, 1)
        if name.endswith((COMPILED, f"/{CACHE_FOLDER}", f".dist-info/{RECORD}")) or name == _SETTINGS:
            continue
        part = name.split("/")[1] if name.startswith(f"{_HOME}/") else "host"
        kind = f"{stat.S_IFMT(entry.state.mode)} {bool(entry.state.mode & stat.S_IXUSR)}"
        parts.setdefault(part, []).append(f"{name}\0{kind}\0{_content(path, name, entry, home)}")
    return {
        part: digest_bytes("\0\0".join(files).encode("utf-8", "surrogateescape"))
        for part, files in parts.items()
    }


def _content(path: str, name: str, entry: FileEntry, home: Path) -> str:
    """The content of a file as in its entry, without the place of the environment."""
    if name.startswith(_SCRIPTS) and stat.S_ISREG(entry.state.mode):
        # The first line of a script has the path of the environment's interpreter.
        return digest_bytes(Path(path).read_bytes().replace(str(home).encode(), _HOME.encode()))
    return entry.content.replace(str(home), _HOME)

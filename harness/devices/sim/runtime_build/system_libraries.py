"""The shared libraries of the operating system."""

from __future__ import annotations

import re
from pathlib import Path

# Libraries that every Linux has. Other ones are searched only in the loader's default folders. They are not
# searched in LD_LIBRARY_PATH, where a real CANN may be, whose libraries would then be mixed with simulated
# ones.
_SYSTEM_SONAME = re.compile(
    r"(ld-linux[-\w]*|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s|gomp|z|crypt|resolv))\.so(\.\d+)*"
)
_DEFAULT_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def has_system_library(soname: str) -> bool:
    """Whether the loader finds `soname` without LD_LIBRARY_PATH."""
    return bool(_SYSTEM_SONAME.fullmatch(soname)) or system_library(soname) is not None


def system_library(soname: str) -> Path | None:
    """The file of a library in the loader's default folders, None if it is not there."""
    folders = [Path(folder) for folder in _DEFAULT_FOLDERS]
    folders += [path for folder in folders for path in folder.glob("*-linux-gnu")]
    return next((folder / soname for folder in folders if (folder / soname).is_file()), None)

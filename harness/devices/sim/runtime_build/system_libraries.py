"""Shared libraries that the machine itself has."""

from __future__ import annotations

import re
from pathlib import Path

# What every Linux has. Anything else is looked up in the loader's default folders only: never in
# LD_LIBRARY_PATH, where a real CANN would be found and leave the simulation half real.
_SYSTEM_SONAME = re.compile(
    r"(ld-linux[-\w]*|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s|gomp|z|crypt|resolv))\.so(\.\d+)*"
)
_DEFAULT_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def has_system_library(soname: str) -> bool:
    """Whether the loader finds `soname` without being told where."""
    return bool(_SYSTEM_SONAME.fullmatch(soname)) or system_library(soname) is not None


def system_library(soname: str) -> Path | None:
    """Its file in the loader's default folders."""
    folders = [Path(folder) for folder in _DEFAULT_FOLDERS]
    folders += [path for folder in folders for path in folder.glob("*-linux-gnu")]
    return next((folder / soname for folder in folders if (folder / soname).is_file()), None)

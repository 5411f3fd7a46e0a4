"""The paths in the header lines of a patch, which may have more or fewer leading components than git expects.

git and `patch -p1` remove one component, `a/` or `b/`. A patch for `patch -p0` has none; one that was made in
another repository also has the folders that this repository keeps the sources in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: No patch has more leading components than this.
MOST_COMPONENTS = 12
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
#: What is before a path in a header line, the path, and what is after it: the end of the line, or a date.
_FILE = re.compile(rb'((?:---|\+\+\+) "?)([^"\t\r\n]+)(.*)', re.DOTALL)
_MOVED = re.compile(rb'((?:rename|copy) (?:from|to) "?)([^"\r\n]+)(.*)', re.DOTALL)
_GIT = re.compile(rb"diff --git ([^\"\r\n]+?) ([^\"\r\n]+)(\s*)", re.DOTALL)
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_DEV_NULL = b"/dev/null"


def changed_paths(data: bytes) -> Iterator[str]:
    """The paths that a patch changes, with all components; some are there twice, with `a/` and `b/`."""
    for line, in_hunk in _lines(data):
        found = None if in_hunk else _FILE.fullmatch(line) or _GIT.fullmatch(line)
        if found and found[2] != _DEV_NULL:
            yield found[2].decode("utf-8", "replace")


def with_one_component(data: bytes, components: int, inside: str = "") -> bytes:
    """The patch, whose paths have this number of leading components, with one: `a/` and `b/`.

    inside: the folder of the sources that the paths are relative to, "" for the top of the repository.
    """
    if components == 1 and not inside:
        return data
    below = f"{inside}/".encode() if inside else b""
    return b"".join(
        line if in_hunk else _with_one_component(line, components, below) for line, in_hunk in _lines(data)
    )


def _lines(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each line with its end, and whether it is in a hunk."""
    old = new = 0
    for line in _LINE.findall(data):
        hunk = _HUNK.match(line)
        if old > 0 or new > 0:
            old -= line[:1] != b"+" and line[:1] != b"\\"
            new -= line[:1] != b"-" and line[:1] != b"\\"
            yield line, True
        else:
            if hunk:
                old, new = (int(count) if count is not None else 1 for count in hunk.groups())
            yield line, hunk is not None


def _with_one_component(line: bytes, components: int, below: bytes) -> bytes:
    moved, file = _MOVED.fullmatch(line), _FILE.fullmatch(line)
    if moved:  # These paths have no `a/` or `b/`.
        return moved[1] + below + _without(moved[2], max(0, components - 1)) + moved[3]
    if file and file[2] != _DEV_NULL:
        side = b"a/" if line.startswith(b"---") else b"b/"
        return file[1] + side + below + _without(file[2], components) + file[3]
    return _git_line(line, components, below) if line.startswith(b"diff --git ") else line


def _git_line(line: bytes, components: int, below: bytes) -> bytes:
    """The line `diff --git`, if both of its paths are the same; otherwise git reads the lines below it."""
    words, end = line[11:].rstrip(b"\r\n"), line[len(line.rstrip(b"\r\n")) :]
    for at in (at for at, byte in enumerate(words) if byte in b" \t"):
        first, second = _without(words[:at], components), _without(words[at + 1 :], components)
        if first == second:
            return b"diff --git a/" + below + first + b" b/" + below + second + end
    return line


def _without(path: bytes, components: int) -> bytes:
    """The path without its first components, but at least its last one."""
    parts = [part for part in path.split(b"/") if part]
    return b"/".join(parts[min(components, len(parts) - 1) :])

"""Writing patches in one canonical form: equal changes give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping

from harness.patchstack.format.diff import ChangeKind, FilePatch, Hunk, Patch
from harness.patchstack.format.diff_file_names import ESCAPES

_NO_NEWLINE = b"\\ No newline at end of file\n"
_QUOTED = {byte: chr(letter) for letter, byte in ESCAPES.items()}


def render_patch(patch: Patch) -> bytes:
    """The patch as git would print it, without a diffstat or signature."""
    return b"".join(_render_file(file) for file in patch.files)


def diff_files(files: Mapping[str, tuple[bytes | None, bytes | None]]) -> bytes:
    """A git patch from the old to the new content (None: no file) of each path where they differ."""
    # Importing pygit2 takes 90 ms, and most patches apply without it.
    import pygit2

    parts = []
    for path, (old, new) in sorted(files.items()):
        if old != new:
            made = pygit2.Patch.create_from(old, new, old_as_path=path, new_as_path=path)
            parts.append(bytes(made.data))
    return b"".join(parts)


def _render_file(file: FilePatch) -> bytes:
    old, new = file.old_path or file.new_path or "", file.new_path or file.old_path or ""
    lines = [b"diff --git " + _name("a/", old) + b" " + _name("b/", new)]
    if file.change is ChangeKind.CREATE:
        lines.append(f"new file mode {file.new_mode or '100644'}".encode())
    elif file.change is ChangeKind.DELETE:
        lines.append(f"deleted file mode {file.old_mode or '100644'}".encode())
    elif file.new_mode and file.new_mode != file.old_mode:
        lines += [f"old mode {file.old_mode or '100644'}".encode(), f"new mode {file.new_mode}".encode()]
    if file.change in {ChangeKind.RENAME, ChangeKind.COPY}:
        word = file.change.value.encode()
        lines += [word + b" from " + _name("", old), word + b" to " + _name("", new)]
    if file.index_old and file.index_new:
        mode = (
            f" {file.old_mode}"
            if file.old_mode and not file.new_mode and file.change is ChangeKind.MODIFY
            else ""
        )
        lines.append(f"index {file.index_old}..{file.index_new}{mode}".encode())
    if file.hunks:
        lines.append(
            b"--- /dev/null" if file.change is ChangeKind.CREATE else b"--- " + _name("a/", old, tab=True)
        )
        lines.append(
            b"+++ /dev/null" if file.change is ChangeKind.DELETE else b"+++ " + _name("b/", new, tab=True)
        )
    return b"\n".join(lines) + b"\n" + b"".join(_render_hunk(hunk) for hunk in file.hunks)


def _render_hunk(hunk: Hunk) -> bytes:
    old = f"{hunk.old_start}" + (f",{hunk.old_count}" if hunk.old_count != 1 else "")
    new = f"{hunk.new_start}" + (f",{hunk.new_count}" if hunk.new_count != 1 else "")
    section = b" " + hunk.section if hunk.section else b""
    parts = [f"@@ -{old} +{new} @@".encode() + section + b"\n"]
    for op, text in hunk.lines:
        parts.append(op + text if text.endswith(b"\n") else op + text + b"\n" + _NO_NEWLINE)
    return b"".join(parts)


def _name(prefix: str, path: str, *, tab: bool = False) -> bytes:
    raw = (prefix + path).encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        # After a name with a space git writes a tab, so that readers do not take the rest for a date.
        return raw + b"\t" if tab and b" " in raw else raw
    quoted = "".join(
        f"\\{_QUOTED[byte]}" if byte in _QUOTED else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in raw
    )
    return f'"{quoted}"'.encode()

"""Apply our patches to a package's sources, without fuzz.

Whether a patch applies is decided by the check `patches`. This module skips a patch that does not match
exactly, and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unidiff import Hunk, PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError


def apply_patches(
    patches: Sequence[tuple[str, str]], read: Callable[[str], str | None]
) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Apply patches (id, text) in order. `read` returns the text of a file, None when it does not exist.

    Returns path -> new text, path -> ids of the patches that change it, and ids of those that do not apply.
    """
    texts: dict[str, str] = {}
    changed_by: dict[str, list[str]] = {}
    misfits = []
    for patch_id, diff in patches:
        changes = _changes(diff, texts, read)
        if changes is None:
            misfits.append(patch_id)
            continue
        texts |= changes
        for path in changes:
            changed_by.setdefault(path, []).append(patch_id)
    return texts, changed_by, misfits


def _changes(diff: str, texts: Mapping[str, str], read: Callable[[str], str | None]) -> dict[str, str] | None:
    try:
        files = PatchSet(diff)
    except UnidiffParseError:
        return None
    changes = {}
    for file in files:
        before = "" if file.is_added_file else texts[file.path] if file.path in texts else read(file.path)
        text = _patched(file, before)
        if text is None:
            return None
        changes[file.path] = text
    return changes


def _patched(file: PatchedFile, text: str | None) -> str | None:
    if text is None or file.is_binary_file:
        return None
    lines = text.splitlines(keepends=True)
    result: list[str] = []
    position = 0
    for hunk in file:
        before = [line.value for line in hunk if not line.is_added]
        start = _hunk_start(lines, before, hunk, position)
        if start is None:
            return None
        result += lines[position:start]
        result += [line.value for line in hunk if not line.is_removed]
        position = start + len(before)
    return "".join([*result, *lines[position:]])


def _hunk_start(lines: list[str], before: list[str], hunk: Hunk, position: int) -> int | None:
    """The index of the first line of the hunk's old text, at or after `position`.

    This is the line in the hunk's header, otherwise the only line where the old text occurs; None without
    one.
    """
    expected: int = max(0, hunk.source_start - 1)
    if lines[expected : expected + len(before)] == before and expected >= position:
        return expected
    last = len(lines) - len(before)
    starts = [start for start in range(position, last + 1) if lines[start : start + len(before)] == before]
    return starts[0] if len(starts) == 1 else None

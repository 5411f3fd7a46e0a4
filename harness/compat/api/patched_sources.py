"""Apply our patches to a package's sources, without fuzz.

The check `patches` decides whether and how a patch applies. Here a patch that does not match exactly is left
out and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unidiff import Hunk, PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError


def apply_patches(
    bodies: Sequence[tuple[str, str]], read: Callable[[str], str | None]
) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Apply patches (id, text) in order. `read` returns the text of a file, None when it does not exist.

    Returns path -> new text, path -> ids of the patches that change it, and ids of those that do not apply.
    """
    texts: dict[str, str] = {}
    changed_by: dict[str, list[str]] = {}
    misfits = []
    for patch_id, body in bodies:
        changes = _changes(body, texts, read)
        if changes is None:
            misfits.append(patch_id)
            continue
        texts |= changes
        for path in changes:
            changed_by.setdefault(path, []).append(patch_id)
    return texts, changed_by, misfits


def _changes(body: str, texts: Mapping[str, str], read: Callable[[str], str | None]) -> dict[str, str] | None:
    try:
        files = PatchSet(body)
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
        start = _place(lines, before, hunk, position)
        if start is None:
            return None
        result += lines[position:start]
        result += [line.value for line in hunk if not line.is_removed]
        position = start + len(before)
    return "".join([*result, *lines[position:]])


def _place(lines: list[str], before: list[str], hunk: Hunk, position: int) -> int | None:
    """The line of the hunk's old text: as stated in the hunk, otherwise the only place that has this text."""
    stated: int = max(0, hunk.source_start - 1)
    if lines[stated : stated + len(before)] == before and stated >= position:
        return stated
    last = len(lines) - len(before)
    places = [at for at in range(position, last + 1) if lines[at : at + len(before)] == before]
    return places[0] if len(places) == 1 else None

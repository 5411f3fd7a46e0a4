"""Apply our patches to a package's sources, without fuzz. Used by the checks `api` and `lint`.

Whether a patch applies is decided by the check `patches`. This module skips a patch that does not match
exactly, and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unidiff import PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError
from unidiff.patch import Line

from harness.errors import InputError, Location
from harness.matrix.model.environment_facets import UNREAD, UnreadPatches
from harness.measurements import read_shape
from harness.serialisation import JsonValue
from harness.sources.git.branch_patches import read_patch_content

MODULES = (".py",)

#: The facet `patches[UPSTREAM]`: its selected patches, without their contents.
PatchFacet = Iterable[Mapping[str, JsonValue]]


@dataclass(frozen=True)
class _NamedPatch:
    """What tells the content of a selected patch in a facet."""

    id: str
    file: str
    digest: str


def unread_patches(facet: PatchFacet) -> UnreadPatches | None:
    """The patches of the facet that are not known; None if all are."""
    unread = (patch[UNREAD] for patch in facet if UNREAD in patch)
    return next((read_shape(UnreadPatches, one) for one in unread if isinstance(one, Mapping)), None)


def patch_texts(facet: PatchFacet, root: Path) -> list[tuple[str, str]]:
    """Id and text of each patch of the facet. InputError if one changed after the plan was made.

    root: the checkout.
    """
    found = []
    for patch in (read_shape(_NamedPatch, patch) for patch in facet):
        data = read_patch_content(patch.file, patch.digest, root)
        if data is None:
            where = Location(root / patch.file)
            raise InputError("this patch changed after the plan was made", where=where, fix="run again")
        found.append((patch.id, data.decode("utf-8", "replace")))
    return found


def apply_patches(
    patches: Sequence[tuple[str, str]],
    read: Callable[[str], str | None],
    endings: tuple[str, ...] = MODULES,
) -> tuple[dict[str, str | None], dict[str, dict[str, str]], list[str]]:
    """Apply patches (id, text) in order. `read` returns the text of a file, None when it does not exist.

    Only files with these endings are changed. Returns path -> new text, None if the file is removed;
    path -> line -> id of the last patch that adds this line; and ids of the patches that do not apply.
    """
    texts: dict[str, str | None] = {}
    added_by: dict[str, dict[str, str]] = {}
    misfits = []
    for patch_id, diff in patches:
        changes = _changes(diff, texts, read, endings)
        if changes is None:
            misfits.append(patch_id)
            continue
        for path, text in changes.items():
            earlier = texts[path] if path in texts else read(path)
            before = set((earlier or "").splitlines())
            lines = added_by.setdefault(path, {})
            lines |= {line: patch_id for line in (text or "").splitlines() if line not in before}
        texts |= changes
    return texts, added_by, misfits


def _changes(
    diff: str,
    texts: Mapping[str, str | None],
    read: Callable[[str], str | None],
    endings: tuple[str, ...],
) -> dict[str, str | None] | None:
    try:
        files = [
            file for file in PatchSet(diff) if file.path.endswith(endings) or _moved_from(file, endings)[0]
        ]
    except UnidiffParseError:
        return None

    def current(path: str) -> str | None:
        return texts[path] if path in texts else read(path)

    # Patches of quilt have the name of a folder in front of each path: verl-0.7.orig/verl/x.py
    is_below = any(not file.is_added_file and current(_below(file.path)) is not None for file in files)
    changes: dict[str, str | None] = {}
    for file in files:
        source, is_removed = _moved_from(file, endings)
        path = _below(file.path) if is_below else file.path
        before = "" if file.is_added_file else current(source or path)
        text = None if before is None or file.is_binary_file else _patched(file, before)
        if text is None:
            return None
        if is_removed:
            changes[source] = None
        if path.endswith(endings):
            changes[path] = None if file.is_removed_file else text
    return changes


def _below(path: str) -> str:
    return path.partition("/")[2]


def _moved_from(file: PatchedFile, endings: tuple[str, ...]) -> tuple[str, bool]:
    """The file that git renamed or copied to this one, or "", and whether it is gone."""
    for line in file.patch_info or ():
        for words, is_removed in (("rename from ", True), ("copy from ", False)):
            if line.startswith(words) and line.strip().endswith(endings):
                return line.removeprefix(words).strip(), is_removed
    return "", False


def _patched(file: PatchedFile, text: str) -> str | None:
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    result: list[str] = []
    position = offset = 0
    for hunk in file:
        before = [_content(line) for line in hunk if line.is_context or line.is_removed]
        # Of a hunk that only adds lines, the header names the line before them.
        expected = max(0, hunk.source_start - 1) if hunk.source_length else hunk.source_start
        start = _hunk_start(lines, before, expected + offset, position)
        if start is None:
            return None
        offset = start - expected
        result += lines[position:start]
        result += [_content(line) for line in hunk if line.is_context or line.is_added]
        position = start + len(before)
    return "".join(f"{line}\n" for line in [*result, *lines[position:]])


def _content(line: Line) -> str:
    return str(line.value).rstrip("\r\n")


def _hunk_start(lines: list[str], before: list[str], expected: int, position: int) -> int | None:
    """The index of the first line of a hunk's old text, at or after `position`.

    Of several places it is the one nearest to the expected line, as for git; None without one.
    """
    if expected >= position and lines[expected : expected + len(before)] == before:
        return expected
    last = len(lines) - len(before)
    starts = (start for start in range(position, last + 1) if lines[start : start + len(before)] == before)
    return min(starts, key=lambda start: abs(start - expected), default=None)

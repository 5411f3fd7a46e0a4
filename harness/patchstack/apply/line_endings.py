"""Line endings: convert a patch with LF to a file with CRLF, or the other way round."""

from __future__ import annotations

from dataclasses import replace

from harness.patchstack.apply.line_merge import split_lines
from harness.patchstack.apply.patch_apply import HunkMismatch, NotApplied, place_hunks
from harness.patchstack.format.diff import ChangeKind, FilePatch, Hunk, Patch
from harness.sources.tree import Tree


def convert_line_endings(patch: Patch, tree: Tree) -> Patch | None:
    """The patch with the line endings of the files it changes; None if line endings are not the problem.

    Context and removed lines get the file's bytes. An added line gets the ending of the matched line before
    it in the hunk, or of the hunk's first matched line.
    """
    files = []
    changed = False
    for file in patch.files:
        again = _file(file, tree) if file.change is not ChangeKind.CREATE and file.hunks else file
        if again is None:
            return None
        changed = changed or again is not file
        files.append(again)
    return Patch(files=tuple(files)) if changed else None


def may_be_line_endings(patch: Patch, not_applied: NotApplied) -> bool:
    """Whether line endings can be the only problem: no file is rejected, and the patch or file has CR."""
    return all(
        rejection.mismatch is not None and (patch.has_carriage_returns or b"\r" in rejection.mismatch.data)
        for rejection in not_applied.rejections
    )


def describe_line_endings(data: bytes) -> str:
    """The line endings of a file: "LF", "CRLF" or how they are mixed."""
    crlf = data.count(b"\r\n")
    bare = data.count(b"\n") - crlf
    if crlf and bare:
        return f"mixed ({crlf} CRLF, {bare} LF)"
    return "CRLF" if crlf else "LF"


def _file(file: FilePatch, tree: Tree) -> FilePatch | None:
    if tree.mode(file.source) is None:
        return None
    data = tree.read(file.source)
    if not isinstance(place_hunks(file.hunks, data), HunkMismatch):
        return file
    stripped = tuple(_replace_texts(hunk, [_strip(text) for _op, text in hunk.lines]) for hunk in file.hunks)
    placed = place_hunks(stripped, data.replace(b"\r\n", b"\n"))
    if isinstance(placed, HunkMismatch):
        return None
    originals = split_lines(data)
    hunks = [
        _with_endings_of(hunk, originals[placement.line - 1 : placement.line - 1 + hunk.old_count])
        for hunk, placement in zip(stripped, placed[1], strict=True)
    ]
    return replace(file, hunks=tuple(hunks), index_old=None, index_new=None)


def _strip(text: bytes) -> bytes:
    return text[:-2] + b"\n" if text.endswith(b"\r\n") else text


def _with_endings_of(hunk: Hunk, originals: list[bytes]) -> Hunk:
    endings = [b"\r\n" if line.endswith(b"\r\n") else b"\n" for line in originals if line.endswith(b"\n")]
    ending = endings[0] if endings else b"\n"
    texts = []
    at = 0
    for op, text in hunk.lines:
        if op == b"+":
            texts.append(text[:-1] + ending if text.endswith(b"\n") else text)
            continue
        own = originals[at]
        at += 1
        if own.endswith(b"\n"):
            ending = b"\r\n" if own.endswith(b"\r\n") else b"\n"
        texts.append(own)
    return _replace_texts(hunk, texts)


def _replace_texts(hunk: Hunk, texts: list[bytes]) -> Hunk:
    """The hunk with other text on its lines."""
    return replace(hunk, lines=tuple((op, text) for (op, _old), text in zip(hunk.lines, texts, strict=True)))

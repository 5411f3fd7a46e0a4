"""Edits of single words of a script, by byte offset, so that all other bytes stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.compat.lint.lint_measurements import SettingChange
from harness.compat.lint.shell.syntax_tree import SyntaxNode

#: Texts that mean the same with quotes of any kind and without.
PLAIN = re.compile(r"[\w./@:+-]+")
_GAP = re.compile(rb"=[ \t]+(?=[^\s#\\])")
_NO_WORD, _END = rb"(?<![\w./@-])", rb"(?=[\s'\";&|)]|\Z)"


@dataclass(frozen=True, kw_only=True)
class ScriptEdit:
    """The bytes from `start` to `end` of a script become `new`."""

    start: int
    end: int
    new: bytes


def edited(script: bytes, edits: Sequence[ScriptEdit]) -> bytes:
    """The script with edits that do not overlap."""
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        script = script[: edit.start] + edit.new + script[edit.end :]
    return script


def before_edits(edit: ScriptEdit, edits: Sequence[ScriptEdit]) -> ScriptEdit:
    """An edit of the edited script, by offsets in the script before the edits."""
    shift = 0
    for one in sorted(edits, key=lambda one: one.start):
        if edit.start >= one.end + shift + len(one.new) - (one.end - one.start):
            shift += len(one.new) - (one.end - one.start)
    return ScriptEdit(start=edit.start - shift, end=edit.end - shift, new=edit.new)


def edit_of(script: bytes, tree: SyntaxNode, change: SettingChange) -> ScriptEdit | None:
    """The edit that makes a change; None unless the text to change is written out at that place, once."""
    if (change.new or change.old) and not PLAIN.fullmatch(change.new):
        return None
    node = _word_at(tree, change)
    if node is None:
        return None
    start = node.span.start
    if change.part == "space":
        found = _GAP.search(script, start)
        key = re.escape(change.name.encode())
        joins = found and re.fullmatch(rb"\+{0,2}" + key, script[start : found.start()])
        return ScriptEdit(start=found.start() + 1, end=found.end(), new=b"") if found and joins else None
    spans = [found.span("old") for found in _pattern(change).finditer(script, start, node.span.stop)]
    written = list(_literals(node))
    if len(spans) != 1 or not any(one.start <= spans[0][0] and spans[0][1] <= one.stop for one in written):
        return None
    return ScriptEdit(start=spans[0][0], end=spans[0][1], new=change.new.encode())


def _word_at(tree: SyntaxNode, change: SettingChange) -> SyntaxNode | None:
    """The word or assignment with the place of a change.

    Places are compared and not computed, because shfmt counts the columns after `\\` at a Windows line end
    differently.
    """
    for node in tree.descendants():
        place = node.location
        if (place.line, place.column) == (change.line, change.column) and (
            node.children("Parts") or node.child("Value") is not None
        ):
            return node
    return None


def _pattern(change: SettingChange) -> re.Pattern[bytes]:
    """What the word, or a command in a quoted word, has to contain for the change."""
    name, old = (re.escape(text.encode()) for text in (change.name.removeprefix("env."), change.old))
    if change.part == "key":
        return re.compile(_NO_WORD + rb"(?P<old>" + old + rb")(?=['\"]?=)")
    return re.compile(_NO_WORD + name + rb"['\"]?=(?P<quote>['\"]?)(?P<old>" + old + rb")(?P=quote)" + _END)


def _literals(node: SyntaxNode) -> Iterator[slice]:
    """The parts of a word, or of the value of an assignment, that are written out, without their quotes."""
    value = node.child("Value")
    for part in (value or node).children("Parts"):
        if part.kind == "Lit":
            yield part.span
        elif part.kind == "SglQuoted" and not part.flag("Dollar"):
            yield slice(part.span.start + 1, part.span.stop - 1)
        elif part.kind == "DblQuoted":
            yield from _literals(part)

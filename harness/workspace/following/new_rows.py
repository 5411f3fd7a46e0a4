"""A new row of a published table, and the fields of documents in the form of matrix.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.errors import Problem
from harness.matrix.model.constraints import PublishedTable, published_specifiers
from harness.matrix.model.definitions import Axis
from harness.matrix.model.versions import Version

_NOTHING = {"", "n/a", "na", "-", "--", "—", "none"}
_RECOMMENDED = re.compile(
    r"[,;(]?\s*(?:推荐|recommended:?)\s*(?P<one>[\w.]+)\s*\)?"
    r"|\s*\((?P<two>[\w.]+) recommended\)",
    re.IGNORECASE,
)
#: The name of a product before its version: `CANN 9.1.0`, `Python3.11`, `v0.23.0`.
_PREFIX = re.compile(r"^(?:[A-Za-z_-]+\s*)?(?=(?:[<>=!~]=?\s*)?\d)")


@dataclass(frozen=True, kw_only=True)
class NewRow:
    """A row that a table of matrix.yaml lacks.

    fields: a text for each column, None for no value. source: where it is published. date: when, as
    2026-08-14, "" if unknown.
    """

    fields: tuple[str | None, ...]
    source: str
    date: str = ""

    def value(self, table: PublishedTable, column: str) -> str:
        """The text in a column, or ""."""
        return self.fields[table.columns.index(column)] or ""


@dataclass(frozen=True, kw_only=True)
class TableNews:
    """What is new of one table.

    rows: new rows. problems: what was not understood; nothing was guessed in its place. notes: what a reader
    should know, for example that a known row was changed. revision, date: of the document, if one was read.
    """

    table: PublishedTable
    rows: tuple[NewRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    revision: str = ""
    date: str = ""


@dataclass
class Findings:
    """Collects rows, problems and notes while a source is read."""

    rows: list[NewRow] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def field_text(axis: Axis | None, text: str) -> str | None:
    """A field of a document as matrix.yaml has it; None for no value.

    ValueError if the column contains versions of an axis and this is neither a version nor a range.
    """
    text = text.strip()
    if text.casefold() in _NOTHING:
        return None
    if axis is None:
        return re.sub(r"^v(?=\d+(?:\.\w+)*$)", "", text)
    remark = ""
    if found := _RECOMMENDED.search(text):
        remark = f" ({found['one'] or found['two']} recommended)"
        text = text[: found.start()] + text[found.end() :]
    value = " / ".join(_version(part) for part in text.split("/"))
    if not value or not published_specifiers(axis.scheme, value):
        raise ValueError(f"{text!r} is not a version of {axis.name}")
    return value + remark


def _version(text: str) -> str:
    return re.sub(r"\s+", "", _PREFIX.sub("", text.strip())).removeprefix("==")


def key_version(axis: Axis, text: str | None) -> Version | None:
    """The version in a key field; None if it is no version, for example `main`."""
    try:
        version = axis.parse(_version(text or ""))
    except ValueError:
        return None
    return version if version.order is not None else None


def is_same(one: str | None, other: str | None) -> bool:
    """Whether two fields have the same content."""
    return _bare(one) == _bare(other)


def _bare(text: str | None) -> str:
    return re.sub(r"\s+", "", text or "").casefold()

"""Reads the tables of Markdown and reStructuredText documents: pipe, simple, grid and list tables.

Every field keeps its line, so that a reader can be shown what was not understood.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

#: Follows a wide character, which fills two columns of a reStructuredText table.
_FILLER = "\0"
_PIPE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_SIMPLE_RULE = re.compile(r"\s*=+(\s+=+)+\s*")
_GRID_RULE = re.compile(r"\s*\+([-=]+\+)+\s*")
_LIST_TABLE = re.compile(r"\s*\.\.\s+list-table::")
#: Characters that would change how a terminal shows the text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_MARKUP = (
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^>]*>`_{1,2}"), r"\1"),
    (re.compile(r"<br\s*/?>", re.IGNORECASE), " "),
    (re.compile(r"</?[A-Za-z][^<>]*>"), ""),
    (re.compile(r"\\\s"), ""),
    (re.compile(r"`+|\*\*"), ""),
    (re.compile("[，、]"), ", "),  # noqa: RUF001 - the commas of Chinese text
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """One row.

    fields: their text without markup. line: the first line of the row, counted from 1. is_torn: whether text
    crosses the border of a column, so that the fields are not what the author meant.
    """

    fields: tuple[str, ...]
    line: int
    is_torn: bool = False


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """A table. line: the line of its header; a table without a header has its first row there."""

    header: tuple[str, ...]
    rows: tuple[TableLine, ...]
    line: int


def read_tables(text: str) -> tuple[DocumentTable, ...]:
    """The tables of a document in their order; the text in the fields is without markup."""
    lines = text.expandtabs(4).splitlines()
    tables: list[DocumentTable] = []
    number = 0
    while number < len(lines):
        rows, has_header, end = _table_at(lines, number)
        if rows:
            tables.append(_table(rows, has_header=has_header))
        number = max(end, number + 1)
    return tuple(tables)


def plain_text(field: str) -> str:
    """A field without markup, links and line breaks."""
    field = _CONTROL.sub("", field.replace("\t", " "))
    for pattern, replacement in _MARKUP:
        field = pattern.sub(replacement, field)
    return field.strip()


def _table(rows: Sequence[TableLine], *, has_header: bool) -> DocumentTable:
    first = rows[0]
    if has_header:
        return DocumentTable(header=first.fields, rows=tuple(rows[1:]), line=first.line)
    return DocumentTable(header=(), rows=tuple(rows), line=first.line)


def _table_at(lines: Sequence[str], start: int) -> tuple[list[TableLine], bool, int]:
    """The rows of the table that starts in this line, whether the first is a header, and where it ends."""
    line = lines[start]
    following = lines[start + 1] if start + 1 < len(lines) else ""
    if "|" in line and "|" in following and _PIPE_RULE.fullmatch(following):
        return _pipe_table(lines, start)
    if _GRID_RULE.fullmatch(line):
        return _grid_table(lines, start)
    if _SIMPLE_RULE.fullmatch(line):
        return _simple_table(lines, start)
    if _LIST_TABLE.match(line):
        return _list_table(lines, start)
    return [], False, start + 1


def _pipe_table(lines: Sequence[str], start: int) -> tuple[list[TableLine], bool, int]:
    end = start
    while end < len(lines) and "|" in lines[end]:
        end += 1
    numbers = [number for number in range(start, end) if number != start + 1]
    return [_line(_pipe_fields(lines[number]), number) for number in numbers], True, end


def _pipe_fields(line: str) -> list[str]:
    bare = line.strip().removeprefix("|")
    bare = bare[:-1] if bare.endswith("|") and not bare.endswith(r"\|") else bare
    return [field.replace(r"\|", "|") for field in re.split(r"(?<!\\)\|", bare)]


def _grid_table(lines: Sequence[str], start: int) -> tuple[list[TableLine], bool, int]:
    wide = _widened(lines[start])
    edges = [position for position, letter in enumerate(wide) if letter == "+"]
    rows: list[TableLine] = []
    header = False
    parts: list[list[str]] = []
    number = first = start + 1
    while number < len(lines) and lines[number].strip()[:1] in {"|", "+"}:
        line = _widened(lines[number])
        if _GRID_RULE.fullmatch(lines[number]):
            rows += [_line(_joined(parts), first)] if parts else []
            header = header or ("=" in line and len(rows) == 1)
            parts, first = [], number + 1
        else:
            parts.append([line[a + 1 : b] for a, b in itertools.pairwise(edges)])
        number += 1
    return rows, header, number


def _simple_table(lines: Sequence[str], start: int) -> tuple[list[TableLine], bool, int]:
    starts = [match.start() for match in re.finditer(r"=+", lines[start])]
    edges = [*starts, 1 << 20]
    rules = [start]
    rows: list[TableLine] = []
    number = start + 1
    while number < len(lines):
        if _SIMPLE_RULE.fullmatch(lines[number]):
            rules.append(number)
            following = lines[number + 1] if number + 1 < len(lines) else ""
            if len(rules) > 2 or not following.strip():
                break
        elif lines[number].strip() and not re.fullmatch(r"[\s-]+", lines[number]):
            line = _widened(lines[number])
            fields = [line[a:b] for a, b in itertools.pairwise(edges)]
            torn = any(line[edge - 1 : edge].strip() for edge in starts[1:])
            if not fields[0].strip() and rows:
                rows[-1] = _continued(rows[-1], fields)
            else:
                rows.append(_line(fields, number))
            rows[-1] = replace(rows[-1], is_torn=rows[-1].is_torn or torn)
        number += 1
    header = len(rules) == 3 and bool(rows) and rows[0].line <= rules[1]
    return rows, header, number + 1


def _continued(row: TableLine, fields: Sequence[str]) -> TableLine:
    more = _line(fields, row.line - 1).fields
    joined = tuple(" ".join(filter(None, pair)) for pair in zip(row.fields, more, strict=False))
    return replace(row, fields=joined)


def _list_table(lines: Sequence[str], start: int) -> tuple[list[TableLine], bool, int]:
    indent = len(lines[start]) - len(lines[start].lstrip())
    header = False
    rows: list[tuple[int, list[str]]] = []
    number = start + 1
    while number < len(lines):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        header = header or bool(re.match(r"\s*:header-rows:\s*[1-9]", line))
        if item := re.match(r"\s*\*\s+-\s?(.*)", line):
            rows.append((number, [item[1]]))
        elif rows and (item := re.match(r"\s*-\s?(.*)", line)):
            rows[-1][1].append(item[1])
        elif rows and line.strip():
            rows[-1][1][-1] += f" {line.strip()}"
        number += 1
    return [_line(fields, at) for at, fields in rows], header, number


def _line(fields: Sequence[str], number: int) -> TableLine:
    texts = tuple(plain_text(field.replace(_FILLER, "")) for field in fields)
    return TableLine(fields=texts, line=number + 1)


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    return [" ".join(column) for column in zip(*parts, strict=False)]


def _widened(line: str) -> str:
    return "".join(_letters(line))


def _letters(line: str) -> Iterator[str]:
    for letter in line:
        yield letter
        if unicodedata.east_asian_width(letter) in "WF":
            yield _FILLER

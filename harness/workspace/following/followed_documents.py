"""New rows of tables that documents in upstream repositories contain.

A document whose table cannot be found, or a field that is not understood, is a problem with its line. Its row
is then left out, because a guessed version would be worse than none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import InputError, Location, Problem
from harness.matrix.model.constraints import PublishedTable
from harness.matrix.model.definitions import Axis
from harness.matrix.model.followed_source import FollowedSource
from harness.sources.document_tables import DocumentTable, TableLine, read_tables
from harness.sources.git.git_repository import Repository
from harness.workspace.following.new_rows import (
    Findings,
    NewRow,
    TableNews,
    field_text,
    is_same,
    key_version,
)

#: Columns with the date on which a release was made.
DATE_COLUMNS = ("released", "uploaded")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document at a commit. label: how a source names it. date: of the commit."""

    label: str
    revision: str
    date: str
    tables: tuple[DocumentTable, ...]

    def at(self, line: int) -> Location:
        """A line of it."""
        return Location(self.label, line)


def document_news(table: PublishedTable, axes: Mapping[str, Axis], clone: Repository) -> TableNews:
    """What the documents of a table have that the table lacks. InputError if the clone cannot be read."""
    source = _followed(table)
    if source.each_release:
        return _news_by_release(table, axes, clone)
    found = Findings()
    document = _document(clone, axes[source.axis], source.document, "HEAD", found)
    if document is None:
        return TableNews(table=table, problems=tuple(found.problems))
    listed = _table_with(document, tuple(dict.fromkeys(source.headers.values())), found)
    if listed is not None:
        for line in listed.rows:
            _read_line(table, axes, document, listed, line, found)
        _read_documents_of_releases(table, axes, clone, found)
    return TableNews(
        table=table,
        rows=tuple(found.rows),
        problems=tuple(found.problems),
        notes=tuple(found.notes),
        revision=document.revision,
        date=document.date,
    )


def _read_documents_of_releases(
    table: PublishedTable, axes: Mapping[str, Axis], clone: Repository, found: Findings
) -> None:
    """Add the rows of releases that the newest document lacks and the document at their own tag has.

    Documents of release branches are not always merged: that of a release candidate may be its only one.
    """
    source, axis = _followed(table), axes[table.key]
    listed = {key_version(axis, row.value(table, table.key)) for row in found.rows}
    for tag, text in _new_tags(table, axis, clone):
        version = key_version(axis, text)
        # A document of another form says nothing of the newest one.
        unread = Findings()
        document = _document(clone, axis, source.document, tag, unread) if version not in listed else None
        its_table = (
            _table_with(document, tuple(dict.fromkeys(source.headers.values())), unread) if document else None
        )
        if document is None or its_table is None:
            continue
        key = [name.casefold() for name in its_table.header].index(source.headers[table.key].casefold())
        for line in its_table.rows:
            if len(line.fields) > key and key_version(axis, line.fields[key]) == version:
                _read_line(table, axes, document, its_table, line, found)


def _followed(table: PublishedTable) -> FollowedSource:
    assert table.follow is not None
    return table.follow


def _document(clone: Repository, axis: Axis, path: str, revision: str, found: Findings) -> Document | None:
    owner_and_name = "/".join(axis.repository.removesuffix(".git").split("/")[-2:])
    commit = clone.commit(revision)
    name = revision if revision != "HEAD" else commit[:10]
    label = f"{owner_and_name} {path} @{name}"
    try:
        text = clone.tree(commit).read(path).decode("utf-8", "replace")
    except (KeyError, InputError):
        what = f"{owner_and_name} has no file {path} at {name}"
        fix = "correct `follow.document` of the table, if the document has moved"
        found.problems.append(Problem(what, fix=fix))
        return None
    moment = dt.datetime.fromtimestamp(clone.objects[commit].commit_time, tz=dt.UTC)
    return Document(label=label, revision=name, date=str(moment.date()), tables=read_tables(text))


def _table_with(document: Document, headers: Sequence[str], found: Findings) -> DocumentTable | None:
    """The first table that has all these headers; otherwise a problem at the one that has most of them."""

    def missing(table: DocumentTable) -> list[str]:
        present = [name.casefold() for name in table.header]
        return [header for header in headers if header.casefold() not in present]

    nearest = min(document.tables, key=lambda table: len(missing(table)), default=None)
    if nearest is not None and not missing(nearest):
        return nearest
    if nearest is None or len(missing(nearest)) == len(headers):
        problem = Problem("no table has any of the columns " + ", ".join(headers), document.at(1))
    else:
        problem = Problem(
            f"this table has no column {', '.join(missing(nearest))}",
            document.at(nearest.line),
            why=f"its columns are {', '.join(nearest.header)}",
            fix="correct `follow.headers` of the table in matrix.yaml",
        )
    found.problems.append(problem)
    return None


def _read_line(
    table: PublishedTable,
    axes: Mapping[str, Axis],
    document: Document,
    listed: DocumentTable,
    line: TableLine,
    found: Findings,
) -> None:
    """Add the row in this line if it is new, and a note if a known row has changed."""
    source = _followed(table)
    if line.is_torn:
        found.problems.append(_torn(document, line))
        return
    if len(line.fields) != len(listed.header):
        what = f"this row has {len(line.fields)} fields, its table has {len(listed.header)} columns"
        found.problems.append(Problem(what, document.at(line.line)))
        return
    present = [name.casefold() for name in listed.header]
    texts = {
        column: line.fields[present.index(header.casefold())] for column, header in source.headers.items()
    }
    fields = _fields(table, axes, document, line.line, texts, found)
    if fields is not None:
        _add(table, axes[table.key], fields, f"{document.label}:{line.line}", document.date, found)


def _torn(document: Document, line: TableLine) -> Problem:
    return Problem("text in this row crosses the border of a column", document.at(line.line))


def _fields(
    table: PublishedTable,
    axes: Mapping[str, Axis],
    document: Document,
    line: int,
    texts: Mapping[str, str],
    found: Findings,
) -> dict[str, str | None] | None:
    """Column -> field in the form of matrix.yaml; None, with problems, if one was not understood."""
    source = _followed(table)
    if table.key in texts and key_version(axes[table.key], texts[table.key]) is None:
        found.notes.append(
            f"{document.label}:{line}: {texts[table.key]!r} is not a release, so it is left out"
        )
        return None
    fields: dict[str, str | None] = {}
    problems = []
    for column, text in texts.items():
        sharing = [other for other, header in source.headers.items() if header == source.headers[column]]
        parts = text.split("/") if len(sharing) > 1 else [text]
        if len(parts) != len(sharing):
            what = f"{text!r} has {len(parts)} parts, but is {' and '.join(sharing)}"
            problems.append(Problem(what, document.at(line)))
            continue
        try:
            fields[column] = field_text(axes.get(column), parts[sharing.index(column)])
        except ValueError as error:
            problems.append(Problem(str(error), document.at(line), fix="add this row by hand"))
    found.problems += problems
    return None if problems else fields


def _add(
    table: PublishedTable,
    axis: Axis,
    fields: Mapping[str, str | None],
    source: str,
    date: str,
    found: Findings,
) -> None:
    version = key_version(axis, fields[table.key])
    known = next((row for row in table.rows if _is_row_of(table, axis, row, version)), None)
    if known is None:
        row = tuple(fields.get(column) for column in table.columns)
        found.rows.append(NewRow(fields=row, source=source, date=date))
        return
    for column, text in fields.items():
        have = known[table.columns.index(column)]
        if column != table.key and not is_same(have, text):
            found.notes.append(
                f"{source}: {column} of {fields[table.key]} is {text or 'empty'} in the document, and "
                f"{have or 'empty'} in the table {table.name}; the table is not changed"
            )


def _is_row_of(table: PublishedTable, axis: Axis, row: Sequence[str | None], version: object) -> bool:
    return key_version(axis, row[table.columns.index(table.key)]) == version


def _news_by_release(table: PublishedTable, axes: Mapping[str, Axis], clone: Repository) -> TableNews:
    source = _followed(table)
    axis = axes[source.axis]
    found = Findings()
    for tag, version in _new_tags(table, axis, clone):
        document = _document(clone, axis, source.document, tag, found)
        listed = _guide(document, source, found) if document else None
        if document is None or listed is None:
            continue
        names = {line.fields[0].casefold(): line for line in listed.rows if len(line.fields) > 1}
        fields: dict[str, str | None] | None = {table.key: version}
        for column, name in source.headers.items():
            line = names.get(name.casefold())
            if line is None:
                found.notes.append(f"{document.label}:{listed.line}: the table does not name {name}")
                continue
            if line.is_torn:
                found.problems.append(_torn(document, line))
            one = _fields(table, axes, document, line.line, {column: line.fields[1]}, found)
            fields = None if fields is None or one is None or line.is_torn else {**fields, **one}
        if fields is not None:
            fields.update(dict.fromkeys(set(DATE_COLUMNS) & set(table.columns), document.date))
            _add(table, axis, fields, f"{document.label}:{listed.line}", document.date, found)
    return TableNews(
        table=table, rows=tuple(found.rows), problems=tuple(found.problems), notes=tuple(found.notes)
    )


def _new_tags(table: PublishedTable, axis: Axis, clone: Repository) -> Iterator[tuple[str, str]]:
    """The tags of releases that are newer than the first row of the table and not in it, oldest first."""
    before, _, after = axis.tag.partition("{version}")
    versions = {}
    for name in clone.tags():
        if name.startswith(before) and name.endswith(after):
            text = name.removeprefix(before).removesuffix(after)
            version = key_version(axis, text)
            if version is not None and not version.is_between_releases:
                versions[version] = name
    rows = [key_version(axis, row[table.columns.index(table.key)]) for row in table.rows]
    known = [version for version in rows if version is not None]
    oldest = min(known, key=lambda one: one.order or (), default=None)
    for version, name in sorted(versions.items(), key=lambda pair: pair[0].order or ()):
        if version not in known and (oldest is None or (version.order or ()) > (oldest.order or ())):
            yield name, version.nominal


def _guide(document: Document, source: FollowedSource, found: Findings) -> DocumentTable | None:
    """The table whose first column has most of the names, at least half of them."""
    wanted = {name.casefold() for name in source.headers.values()}

    def hits(table: DocumentTable) -> int:
        return len(wanted & {line.fields[0].casefold() for line in table.rows if len(line.fields) > 1})

    best = max(document.tables, key=hits, default=None)
    if best is not None and 2 * hits(best) >= len(wanted):
        return best
    what = f"no table of this document names most of {', '.join(source.headers.values())} in its first column"
    found.problems.append(Problem(what, document.at(best.line if best else 1)))
    return None

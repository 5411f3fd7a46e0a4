"""New rows of tables that list what the metadata of a package's releases requires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.compat.resolve.archive_metadata import read_archive_metadata
from harness.compat.resolve.replaced_requirements import ReleaseMetadata
from harness.errors import HarnessError, Problem
from harness.matrix.model.constraints import PublishedTable
from harness.matrix.model.definitions import Axis
from harness.sources.packages.index_lookup import PackageIndex, PublishedFile, ReleaseNotFoundError
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.following.followed_documents import DATE_COLUMNS
from harness.workspace.following.new_rows import Findings, NewRow, TableNews, key_version

#: More new releases than this are added by the next call.
MOST_RELEASES = 50


def release_news(
    table: PublishedTable, axes: Mapping[str, Axis], index: PackageIndex, releases: ReleaseFetcher
) -> TableNews:
    """The releases on the index that are newer than the oldest row and not in the table, with their metadata.

    InfrastructureError if the index cannot be reached.
    """
    assert table.follow is not None
    axis = axes[table.follow.axis]
    found = Findings()
    for file in _new_files(table, axis, index):
        try:
            sources = releases.sources(axis.package, file.version).file
            metadata = read_archive_metadata(axis.package, file.version, sources)
            if not metadata.is_known:
                raise ValueError("its archive has no metadata")
            fields = _fields(table, metadata.release, file)
        except (HarnessError, ValueError) as error:
            found.problems.append(Problem(f"{axis.package} {file.version} is not added", why=str(error)))
            continue
        source = f"METADATA of {axis.package} {file.version}, uploaded on {file.uploaded or 'an unknown day'}"
        found.rows.append(NewRow(fields=fields, source=source, date=file.uploaded))
    return TableNews(
        table=table, rows=tuple(found.rows), problems=tuple(found.problems), notes=tuple(found.notes)
    )


def _new_files(table: PublishedTable, axis: Axis, index: PackageIndex) -> Iterator[PublishedFile]:
    """One file of each new release, newest first."""
    rows = [key_version(axis, row[table.columns.index(table.key)]) for row in table.rows]
    known = {version.nominal: version for version in rows if version is not None}
    oldest = min(known.values(), key=lambda one: one.order or (), default=None)
    bounds = [f">{oldest.nominal}"] if oldest else []
    excluded = list(known)
    for _ in range(MOST_RELEASES):
        specifier = ",".join([*bounds, *(f"!={version}" for version in excluded)])
        try:
            files = index.files([f"{axis.package}{specifier}"])
        except ReleaseNotFoundError:
            return
        yield files[0]
        excluded.append(files[0].version)


def _fields(table: PublishedTable, release: ReleaseMetadata, file: PublishedFile) -> tuple[str | None, ...]:
    """ValueError if a package is required in several ways that depend on the platform."""
    special: dict[str, Callable[[], str | None]] = {
        table.key: lambda: file.version,
        "python": lambda: release.requires_python.replace(" ", "") or None,
        **{column: lambda: file.uploaded or None for column in DATE_COLUMNS},
    }
    return tuple(
        special[column]() if column in special else _required(release, column) for column in table.columns
    )


def _required(release: ReleaseMetadata, column: str) -> str | None:
    """The specifier of a required package, `*` for any version, None if it is not required."""
    specifiers: dict[str, None] = {}
    for line in release.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise ValueError(f"its requirement {line!r} cannot be read: {error}") from error
        is_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if canonicalize_name(requirement.name) == canonicalize_name(column) and not is_extra:
            specifiers[str(requirement.specifier) or "*"] = None
    if len(specifiers) > 1:
        raise ValueError(f"it requires {column} in different versions: {', '.join(specifiers)}")
    return next(iter(specifiers), None)

"""What the check `api` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.compat.uses.use_finding import UseFinding
from harness.measurements import measurement_format
from harness.sources.packages.release_archive import ReleaseArchive

#: A module that so many others import is shared code: without it, a group of models or functions is gone.
#: In 65 stacks that people report as working, at most one other module imports one that cannot be
#: imported. In reported failures: 12 (diffusers 0.35.0, torch 2.3.1), 98 (transformers 4.53.0, torch 2.5.1).
SHARED = 10


@dataclass(frozen=True, kw_only=True)
class ApiFinding(UseFinding):
    """A use of a consumer of the cell that the pinned version of the provider does not support.

    always: whether it fails every training, because a module that every training imports contains it.
    patch: id of our patch that adds the line, "" if none does.
    last: the last earlier release of the provider that had the name, "" when it was not looked up.
    importers: how many modules cannot be imported because this one cannot (counted up to `SHARED`); 0 if not
    counted.
    """

    consumer: str
    always: bool
    patch: str = ""
    last: str = ""
    importers: int = 0

    @property
    def fails(self) -> bool:
        """Whether it fails the cell: every training or shared code breaks, or a line that our patches add."""
        return self.breaks and (self.always or self.introduced or self.importers >= SHARED)

    def __str__(self) -> str:
        had = f", {self.last} had it" if self.last else ""
        ours = f"; our patch {self.patch} adds this use" if self.patch else ""
        return f"{self.file}:{self.line}: {self.text} ({self.provider}{had}{ours})"


class CheckedPair(NamedTuple):
    """A consumer and a provider that were compared."""

    consumer: str
    consumer_version: str
    provider: str
    provider_version: str

    def __str__(self) -> str:
        if self.consumer == self.provider:
            return f"{self.consumer} {self.consumer_version}: its own names with our patches"
        return f"{self.consumer} {self.consumer_version} with {self.provider} {self.provider_version}"


@dataclass(frozen=True, kw_only=True)
class ApiMeasured:
    """The uses of all consumers of the cell.

    uses: consumer -> the number of uses that were checked.
    unparsed: files that this Python version cannot parse.
    not_read: packages whose sources are not available.
    misfits: ids of our patches that do not apply. archives_read: the archives of releases that were read.
    absent_commits: the commits of packages in `not_read` that no mirror has.
    """

    pairs: tuple[CheckedPair, ...]
    findings: tuple[ApiFinding, ...]
    uses: Mapping[str, int]
    unparsed: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    archives_read: tuple[ReleaseArchive, ...] = ()
    absent_commits: tuple[str, ...] = ()


API_FORMAT = measurement_format(ApiMeasured, version=1)

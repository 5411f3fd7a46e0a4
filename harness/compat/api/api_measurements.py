"""What the check `api` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class ApiFinding:
    """A use that the pinned version of a provider does not support; see `UseFinding` for the first fields.

    breaks: whether the line fails when it runs.
    always: whether it runs in every training, because the modules that every training imports contain it.
    patches: ids of our patches that change the file.
    last: the last earlier release of the provider that had the name, "" when it was not looked up.
    """

    kind: str
    file: str
    line: int
    provider: str
    name: str
    text: str
    guarded: str
    at_import: bool
    breaks: bool
    consumer: str
    always: bool
    patches: tuple[str, ...] = ()
    last: str = ""

    def __str__(self) -> str:
        had = f", {self.last} had it" if self.last else ""
        ours = f"; our patch {', '.join(self.patches)} changes this file" if self.patches else ""
        return f"{self.file}:{self.line}: {self.text} ({self.provider}{had}{ours})"


class CheckedPair(NamedTuple):
    """A consumer and a provider that were compared."""

    consumer: str
    consumer_version: str
    provider: str
    provider_version: str

    def __str__(self) -> str:
        return f"{self.consumer} {self.consumer_version} with {self.provider} {self.provider_version}"


@dataclass(frozen=True, kw_only=True)
class ApiMeasured:
    """The uses of all consumers of the cell.

    uses: consumer -> how many uses were checked. unparsed: files that this Python version cannot parse.
    not_read: packages whose sources are not available. misfits: ids of our patches that do not apply.
    """

    pairs: tuple[CheckedPair, ...]
    findings: tuple[ApiFinding, ...]
    uses: Mapping[str, int]
    unparsed: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()


API_FORMAT = measurement_format(ApiMeasured, version=1)

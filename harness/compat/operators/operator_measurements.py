"""What the check `npu-ops` measures."""

from __future__ import annotations

from dataclasses import dataclass

from harness.measurements import measurement_format
from harness.sources.packages.release_archive import ReleaseArchive


@dataclass(frozen=True, kw_only=True)
class PackageVersion:
    """A release or a commit of a package, as in the facets `torch_npu`, `verl_tree` and `vllm_ascend`."""

    package: str
    version: str
    kind: str
    commit: str = ""
    repository: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckedConsumer:
    """A package whose calls were checked.

    pinned: the torch_npu version that it requires, or "". calls: the number of its operator calls.
    """

    package: str
    version: str
    pinned: str
    calls: int


@dataclass(frozen=True, kw_only=True)
class TorchNpuMisuse:
    """A use that this torch_npu does not support.

    kind: `missing` or `arguments` for operators, a kind of `UseFinding` for other names.
    guarded: whether the use is behind a test or in a `try`, its file is only for other chips, or nothing in
    the package calls its function.
    own: whether the use also fails with the torch_npu that the consumer pins.
    """

    consumer: str
    kind: str
    name: str
    file: str
    line: int
    text: str
    guarded: bool
    own: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class ChangedDefault:
    """A call that omits an argument whose default differs from that in the torch_npu the consumer pins."""

    consumer: str
    name: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.text}, and this call uses the default"


@dataclass(frozen=True, kw_only=True)
class OperatorsMeasured:
    """The uses of torch_npu in the consumers of the cell.

    uses: uses that torch_npu does not support. silent: calls whose default arguments changed.
    not_read: why a package could not be checked. archives_read: the archives of releases that were read.
    absent_commits: the commits of packages in `not_read` that no mirror has.
    """

    torch_npu: PackageVersion
    consumers: tuple[CheckedConsumer, ...] = ()
    uses: tuple[TorchNpuMisuse, ...] = ()
    silent: tuple[ChangedDefault, ...] = ()
    not_read: tuple[str, ...] = ()
    archives_read: tuple[ReleaseArchive, ...] = ()
    absent_commits: tuple[str, ...] = ()


OPERATORS_FORMAT = measurement_format(OperatorsMeasured, version=1)

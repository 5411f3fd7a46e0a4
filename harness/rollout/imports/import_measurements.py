"""The measurements of the check `vllm-imports`. Standard library only: the program in the cell uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class BrokenImport:
    """Why a module cannot be imported.

    kind: `absent` (a package is not installed, or another package replaces it), `api` (an installed package
    lacks a module or name), `library` (a shared library is missing), `crash`, `hang`, `error` (any other
    exception), `order` (an `api` or `error` that disappears once the other modules are imported, as they are
    in a worker).
    file, line, code: the innermost place in the module's own package, or "" and 0.
    missing: the missing name, as far as the error names it. chain: the errors, the outermost first.
    """

    module: str
    kind: str
    type: str
    message: str
    file: str = ""
    line: int = 0
    code: str = ""
    missing: str = ""
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportedPackage:
    """A package whose modules were imported. requires: the distributions it requires without an extra."""

    version: str
    modules: int
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """The report that the program in the cell writes."""

    schema: Mapping[str, object]
    packages: Mapping[str, ImportedPackage]
    breaks: tuple[BrokenImport, ...]
    device: DeviceFacts
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ImportMeasurements:
    """The imported modules of all packages. left_out: packages that the environment omits on purpose."""

    state: Literal["measured"] = "measured"
    packages: Mapping[str, ImportedPackage]
    breaks: tuple[BrokenImport, ...]
    device: DeviceFacts
    left_out: tuple[str, ...]
    seconds: float = 0.0


IMPORT_FORMAT = measurement_format(ImportMeasurements, ProgramFailure, version=1)

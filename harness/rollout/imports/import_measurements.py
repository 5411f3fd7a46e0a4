"""What the check `vllm-imports` measures. Standard library only: the program in the cell writes it."""

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

    kind: `absent` (a package that is not installed, or that another one replaces), `api` (a module or name
    an installed package lacks), `library` (a shared library), `crash`, `hang`, `error` (anything else raised
    on import), `order` (an api or error that is gone once the others are imported, as they are in a worker).
    file, line, code: the deepest place in the module's own package, "" and 0 outside of it.
    missing: what is absent or lacking, as far as the error says; chain: the errors from the outermost in.
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
    """A package whose modules were imported; `requires`: distributions it requires without an extra."""

    version: str
    modules: int
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What the program in the cell writes."""

    schema: Mapping[str, object]
    packages: Mapping[str, ImportedPackage]
    breaks: tuple[BrokenImport, ...]
    device: DeviceFacts
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ImportMeasurements:
    """The modules of all packages. left_out: packages that the environment leaves out on purpose."""

    state: Literal["measured"] = "measured"
    packages: Mapping[str, ImportedPackage]
    breaks: tuple[BrokenImport, ...]
    device: DeviceFacts
    left_out: tuple[str, ...]
    seconds: float = 0.0


IMPORT_FORMAT = measurement_format(ImportMeasurements, ProgramFailure, version=1)

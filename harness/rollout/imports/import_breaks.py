"""Groups the modules that cannot be imported by root cause, and judges them. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.cell_program.program_run import ProgramFailure
from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.outcome import Judgement, Status
from harness.rollout.imports.import_measurements import BrokenImport, ImportMeasurements

PACKAGE = "vllm_ascend"
MOST_CAUSES = 12
MOST_MODULES = 4
_KIND_TEXT = {
    "api": "an installed package lacks it",
    "library": "a shared library is missing",
    "crash": "the process died",
    "hang": "the import does not finish",
    "error": "an exception was raised",
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A line of code that uses the missing name (file:line and code, or ""), and the modules it breaks."""

    place: str
    modules: tuple[str, ...]

    def sentence(self) -> str:
        """The place and the modules that break because of it."""
        more = f" and {len(self.modules) - MOST_MODULES} more" if len(self.modules) > MOST_MODULES else ""
        where = f" at {self.place}" if self.place else ""
        return f"{where}: {', '.join(self.modules[:MOST_MODULES])}{more}"


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """Modules that break for the same reason. sites: the places in the code, the most modules first."""

    kind: str
    text: str
    missing: str
    sites: tuple[Site, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules that break because of it."""
        return tuple(module for site in self.sites for module in site.modules)

    def sentence(self) -> str:
        """The cause, the places in the code, and the modules that break."""
        where = ";".join(site.sentence() for site in self.sites)
        return f"{self.text} ({_KIND_TEXT.get(self.kind, self.kind)}){where}."


def root_causes(breaks: Sequence[BrokenImport]) -> tuple[RootCause, ...]:
    """Group breaks by what is missing, or by error and file if that is unknown; the most modules first."""
    groups: dict[tuple[str, ...], list[BrokenImport]] = {}
    for one in breaks:
        named = (one.missing,) if one.missing else (one.type, one.message, one.file)
        groups.setdefault((one.kind, *named), []).append(one)
    causes = [
        RootCause(
            kind=group[0].kind,
            text=f"{group[0].type}: {group[0].message}",
            missing=group[0].missing,
            sites=_sites(group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(causes, key=lambda cause: (-len(cause.modules), cause.text)))


def _sites(group: Sequence[BrokenImport]) -> tuple[Site, ...]:
    modules: dict[str, list[str]] = {}
    for one in group:
        modules.setdefault(_place(one), []).append(one.module)
    found = [Site(place=place, modules=tuple(names)) for place, names in modules.items()]
    return tuple(sorted(found, key=lambda site: (-len(site.modules), site.place)))


def _place(one: BrokenImport) -> str:
    if not one.file:
        return ""
    return f"{one.file}:{one.line}" + (f" `{one.code}`" if one.code else "")


def is_optional(cause: RootCause, required: Sequence[str]) -> bool:
    """Whether the cause is a missing package that no package under test requires."""
    top = cause.missing.partition(".")[0].replace("_", "-").lower()
    return cause.kind == "absent" and top not in required


def judge(measured: ImportMeasurements | ProgramFailure, _params: Mapping[str, Any]) -> Judgement:
    """Pass when every module can be imported, except modules whose optional package is not installed.

    A package that the environment leaves out on purpose counts as optional. A module that can be imported
    only after other modules is named in the reasons, but does not fail the cell. Inconclusive when the only
    breaks are operators that the simulation does not implement, or when no module of vllm-ascend was found.
    """
    if isinstance(measured, ProgramFailure):
        return Judgement(
            status=Status.FAIL,
            reasons=(f"The program that imports the modules {measured.ending}.", *measured.last_line),
            remedies=("Read the end of the task's log.",),
        )
    packages = measured.packages
    if PACKAGE not in packages or not packages[PACKAGE].modules:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(f"No module of {PACKAGE} was found on Python's search path, so none was imported.",),
            remedies=(
                "Build the environment again. If that does not help, read the package list in the log.",
            ),
        )
    required = {name for facts in packages.values() for name in facts.requires}
    required -= set(measured.left_out)
    causes = root_causes(measured.breaks)
    optional = [cause for cause in causes if is_optional(cause, tuple(required))]
    late = [cause for cause in causes if cause.kind == "order"]
    simulated = measured.device.simulated
    unanswered = {cause.text: unsimulated_operators(cause.text) if simulated else [] for cause in causes}
    lacking = sorted({name for names in unanswered.values() for name in names})
    broken = [cause for cause in causes if cause not in (*optional, *late) and not unanswered[cause.text]]
    looked = ", ".join(f"{facts.modules} of {name} {facts.version}" for name, facts in packages.items())
    remarks = [f"Imported modules: {looked}, each in its own process."]
    if optional:
        names = ", ".join(sorted({cause.missing.partition(".")[0] for cause in optional}))
        hit = sum(len(cause.modules) for cause in optional)
        remarks.append(f"Not installed and not required by any package: {names} ({hit} modules import them).")
    if late:
        names = ", ".join(sorted(module for cause in late for module in cause.modules))
        remarks.append(f"Importable only after other modules: {names}.")
    remarks += [f"not simulated: {name}" for name in lacking]
    if not broken and lacking:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(
                "On import, modules call operators that the simulated device does not implement.",
                *remarks,
            ),
            remedies=(
                "Run this cell on an NPU, or implement the operators in harness/devices/sim/references.",
            ),
        )
    if not broken:
        return Judgement(status=Status.PASS, reasons=tuple(remarks))
    hit = sum(len(cause.modules) for cause in broken)
    sites = sum(len(cause.sites) for cause in broken)
    reasons = [
        f"{hit} modules break, {_count(broken)}{f' in {sites} places' if sites > len(broken) else ''}.",
        *(cause.sentence() for cause in broken[:MOST_CAUSES]),
    ]
    if len(broken) > MOST_CAUSES:
        reasons.append(f"{len(broken) - MOST_CAUSES} more causes are in the measurements.")
    return Judgement(
        status=Status.FAIL,
        reasons=(*reasons, *remarks),
        remedies=("Use versions that were released for each other: `npu-matrix explain CELL` lists them.",),
    )


def _count(causes: Sequence[RootCause]) -> str:
    return "one root cause" if len(causes) == 1 else f"{len(causes)} root causes"

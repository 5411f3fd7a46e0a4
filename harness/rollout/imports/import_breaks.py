"""What the modules that cannot be imported have in common, and whether it is the cell's fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.cell_program.program_run import ProgramFailure
from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.outcome import Judgement, Status
from harness.rollout.imports.import_measurements import BrokenImport, ImportMeasurements

ASKED_OF = "vllm_ascend"
MOST_CAUSES = 12
MOST_MODULES = 4
_KIND_TEXT = {
    "api": "an installed package lacks it",
    "library": "a shared library is missing",
    "crash": "the process died",
    "hang": "the import does not end",
    "error": "raised on import",
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place that asks for what is missing, file:line with its code or "", and the modules that load it."""

    place: str
    modules: tuple[str, ...]

    def sentence(self) -> str:
        """The place and whom it takes along."""
        more = f" and {len(self.modules) - MOST_MODULES} more" if len(self.modules) > MOST_MODULES else ""
        where = f" at {self.place}" if self.place else ""
        return f"{where}: {', '.join(self.modules[:MOST_MODULES])}{more}"


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """Modules that break for one reason; `sites` ask for what is missing, those that hit most first."""

    kind: str
    text: str
    missing: str
    sites: tuple[Site, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules it takes along."""
        return tuple(module for site in self.sites for module in site.modules)

    def sentence(self) -> str:
        """The cause, where it shows, and whom it takes along."""
        where = ";".join(site.sentence() for site in self.sites)
        return f"{self.text} ({_KIND_TEXT.get(self.kind, self.kind)}){where}."


def root_causes(breaks: Sequence[BrokenImport]) -> tuple[RootCause, ...]:
    """Breaks by what they lack, or by error and place where nothing is named; those that hit most first."""
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
    """Whether the cause is a package that is not installed and that nothing under test requires."""
    top = cause.missing.partition(".")[0].replace("_", "-").lower()
    return cause.kind == "absent" and top not in required


def judge(measured: ImportMeasurements | ProgramFailure, _params: Mapping[str, Any]) -> Judgement:
    """Passes when every module imports, but for those whose optional package is not installed. A module that
    needs others to be imported before it is named and does not fail the cell.

    A package that the environment leaves out on purpose counts as optional. Inconclusive where nothing else
    breaks than what the simulation does not compute, and where vllm-ascend has no module that was tried.
    """
    if isinstance(measured, ProgramFailure):
        return Judgement(
            status=Status.FAIL,
            reasons=(f"The program that imports the modules {measured.ending}.", *measured.last_line),
            remedies=("Look at the end of the log.",),
        )
    packages = measured.packages
    if ASKED_OF not in packages or not packages[ASKED_OF].modules:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(f"No module of {ASKED_OF} was found where Python looks for it, so none was tried.",),
            remedies=("Build the environment again; if it stays, look at its packages in the log.",),
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
    remarks = [f"Imported modules: {looked}, each in a process of its own."]
    if optional:
        names = ", ".join(sorted({cause.missing.partition(".")[0] for cause in optional}))
        hit = sum(len(cause.modules) for cause in optional)
        remarks.append(f"Not there and required by nobody: {names} ({hit} modules want them).")
    if late:
        names = ", ".join(sorted(module for cause in late for module in cause.modules))
        remarks.append(f"Importable only after the others: {names}.")
    remarks += [f"not simulated: {name}" for name in lacking]
    if not broken and lacking:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=("Modules call operators while they are imported that are not simulated.", *remarks),
            remedies=("Run this cell on an NPU, or write the reference in harness/devices/sim/references.",),
        )
    if not broken:
        return Judgement(status=Status.PASS, reasons=tuple(remarks))
    hit = sum(len(cause.modules) for cause in broken)
    sites = sum(len(cause.sites) for cause in broken)
    reasons = [
        f"{hit} modules break, {_count(broken)}{f' at {sites} places' if sites > len(broken) else ''}.",
        *(cause.sentence() for cause in broken[:MOST_CAUSES]),
    ]
    if len(broken) > MOST_CAUSES:
        reasons.append(f"{len(broken) - MOST_CAUSES} more causes are in the measurements.")
    return Judgement(
        status=Status.FAIL,
        reasons=(*reasons, *remarks),
        remedies=("Take the versions that were released for each other: `npu-matrix explain CELL`.",),
    )


def _count(causes: Sequence[RootCause]) -> str:
    return "one root cause" if len(causes) == 1 else f"{len(causes)} root causes"

"""What linting a job finds, which is also what the check `lint` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import Location
from harness.measurements import measurement_format
from harness.sources.packages.release_archive import ReleaseArchive

CONFIG_RULE = "CONFIG-KEY"
MISSING_VALUE_RULE = "TORN-OVERRIDE"


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A change of one word of a script that a finding proposes. It is offered only after it was tried.

    part: whether the key or the value of an override or variable changes from `old` to `new`, or whether the
    space between them goes. name: the key, or `env.NAME`. line, column: where the word is written.
    """

    part: Literal["key", "value", "space"]
    name: str
    old: str
    new: str
    line: int
    column: int

    def __str__(self) -> str:
        name = self.name.removeprefix("env.")
        if self.part == "key":
            return f"{self.old} becomes {self.new}"
        if self.part == "space":
            return f"the space after {name}= goes"
        return f"{name}={self.old} becomes {name}={self.new}"


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """A setting that a rule reports. `line` and `column` count from 1; 0 for a finding in a recipe.

    changes: what would correct it, if only one correction is plausible.
    """

    rule: str
    severity: str
    file: str
    line: int
    column: int
    message: str
    why: str
    fix: str
    source: str
    recipe: str = ""
    changes: tuple[SettingChange, ...] = ()

    @classmethod
    def at(
        cls,
        where: Location,
        *,
        rule: str,
        severity: str,
        message: str,
        why: str,
        fix: str,
        source: str,
        recipe: str,
        changes: tuple[SettingChange, ...] = (),
    ) -> LintFinding:
        """A finding at a place of a script or recipe."""
        return cls(
            rule=rule,
            severity=severity,
            file=str(where.file),
            line=where.line,
            column=where.column,
            message=message,
            why=why,
            fix=fix,
            source=source,
            recipe=recipe,
            changes=changes,
        )

    def __str__(self) -> str:
        location = Location(self.file, self.line, self.column)
        return f"{location}: {self.severity} {self.rule}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class UndecidedRule:
    """A rule that could not be decided, and the names whose values are not known."""

    rule: str
    unknown: tuple[str, ...]
    recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class ScriptNote:
    """A part of a script that the parser does not understand. unread: settings in it were not checked."""

    line: int
    text: str
    unread: bool = False


@dataclass(frozen=True, kw_only=True)
class LintResult:
    """Findings sorted by location, undecided rules, and parts of the script that were not understood."""

    findings: tuple[LintFinding, ...]
    undecided: tuple[UndecidedRule, ...]
    notes: tuple[ScriptNote, ...] = ()

    @classmethod
    def of(cls, results: Sequence[LintResult]) -> LintResult:
        """Several results as one."""
        return LintResult(
            findings=tuple(
                sorted(
                    (finding for result in results for finding in result.findings),
                    key=lambda finding: (finding.file, finding.line),
                )
            ),
            undecided=tuple(dict.fromkeys(item for result in results for item in result.undecided)),
            notes=tuple(note for result in results for note in result.notes),
        )

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What was not checked, so that the absence of errors does not mean that the settings are right."""
        names = dict.fromkeys(
            name for item in self.undecided if item.rule == CONFIG_RULE for name in item.unknown
        )
        compared = [f"overrides were not compared with {name}" for name in names]
        return (*compared, *(f"line {note.line}: {note.text}" for note in self.notes if note.unread))


@dataclass(frozen=True, kw_only=True)
class LintMeasured(LintResult):
    """The result for the recipe of a cell; `recipe` is None when the cell has none.

    is_verl_job: False if the job is not a verl job, to which no rule applies. absent_commits: the commit of
    verl, or of the cell's patches, if no mirror has it, so that its configuration was not read.
    misfits: ids of the cell's patches that do not apply exactly, and were left out.
    """

    recipe: str | None
    is_verl_job: bool
    archives_read: tuple[ReleaseArchive, ...] = ()
    absent_commits: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()


LINT_FORMAT = measurement_format(LintMeasured, version=2)

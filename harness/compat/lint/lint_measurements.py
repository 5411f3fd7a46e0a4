"""What linting a job finds, which is also what the check `lint` measures."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import Location
from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """A setting that a rule reports. `line` and `column` count from 1; 0 for a finding in a recipe."""

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
    """A part of a script that the parser does not understand."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class LintResult:
    """Findings sorted by location, undecided rules, and parts of the script that were not understood."""

    findings: tuple[LintFinding, ...]
    undecided: tuple[UndecidedRule, ...]
    notes: tuple[ScriptNote, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LintMeasured(LintResult):
    """The result for the recipe of a cell; `recipe` is None when the cell has none.

    is_verl_job: False if the job is not a verl job, to which no rule applies.
    """

    recipe: str | None
    is_verl_job: bool


LINT_FORMAT = measurement_format(LintMeasured, version=1)

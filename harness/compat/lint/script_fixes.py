"""Fixes of a script that were tried: the finding goes, and no finding of its level or above comes.

Each proposed change (`setting_changes`) is made in a copy of the script, which is then read by bash's grammar
and linted again. What lint does not accept is not offered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.script_edits import ScriptEdit, before_edits, edit_of, edited
from harness.compat.lint.shell.syntax_tree import parse_bash
from harness.errors import InputError

LEVELS = ("error", "warning", "note")
# Each is one lint of the script. Scripts with more mistakes are corrected by a second call.
MAX_TRIALS = 40

Lint = Callable[[bytes], LintResult]


@dataclass(frozen=True, kw_only=True)
class ScriptFix:
    """A fix that was tried. edits: by offsets in the script as it was before all fixes."""

    finding: LintFinding
    edits: tuple[ScriptEdit, ...]


@dataclass(frozen=True, kw_only=True)
class RejectedFix:
    """A proposed fix that lint does not accept. why: what would be found with it."""

    finding: LintFinding
    why: str


@dataclass(frozen=True, kw_only=True)
class FixedScript:
    """A script with all fixes that lint accepts together. after: what is still found."""

    path: Path
    before: bytes
    fixed: bytes
    fixes: tuple[ScriptFix, ...]
    rejected: tuple[RejectedFix, ...]
    after: LintResult


class FixTrials:
    """Tries the fixes of one script, each on top of those that were accepted before it."""

    def __init__(self, path: Path, script: bytes, lint: Lint) -> None:
        self._path, self._script, self._lint = path, script, lint
        self._tree = parse_bash(script.decode("utf-8"), str(path))
        self._before = self._result = lint(script)
        self._edits: list[ScriptEdit] = []
        self._fixes: list[ScriptFix] = []
        self._rejected: dict[LintFinding, RejectedFix] = {}
        self._trials = 0

    def fixed(self, is_wanted: Callable[[LintFinding], bool]) -> FixedScript:
        """The script with the fixes of the wanted findings, until no further one is accepted."""
        wanted = [finding for finding in self._before.findings if is_wanted(finding)]
        accepted = -1
        while accepted != len(self._fixes):
            accepted = len(self._fixes)
            for finding in wanted:
                self._try(finding)
        return FixedScript(
            path=self._path,
            before=self._script,
            fixed=edited(self._script, self._edits),
            fixes=tuple(self._fixes),
            rejected=tuple(self._rejected.values()),
            after=self._result,
        )

    def _try(self, finding: LintFinding) -> None:
        """Accept or reject the fix of a finding, with the fixes of what it uncovers."""
        own: tuple[ScriptEdit, ...] = ()
        uncovered: LintFinding | None = finding
        why = ""
        while uncovered is not None and self._trials < MAX_TRIALS:
            # A finding that a fix uncovers has its place in the edited script.
            more = self._proposed(uncovered, [*self._edits, *own] if own else [])
            if not more or _overlap(more, [*self._edits, *own]):
                break
            own = (*own, *more)
            self._trials += 1
            try:
                tried = self._lint(edited(self._script, [*self._edits, *own]))
            except InputError as error:
                why = error.problems[0].what
                break
            why, uncovered = _objection(finding, self._result, tried)
            if not why:
                self._rejected.pop(finding, None)
                self._fixes.append(ScriptFix(finding=finding, edits=own))
                self._edits += own
                self._result = tried
                return
        if why:
            self._rejected[finding] = RejectedFix(finding=finding, why=why)

    def _proposed(self, finding: LintFinding, edits: Sequence[ScriptEdit]) -> tuple[ScriptEdit, ...]:
        """The edits for all changes of a finding in the script with `edits`, by offsets in the script before.

        None if one of the changes is not possible in this file.
        """
        if Path(finding.file) != self._path:
            return ()
        script = edited(self._script, edits)
        tree = self._tree if script == self._script else parse_bash(script.decode("utf-8"), str(self._path))
        made = [edit_of(script, tree, change) for change in finding.changes]
        found = tuple(dict.fromkeys(before_edits(edit, edits) for edit in made if edit is not None))
        return () if None in made else found


def _overlap(own: Sequence[ScriptEdit], others: Sequence[ScriptEdit]) -> bool:
    return any(one.start < other.end and other.start < one.end for one in own for other in others)


def _objection(finding: LintFinding, before: LintResult, after: LintResult) -> tuple[str, LintFinding | None]:
    """Why a fix is not accepted, "" if it is; and the finding that it causes or uncovers."""
    known, found = _counted(before), _counted(after)
    name = (finding.rule, finding.message)
    if found[name] >= known[name]:
        return "it would still be found", None
    undecided = {item.rule for item in after.undecided} - {item.rule for item in before.undecided}
    open_parts = [text for text in after.unchecked if text not in before.unchecked]
    if finding.rule in undecided or open_parts:
        return (open_parts[0] if open_parts else "whether it is then correct is not known"), None
    levels = LEVELS[: LEVELS.index(finding.severity) + 1]
    for one in after.findings:
        if one.severity in levels and _is_new(one, found, known):
            return f"{one.rule} would be found then: {one.message}", one
    return "", None


def _is_new(finding: LintFinding, found: Counter[tuple[str, str]], known: Counter[tuple[str, str]]) -> bool:
    name = (finding.rule, finding.message)
    return found[name] > known[name]


def _counted(result: LintResult) -> Counter[tuple[str, str]]:
    """Findings by rule and message, wherever in the script they are."""
    return Counter((one.rule, one.message) for one in result.findings)

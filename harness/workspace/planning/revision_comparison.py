"""`plan --changed-since REF`: compare the plan with that of an earlier revision of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InputError, NothingSelectedError
from harness.ledger.plan_record import PlanRecord
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import PACKAGE_ROOT
from harness.plan.change.impact import Effect, Impact, TaskImpact, compare_plans
from harness.plan.change.revision import (
    PACKAGE,
    Revision,
    has_same_code,
    planning_digest,
    resolve_revision,
)
from harness.serialisation import as_object, load
from harness.settings import ENVIRONMENT_PREFIX, OPTIONS, Settings
from harness.verdict.expectations import ExpectationList, ExpectationSurvey
from harness.verdict.verdict import ExpectedFailure
from harness.workspace.planning.open_plan import PlanContext, expectations, open_plan
from harness.workspace.planning.plan_estimates import work_text
from harness.workspace.planning.plan_history import PlanHistory
from harness.workspace.planning.plan_schedule import PlanReport
from harness.workspace.planning.revision_files import settings_of_revision

#: Time limit in seconds for the planner of another revision, which runs in a process of its own.
SECONDS = 120


def compare_with_revision(
    context: PlanContext, known: PlanHistory, reference: str, only: Sequence[str], checks: Sequence[str]
) -> PlanReport:
    """The plan, with the differences from a revision as JSON (schema `npu-matrix.impact`) and as text."""
    revision = resolve_revision(context.settings.root, reference)
    before = plan_of_revision(context, revision, only, checks)
    names = {(entry.cell_id, entry.check): (entry.cell_id, entry.check) for entry in context.plan.entries}
    found = compare_plans(context.plan, before.plan, expected_otherwise(context, before, names))
    changed = [task for task in found.tasks if task.effect is not Effect.UNCHANGED]
    return PlanReport(
        context=context,
        known=known,
        json=_report(context, known, revision, found),
        lines=_lines(context, known, revision, found),
        changed_cells=frozenset(cell for task in changed for cell in task.cells),
    )


@dataclass(frozen=True, kw_only=True)
class RevisionPlan:
    """The plan of a revision, with the settings and the matrix that it was made from.

    matrix: None if the current code cannot read it. Then `expected` has its expected failures as the code of
    the revision lists them; None if that cannot list them either.
    """

    plan: PlanRecord
    settings: Settings
    matrix: Matrix | None
    expected: tuple[ExpectationSurvey, ...] | None = None


class DeclaredFailure(NamedTuple):
    """An expected failure: the state in which the check should end, for which reasons, and where it stands.

    because: None if the reasons are not known.
    """

    state: str
    because: tuple[str, ...] | None
    where: str

    def covers_the_same(self, other: DeclaredFailure) -> bool:
        """Whether both cover the same failures, as far as that is known."""
        unknown = self.because is None or other.because is None
        return self.state == other.state and (unknown or self.because == other.because)


#: (cell, check) of this checkout -> the same on the base, where the id of an edited stack can differ.
BaseNames = Mapping[tuple[str, str], tuple[str, str]]


def declared_failures(base: RevisionPlan, names: BaseNames) -> dict[tuple[str, str], DeclaredFailure] | None:
    """The expected failures of a revision, by their names in this checkout; None if they are unknown."""
    if base.matrix is not None:
        expected = expectations(base.matrix, base.plan.profile)
        found = {name: expected(*there) for name, there in names.items()}
        return {name: _declared(one) for name, one in found.items() if one}
    if base.expected is None:
        return None
    listed = {
        (cell, one.check): DeclaredFailure(one.state, None, one.where)
        for one in base.expected
        if not one.fault
        for cell in one.cells
    }
    return {name: listed[there] for name, there in names.items() if there in listed}


def expected_otherwise(
    context: PlanContext, base: RevisionPlan, names: BaseNames
) -> frozenset[tuple[str, str]]:
    """The checks of cells whose expected failure is only here, only on the base, or covers other failures."""
    before = declared_failures(base, names) or {}
    expected = expectations(context.matrix, context.plan.profile)
    here = {name: _declared(one) for name in names if (one := expected(*name))}
    return frozenset(
        name
        for name in here.keys() | before.keys()
        if name not in here or name not in before or not here[name].covers_the_same(before[name])
    )


def _declared(expected: ExpectedFailure) -> DeclaredFailure:
    return DeclaredFailure(expected.state, expected.because, expected.where)


def plan_of_revision(
    context: PlanContext, revision: Revision, only: Sequence[str], checks: Sequence[str]
) -> RevisionPlan:
    """The plan of the same selection at a revision.

    If the planning code is the same, the current planner reads the files of the revision. Otherwise the
    planner of the revision runs, so that the keys are those that the revision really had.
    """
    settings = context.settings
    # If npu-matrix is not installed from this checkout, the same code plans both.
    same = PACKAGE_ROOT.parent != settings.root or has_same_code(settings.root, revision)
    with temporary_folder() as place:
        there = settings_of_revision(settings, revision, place)
        folder = there.root
        digest = "" if same else planning_digest(folder / PACKAGE)
        if same or (digest and digest == planning_digest(PACKAGE_ROOT)):
            package_root = PACKAGE_ROOT if same else folder / PACKAGE
            plan = _planned_here(context, there, only, checks, package_root)
        else:
            plan = _planned_there(there, revision, only, checks)
        matrix = _matrix(there.path("matrix"))
        expected = _expectations_there(there) if matrix is None else None
        return RevisionPlan(plan=plan, settings=there, matrix=matrix, expected=expected)


def _matrix(file: Path) -> Matrix | None:
    try:
        return load_matrix(file)
    except InputError:
        return None


def _expectations_there(settings: Settings) -> tuple[ExpectationSurvey, ...] | None:
    try:
        done = _run_there(settings, ["expect", "list", "--json"])
        return load(ExpectationList, done.stdout).expectations
    except (subprocess.TimeoutExpired, ValueError):
        return None


def _planned_here(
    context: PlanContext, there: Settings, only: Sequence[str], checks: Sequence[str], package_root: Path
) -> PlanRecord:
    try:
        plan = open_plan(there, only=only, checks=checks, host=context.host, package_root=package_root).plan
    except NothingSelectedError:
        return PlanRecord()
    return plan.record()


def _planned_there(
    settings: Settings, revision: Revision, only: Sequence[str], checks: Sequence[str]
) -> PlanRecord:
    """The plan that the planner of the revision makes, with the settings that it has there."""
    arguments = ["plan", "--json"]
    arguments += [word for glob in only for word in ("--only", glob)]
    arguments += [word for check in checks for word in ("--check", check)]
    try:
        done = _run_there(settings, arguments)
        if done.returncode == 0:
            return load(PlanRecord, done.stdout)
        why = done.stderr.decode(errors="replace").strip()[-500:]
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = str(error)
    raise InputError(
        f"{revision} cannot be planned, so nothing can be proved unchanged since then",
        why=f"the planner of that revision failed: {why}",
        fix="compare with a revision whose `npu-matrix plan` works, or plan without --changed-since",
    )


def _run_there(settings: Settings, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the code of a revision on its files.

    PYTHONPATH selects its code; `-P` excludes the working folder.
    """
    folder = settings.root
    argv = [sys.executable, "-P", "-m", "harness", "--root", str(folder)]
    argv += ["--matrix", settings["matrix"], "--profile", settings["profile"]]
    variables = {f"{ENVIRONMENT_PREFIX}{option.name.upper()}": option.name for option in OPTIONS}
    # A revision without one of these options ignores its variable.
    chosen = {variable: settings[name] for variable, name in variables.items() if settings.is_explicit(name)}
    return subprocess.run(
        [*argv, "--state", str(folder / ".npu-matrix"), *arguments],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name not in variables},
            **chosen,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )


def _report(context: PlanContext, known: PlanHistory, revision: Revision, found: Impact) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.impact", "version": 1},
        "profile": context.plan.profile,
        "since": {"name": revision.name, "commit": revision.commit},
        "tasks": [{**as_object(task), "earlier_status": _status(known, task)} for task in found.tasks],
        "gone": [{"cell": cell, "check": check} for cell, check in found.gone],
    }


def _lines(context: PlanContext, known: PlanHistory, revision: Revision, found: Impact) -> list[str]:
    touched = [task for task in found.tasks if task.effect is not Effect.UNCHANGED]
    todo = [context.plan.tasks[task.key] for task in touched if task.key not in known.outcomes]
    lines = [f"since {revision}: {len(touched)} of {len(found.tasks)} distinct tasks differ"]
    for task in touched:
        cells = task.cells[0] + (f" and {len(task.cells) - 1} more" if len(task.cells) > 1 else "")
        status = _status(known, task)
        lines.append(f"  {task.effect.value:<9}  {task.check:<12} {cells}{f'  ({status})' if status else ''}")
        reasons = [str(change) for change in task.changes] or [task.reason]
        lines += [f"  {'':<9}  {'':<12}   {reason}" for reason in reasons]
    lines += [f"  gone       {check:<12} {cell}" for cell, check in found.gone]
    unchanged = found.of(Effect.UNCHANGED)
    counts = Counter(_status(known, task) or "without an outcome here" for task in unchanged)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines.append(f"unchanged, proved by their keys: {len(unchanged)}{f' ({statuses})' if statuses else ''}")
    lines.append(f"{len(todo)} to run ({work_text(known, todo)} of work)")
    return lines


def _status(known: PlanHistory, task: TaskImpact) -> str:
    judgement = known.judgements.get(task.key)
    return judgement.status.value if judgement else ""

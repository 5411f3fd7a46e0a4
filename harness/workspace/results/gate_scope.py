"""What a gate can see of a change: which of the changed files a key or the plan reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from harness.ledger.plan_record import PlanRecord
from harness.ledger.store import FILE_NAME as LEDGER_FILE
from harness.matrix.model.definitions import PinRule, Runner
from harness.matrix.version_matrix import Matrix
from harness.package import PACKAGE_ROOT
from harness.patchstack.format.patch_header import FILE_NAME as PATCH_HEADER
from harness.patchstack.stacks.patch_origin import OriginState
from harness.patchstack.stacks.patch_stack import PATCH_SUFFIXES, SERIES, imported_origins, upstreams
from harness.patchstack.stacks.stack_import import ORDER_FILES
from harness.plan.change.revision import Revision, changed_files, is_in_change, missing_submodules
from harness.plan.keys.code_digests import simulator_modules
from harness.settings import ENVIRONMENT_PREFIX, Settings
from harness.settings import FILE_NAME as SETTINGS_FILE
from harness.sources.git.branch_patches import branch_patches
from harness.workspace.planning.open_plan import open_matrix

#: The folder with the patch stacks of a checkout.
PATCHES = "patches"
CHECK_OF_PATCHES = "patches"
#: The settings that decide where outcomes, and what they are compared with, come from.
EVIDENCE_SETTINGS = (
    "state",
    "cache",
    "mirrors",
    "fetch",
    "fetch_file",
    "references",
    "executor",
    "ray_address",
)
#: The files of a repository that decide how GitHub runs a gate, and how other systems and pre-commit do.
WORKFLOWS = (
    *(".github/", "action.yml", "action.yaml", ".gitlab/", ".gitlab-ci", ".gitcode/", ".gitee/"),
    *("Jenkinsfile", ".pre-commit-config.yaml"),
)


@dataclass(frozen=True, kw_only=True)
class CheckoutChange:
    """The files that differ from the base, and those of them that are outcomes, caches or mirrors in git."""

    files: tuple[str, ...]
    stored: tuple[str, ...]


def change_of_checkout(settings: Settings, revision: Revision) -> CheckoutChange:
    """The files that differ from the revision, without untracked ones that this program writes."""
    changed = changed_files(settings.root, revision)

    def inside(file: str, *names: str) -> bool:
        real = Path(os.path.realpath(settings.root / file))
        return any(
            real.is_relative_to(os.path.realpath(settings.path(name))) for name in names if settings[name]
        )

    untracked = [file for file in changed.untracked if not inside(file, "state", "cache", "reports")]
    return CheckoutChange(
        files=tuple(sorted({*changed.tracked, *untracked})),
        # A submodule may be a mirror; its commits are named by their content.
        stored=tuple(
            file
            for file in changed.tracked
            if inside(file, "state", "cache")
            or (inside(file, "mirrors") and not (settings.root / file).is_dir())
        ),
    )


def stored_problems(settings: Settings, change: CheckoutChange) -> tuple[str, ...]:
    """The error for outcomes and caches that the change brings along: they would be reused as evidence."""
    ledger = settings.path("state") / LEDGER_FILE
    stored = change.stored or ((str(ledger),) if is_in_change(settings.root, ledger) else ())
    if not stored:
        return ()
    problem = (
        f"the change contains files of the state, cache or mirrors folder, for example {stored[0]}: "
        "outcomes come from runs, not from the change. Remove them from git"
    )
    return (problem,)


def changed_evidence_settings(here: Settings, base: Settings) -> tuple[str, ...]:
    """Sentences about settings with which the change decides by itself where its outcomes come from."""
    return tuple(
        f"the change sets {name} = {here[name]!r} instead of {base[name]!r} in {SETTINGS_FILE}, and so "
        "decides where its own outcomes come from: set it in the job that runs the gate, with the variable "
        f"{ENVIRONMENT_PREFIX}{name.upper()}"
        for name in EVIDENCE_SETTINGS
        if here[name] != base[name]
    )


def unread_files(
    settings: Settings, changed: Collection[str], here: PlanRecord, base: PlanRecord
) -> tuple[str, ...]:
    """Those of the changed files (relative to the checkout) that no key of the change reads, patches first.

    A deleted patch is read by the plan of the base; one that is still here is not, if the change takes it out
    of all cells. Symbolic links are followed, so that the file that has the content counts.
    """
    root = Path(os.path.realpath(settings.root))
    read = {_inside(settings.root / file, root) for file in _inputs(settings, (here,))}
    before = [settings.root / file for patch in _patches(base) for file in patch.files]
    read |= {_inside(file, root) for file in before if not file.exists()}
    unread = [file for file in changed if _inside(settings.root / file, root) not in read]
    # Reports show the first names only.
    return tuple(
        sorted(unread, key=lambda file: (not file.endswith(PATCH_SUFFIXES), not _runs_gate(file), file))
    )


def dropped_patches(
    settings: Settings, unread: Collection[str], base: PlanRecord, accept_removed: Collection[str]
) -> tuple[str, ...]:
    """A sentence about patches that the change modifies and also takes out of all cells: nothing tests them.

    accept_removed: names of checks; with `patches` among them it is accepted.
    """
    before = {os.path.realpath(settings.root / patch.file) for patch in _patches(base)}
    dropped = [file for file in unread if os.path.realpath(settings.root / file) in before]
    if not dropped or CHECK_OF_PATCHES in accept_removed:
        return ()
    named = ", ".join(dropped[:3]) + (" and others" if len(dropped) > 3 else "")
    text = (
        f"not tested: {named}, which the change modifies and takes out of all cells. Delete the file, undo "
        f"its changes, or leave it in a cell; if this is meant, --accept-removed {CHECK_OF_PATCHES}"
    )
    return (text,)


def gate_changes(unread: Collection[str]) -> tuple[str, ...]:
    """A sentence about the files that run a gate: what they do cannot be judged by the gate itself."""
    files = [file for file in unread if _runs_gate(file)]
    if not files:
        return ()
    named = ", ".join(files[:3]) + (" and others" if len(files) > 3 else "")
    note = (
        f"not looked at: {len(files)} changed files of workflows or of npu-matrix itself, which can change "
        f"what this gate does; review {named}"
    )
    return (note,)


def _runs_gate(file: str) -> bool:
    return file.startswith((*WORKFLOWS, f"{PACKAGE_ROOT.name}/"))


def import_problems(settings: Settings, changed: Collection[str]) -> tuple[str, ...]:
    """Imported patches that differ from their origin, or whose origin the change deletes."""
    return tuple(
        str(found.problem)
        for found in imported_origins(settings.root / PATCHES)
        if found.state is OriginState.CHANGED
        or (found.state is OriginState.MISSING and found.file in changed)
    )


def absent_submodules(settings: Settings, revision: Revision) -> tuple[str, ...]:
    """A sentence about the submodules of the base whose files are not in this checkout."""
    names = missing_submodules(settings.root, revision)
    if not names:
        return ()
    return (f"not looked at: {len(names)} submodules of the base, not here: {', '.join(names[:3])}",)


def missing_origins(settings: Settings) -> tuple[str, ...]:
    """A sentence about the imported patches that cannot be compared with their origin."""
    missing = [
        found.file
        for found in imported_origins(settings.root / PATCHES)
        if found.state is OriginState.MISSING
    ]
    if not missing:
        return ()
    return (
        f"not looked at: the origins of {len(missing)} imported patches, not here: {', '.join(missing[:3])}",
    )


def matrix_changes(here: Matrix, base: Matrix, profile: str) -> tuple[str, ...]:
    """Sentences about changes of the matrix that permit more, or that no key shows."""
    named = {
        "the constraint": (base.constraints, here.constraints),
        "the published table": (base.published, here.published),
        "the override of": (_overrides(base), _overrides(here)),
        "the expected failure": (base.expectations, here.expectations),
        "where packages come from for the axis": (_sources(base), _sources(here)),
    }
    return (
        *(
            f"not looked at: the change {verb} profile {name}, which this gate does not plan"
            for name, verb in _changes(base.profiles, here.profiles).items()
            if name != profile
        ),
        *(
            f"the change {verb} {kind} {name}"
            for kind, (before, after) in named.items()
            for name, verb in _changes(before, after).items()
        ),
        *(
            f"the change {verb} the runner {name}: the outcomes that it signed do not count here"
            for name, verb in _changes(_with_keys(base), _with_keys(here)).items()
        ),
    )


def _sources(matrix: Matrix) -> dict[str, tuple[object, ...]]:
    """Axis -> package, repository and additional indexes, which a change can point to its own servers."""
    return {
        name: (axis.package, axis.repository, axis.extra_index, axis.build_env)
        for name, axis in matrix.axes.items()
    }


def _overrides(matrix: Matrix) -> dict[str, tuple[PinRule, ...]]:
    """The rules that replace requirements, by what they replace."""
    rules: dict[str, tuple[PinRule, ...]] = {}
    for rule in matrix.override_rules:
        what = rule.template or f"requirements that contradict those of {rule.yields_to}"
        for of in rule.of:
            name = f"{of}: {what}"
            rules[name] = (*rules.get(name, ()), rule)
    return rules


def _with_keys(matrix: Matrix) -> dict[str, Runner]:
    return {name: runner for name, runner in matrix.runners.items() if runner.keys}


def plan_changes(here: PlanRecord, base: PlanRecord) -> tuple[str, ...]:
    """Sentences about another profile, and about patches that only the base uses."""
    notes = []
    if base.profile and base.profile != here.profile:
        notes.append(f"the change selects profile {here.profile} instead of {base.profile}")
    removed = sorted(_patch_ids(base) - _patch_ids(here))
    if removed:
        notes.append(f"the change removes {len(removed)} patches from all cells: {', '.join(removed)}")
    return tuple(notes)


def _patch_ids(plan: PlanRecord) -> set[str]:
    return {patch.id for patch in _patches(plan)}


class _PlannedPatch(NamedTuple):
    id: str
    file: PurePosixPath

    @property
    def files(self) -> tuple[PurePosixPath, PurePosixPath]:
        """The patch, and its header where it has one."""
        return self.file, self.file.parent / PATCH_HEADER


def _patches(plan: PlanRecord) -> Iterator[_PlannedPatch]:
    """The selected patches in the keys of a plan."""
    for task in plan.tasks:
        for facet, value in task.facets.items():
            if facet.startswith("patches[") and isinstance(value, list):
                for patch in value:
                    yield _PlannedPatch(str(patch.get("id", "")), PurePosixPath(str(patch.get("file", ""))))


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, str]:
    """Name -> what happened to the entry of this name; equal entries are left out."""
    names = dict.fromkeys([*before, *after])
    verbs = {
        name: "adds" if name not in before else "removes" if name not in after else "modifies"
        for name in names
    }
    return {name: verb for name, verb in verbs.items() if before.get(name) != after.get(name)}


def _inside(file: Path, root: Path) -> str:
    return os.path.relpath(os.path.realpath(file), root)


def _inputs(settings: Settings, plans: Collection[PlanRecord]) -> Iterator[str]:
    """The files that decide which tasks a plan has, and those whose content is in a key."""
    yield settings["matrix"]
    yield SETTINGS_FILE
    matrix = open_matrix(settings)
    for file in matrix.included_files:
        yield os.path.relpath(file, settings.root)
    for place in matrix.patch_places:
        yield from (f"{place.folder}/{name}" for name in ORDER_FILES if place.folder)
        if place.branch:
            yield from branch_patches(settings.root, place.branch, place.base, place.upstream).inside
    for upstream in upstreams(settings.root / PATCHES):
        yield f"{PATCHES}/{upstream}/{SERIES}"
    for found in imported_origins(settings.root / PATCHES):
        yield found.file
    for plan in plans:
        for patch in _patches(plan):
            yield from map(str, patch.files)
        if PACKAGE_ROOT.parent == settings.root:
            yield from map(_file_of_module, (name for name, _digest in plan.code.modules))
    if PACKAGE_ROOT.parent == settings.root:
        yield from map(_file_of_module, simulator_modules(PACKAGE_ROOT, settings.cache))


def _file_of_module(name: str) -> str:
    """The file of a module, or of a data file of the package, as code records name them."""
    package = PACKAGE_ROOT.name
    if name != package and not name.startswith(f"{package}."):
        return f"{package}/{name}"
    path = name.replace(".", "/")
    return f"{path}/__init__.py" if (PACKAGE_ROOT.parent / path).is_dir() else f"{path}.py"

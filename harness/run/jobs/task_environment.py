"""Verifies that a task runs in the environment that was built, and that the environment stays unchanged.

Any program of a cell can write to the environment of the cell. An outcome of a task during which a file there
was written is worth nothing, whoever wrote it and even if the file has its old content again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from harness.builds.installed.file_manifest import (
    FileManifest,
    ManifestError,
    States,
    classify_changes,
    path_list,
    read_manifest,
    read_states,
)
from harness.builds.installed.found_python import read_found, why_other
from harness.cell_program.built_environment import (
    EnvironmentBuilt,
    VerifiedFiles,
    environment_location,
    is_built,
)
from harness.errors import InfrastructureError, InterruptedRunError, Location
from harness.measurements import read_shape
from harness.outcome import Outcome
from harness.run.jobs.task_context import ENVIRONMENT, RunContext

_FOUND_BEFORE = "the environment has changed since it was read"
_FOUND_MEANWHILE = "the environment changed while the task ran"
_BUILT_AGAIN = "the environment is built again before the next task uses it"


@contextlib.contextmanager
def environment_unchanged(context: RunContext) -> Iterator[None]:
    """Replace the result or error of the task by an InfrastructureError if its environment changed.

    That is also raised before the task starts if the environment is not as it was built. Without effect for
    a task that does not run in an environment with files on this host.
    """
    environment = context.inputs.get(ENVIRONMENT)
    if environment and (found := _found(environment)) is not None:
        with _unchanged_as_found(found):
            yield
        return
    files = environment_location(environment).files if environment and is_built(environment) else None
    if files is None:
        yield
        return
    manifest = _manifest(files)
    before = read_states(manifest.folders)
    changes = classify_changes(manifest, before)
    if changes:
        raise InfrastructureError(
            "the environment has changed since it was built", why=str(changes), fix=_BUILT_AGAIN
        )
    try:
        yield
    except InterruptedRunError:
        raise
    except BaseException:
        _require_unchanged(manifest, files, before)
        raise
    _require_unchanged(manifest, files, before)


@contextlib.contextmanager
def _unchanged_as_found(found: EnvironmentBuilt) -> Iterator[None]:
    _require_as_found(found, _FOUND_BEFORE)
    try:
        yield
    except InterruptedRunError:
        raise
    except BaseException:
        _require_as_found(found, _FOUND_MEANWHILE)
        raise
    _require_as_found(found, _FOUND_MEANWHILE)


def _found(environment: Outcome) -> EnvironmentBuilt | None:
    """The environment, if it is one that was found and not one that was built."""
    if environment.measurements.get("differences") is None:
        return None
    return read_shape(EnvironmentBuilt, environment.measurements)


def _require_as_found(environment: EnvironmentBuilt, what: str) -> None:
    why = why_other(read_found(environment.python), environment.digest, environment.deviations)
    if why:
        raise InfrastructureError(
            what,
            where=Location(environment.prefix),
            why=why,
            fix="undo or keep the edits and run again: the next run has its own outcomes for what it finds",
        )


def _require_unchanged(manifest: FileManifest, files: VerifiedFiles, before: States) -> None:
    after = read_states(manifest.folders)
    if after == before:
        return
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    # A folder changes whenever a file in it does; the file says more.
    shown = [path for path in changed if not Path(path).is_dir()] or changed
    if _was_replaced(files):
        why = "this environment was removed or built again at the same time"
    else:
        why = f"this task, or a program that ran at the same time, wrote to {path_list(shown)}"
    raise InfrastructureError(
        "the environment changed while the task ran",
        why=why,
        fix=f"let programs write to the folder of the task or to $TMPDIR only; {_BUILT_AGAIN}",
    )


def _manifest(files: VerifiedFiles) -> FileManifest:
    try:
        return read_manifest(Path(files.manifest), files.digest)
    except ManifestError as error:
        raise InfrastructureError(
            "the environment cannot be verified", why=str(error), fix=_BUILT_AGAIN
        ) from error


def _was_replaced(files: VerifiedFiles) -> bool:
    return not Path(files.manifest).is_file()

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
from harness.cell_program.built_environment import VerifiedFiles, environment_location, is_built
from harness.errors import InfrastructureError, InterruptedRunError
from harness.run.jobs.task_context import ENVIRONMENT, RunContext

_BUILT_AGAIN = "the environment is built again before the next task uses it"


@contextlib.contextmanager
def environment_unchanged(context: RunContext) -> Iterator[None]:
    """Replace the result or error of the task by an InfrastructureError if its environment changed.

    That is also raised before the task starts if the environment is not as it was built. Without effect for
    a task that does not run in an environment with files on this host.
    """
    environment = context.inputs.get(ENVIRONMENT)
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

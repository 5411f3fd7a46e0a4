"""The matrix of a base revision, whose addresses a change under review cannot choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import HarnessError, InputError, Location
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import shipped_file
from harness.plan.change.revision import extract_revision, resolve_revision
from harness.settings import MATRIX_FILE, Settings
from harness.workspace.planning.open_plan import open_matrix
from harness.workspace.planning.revision_files import is_adopted_here, settings_at
from harness.workspace.planning.upstream_mirrors import fetch_for_cells


def fetch_for_change(settings: Settings, reference: str | None, cells: Sequence[Mapping[str, str]]) -> None:
    """Fetch what these cells (their axes) name from the addresses of the base, if it is a git revision.

    reference: None if there is no base; then the addresses of this checkout are used.
    """
    if not settings.fetch:
        return
    try:
        matrix = matrix_at(settings, reference) if reference else open_matrix(settings)
    except HarnessError:
        # A run or a ledger has no addresses, and the gate reports a revision that cannot be read.
        return
    fetch_for_cells(settings, matrix, cells)


def matrix_at(settings: Settings, reference: str) -> Matrix:
    """The matrix of a git revision of this checkout; InputError if it has none.

    For a revision without any file of npu-matrix it is the shipped one: addresses are not taken from the
    change that adds matrix.yaml.
    """
    revision = resolve_revision(settings.root, reference)
    with temporary_folder() as place:
        there = settings_at(settings, extract_revision(settings.root, revision, place))
        if not there.path("matrix").is_file() and is_adopted_here(settings, place / "tree"):
            return load_matrix(shipped_file(MATRIX_FILE))
        if not there.path("matrix").is_file():
            raise InputError(
                f"there is no {there['matrix']} at {revision}",
                where=Location(there["matrix"]),
                fix="name a later revision",
            )
        return load_matrix(there.path("matrix"))

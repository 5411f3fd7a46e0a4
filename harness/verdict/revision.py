"""The plan of another revision of this checkout, made by that revision's own code and matrix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.errors import InfrastructureError, InputError

GIT_SECONDS = 120.0
PLAN_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class RevisionPlan:
    """A plan as JSON, and the commit it is of."""

    commit: str
    plan: Mapping[str, Any]


def resolve_revision(root: Path, revision: str) -> str:
    """The commit `revision` names; InputError when it names none."""
    result = _git(root, ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"])
    if result.returncode or not result.stdout.strip():
        raise InputError(
            f"{revision!r} is no revision of {root}",
            why=result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "git does not know it",
            fix="name a commit that is fetched (fetch-depth: 0 in GitHub Actions), a run, or a ledger",
        )
    return result.stdout.strip()


def plan_of_revision(root: Path, revision: str, *, profile: str, matrix: str) -> RevisionPlan:
    """Plan `profile` as the checkout at `revision` would: its matrix, its patches, its checks.

    Runs the code of that revision (of the installed program where the checkout holds none), so only revisions
    of your own are to be named. InputError for an unknown revision, InfrastructureError when it cannot plan.
    """
    commit = resolve_revision(root, revision)
    with tempfile.TemporaryDirectory(prefix="npu-matrix-base-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        _unpack(root, commit, tree)
        return RevisionPlan(commit=commit, plan=_plan(tree, profile, matrix, revision))


def _unpack(root: Path, commit: str, tree: Path) -> None:
    archive = tree.with_suffix(".tar")
    # From the folder of the checkout: in a larger repository only that part is taken.
    result = _git(root, ["archive", "--format=tar", f"--output={archive}", commit, "."])
    if result.returncode:
        raise InfrastructureError(f"git cannot archive {commit}", why=result.stderr.strip())
    with tarfile.open(archive) as content:
        content.extractall(tree, filter="data")


def _plan(tree: Path, profile: str, matrix: str, revision: str) -> Mapping[str, Any]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NPU_MATRIX_")}
    own = (tree / "harness" / "__init__.py").is_file()
    environ["PYTHONPATH"] = str(tree if own else Path(harness.__file__).parents[1])
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "harness", "--root", str(tree), "--matrix", matrix, "--profile", profile]
    try:
        result = subprocess.run(
            [*command, "plan", "--json"],
            cwd=tree,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=PLAN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"planning {revision} took longer than {PLAN_SECONDS:g} s") from error
    try:
        plan: Mapping[str, Any] = json.loads(result.stdout)
    except json.JSONDecodeError as error:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise InfrastructureError(
            f"{revision} cannot be planned",
            why=said[0] if said else f"its planner ended with {result.returncode}",
            fix="name a base whose matrix is valid",
        ) from error
    return plan


def _git(root: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments],  # noqa: S607 - the user's git, wherever it is
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError("git cannot be run", why=str(error), fix="install git") from error

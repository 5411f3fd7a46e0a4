"""Runs checks of the base of a gate: from the files of that revision, with the code that planned it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, InputError, Location
from harness.ledger.merge_report import Screen
from harness.ledger.store import FILE_NAME, Ledger
from harness.package import PACKAGE_ROOT
from harness.plan.change.revision import Revision, has_same_code
from harness.run.programs.interruption import Interruption
from harness.settings import ENVIRONMENT_PREFIX, OPTIONS, Settings
from harness.workspace.planning.revision_files import settings_of_revision

#: Settings that name folders of this machine; they are the same for every revision.
FOLDERS = ("cache", "mirrors", "references", "leases")
#: Settings that the run of the base gets in another way, or decides itself.
OWN = ("matrix", "profile", "state", "reports", "executor", "ray_address", "wait")


def run_base(
    settings: Settings,
    ledger: Ledger,
    revision: Revision,
    names: Collection[tuple[str, str]],
    screen: Screen,
) -> bool:
    """Run these (cell, check) of a revision on this machine; True if the user interrupted the run.

    The files of the revision are checked out into a temporary folder. If npu-matrix is part of the checkout,
    the code of the revision runs, and if that differs, it has a ledger of its own, which is merged: a later
    version may have written this one. screen: leaves out what contains credentials then, because an earlier
    version may not have masked them. InputError if the revision cannot be run.
    """
    with temporary_folder() as place, Interruption() as stopped:
        there = settings_of_revision(settings, revision, place)
        folder = there.root
        own = PACKAGE_ROOT.parent == settings.root
        shares_state = not own or has_same_code(settings.root, revision)
        state = settings.path("state") if shares_state else place / "state"
        argv = [sys.executable, "-P", "-m", "harness", "--root", str(folder), "--matrix", there["matrix"]]
        argv += ["--profile", there["profile"], "run", "--keep-going"]
        argv += [word for cell in sorted({cell for cell, _check in names}) for word in ("--only", cell)]
        argv += [word for check in sorted({check for _cell, check in names}) for word in ("--check", check)]
        code_folder = folder if own else PACKAGE_ROOT.parent
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **_variables(settings, state, place), "PYTHONPATH": str(code_folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if shares_state:
            ledger.set_runs_aside(str(folder))
        elif (state / FILE_NAME).is_file():
            ledger.merge(state / FILE_NAME, screen, written_here=True)
        if done.returncode == EXIT_BAD_INPUT:
            raise InputError(
                f"{revision} cannot be run, so its failures are unknown",
                where=Location(settings.root),
                why=done.stderr.decode(errors="replace").strip()[-500:],
                fix="compare with a revision whose `npu-matrix run` works, or leave --run-base out",
            )
        return stopped() or done.returncode == EXIT_INTERRUPTED


def _variables(settings: Settings, state: Path, place: Path) -> Mapping[str, str]:
    """The settings of this command as variables: a revision without one of these options ignores it."""
    chosen = {
        option.name: settings[option.name]
        for option in OPTIONS
        if option.name not in OWN and settings.is_explicit(option.name)
    }
    chosen |= {name: str(settings.path(name)) for name in FOLDERS if settings[name]}
    chosen |= {"state": str(state), "reports": str(place / "reports"), "wait": "true"}
    return {
        **{f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in chosen.items()},
        "PYTHONDONTWRITEBYTECODE": "1",
    }

"""The newest verl of a profile, as the version that launch scripts are for if nobody says it."""

from __future__ import annotations

from harness.errors import InputError
from harness.settings import Settings
from harness.workspace.planning.open_plan import open_matrix


def newest_verl(settings: Settings) -> str:
    """The newest verl among the cells of the profile, a release if there is one; InputError if none."""
    matrix = open_matrix(settings)
    values = {cell.axes["verl"] for cell in matrix.cells(settings["profile"]) if "verl" in cell.axes}
    parsed = [matrix.axes["verl"].parse(value) for value in values]
    if not parsed:
        raise InputError(
            f"no cell of profile {settings['profile']} has a version of verl",
            fix="name the version that the launch scripts are for: --verl VERSION",
        )
    return str(max(parsed, key=lambda one: (not one.commit, one.order or ())))

"""An NPU host of files: a CANN toolkit behind the link `latest`, and a driver. Hardware outcomes rest on them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environments import environment_probe
from test_venv_environment import Cell, outcome

from harness.builds.cell import venv_environment
from harness.builds.cell.environment_files import IDENTITY, altered
from harness.builds.cell.host_libraries import library_folders
from harness.builds.checks import CHECKS
from harness.cell_program.built_environment import ENVIRONMENT_FORMAT, EnvironmentBuilt, EnvironmentProbe
from harness.check import why_altered
from harness.ledger.attestation.host_identity import host_fingerprint
from harness.outcome import Origin, Trust


@pytest.fixture
def ascend(tmp_path: Path) -> Path:
    ascend = tmp_path / "Ascend"
    for name in ("8.3.RC1", "8.5.0"):
        folder = ascend / "toolkit" / name
        (folder / "lib64").mkdir(parents=True)
        (folder / "lib64/libascendcl.so").write_text(f"acl {name}")
        (folder / "version.info").write_text(f"Version={name}\n")
    (ascend / "toolkit/latest").symlink_to("8.5.0")
    (ascend / "driver/lib64").mkdir(parents=True)
    (ascend / "driver/lib64/libascend_hal.so").write_text("hal")
    (ascend / "driver/version.info").write_text("Version=25.2.0\n")
    return ascend


@pytest.fixture
def cell(wheels: Any, context: Any, tmp_path: Path, ascend: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell whose probe used the NPU through the libraries of `ascend`."""
    found = ("toolkit/latest/lib64/libascendcl.so", "driver/lib64/libascend_hal.so")
    libraries = tuple(str(ascend / name) for name in found)

    def probe(*_arguments: object, **_options: object) -> EnvironmentProbe:
        return environment_probe(libraries=libraries)

    monkeypatch.setattr(venv_environment, "probe_cell", probe)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(ascend / "toolkit/latest"))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(ascend / "toolkit/latest/opp"))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    made = Cell(context, tmp_path, wheels.add("verl", "0.9.1", files={"verl/core.py": "ANSWER = 1\n"}))
    made.ctx.facets["device"] = {"kind": "npu", "count": 1}
    return made


def replace_link(ascend: Path) -> None:
    (ascend / "toolkit/latest").unlink()
    (ascend / "toolkit/latest").symlink_to("8.3.RC1")


def upgrade(name: str) -> Callable[[Path], object]:
    return lambda ascend: (ascend / name).write_text("another")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "library of CANN": (upgrade("toolkit/8.5.0/lib64/libascendcl.so"), "libascendcl.so"),
    "version of CANN": (upgrade("toolkit/8.5.0/version.info"), "8.5.0/version.info"),
    "another toolkit": (replace_link, "toolkit/latest"),
    "removed toolkit": (lambda ascend: shutil.rmtree(ascend / "toolkit/8.5.0"), "libascendcl.so"),
    "library of the driver": (upgrade("driver/lib64/libascend_hal.so"), "libascend_hal.so"),
    "version of the driver": (upgrade("driver/version.info"), "driver/version.info"),
}


@pytest.mark.parametrize("removed", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_device_library_is_found_also_when_the_environment_was_removed(
    cell: Cell, ascend: Path, name: str, removed: bool
) -> None:
    found, _ = cell.build()
    if removed:
        shutil.rmtree(Path(found.prefix).parent)
    assert altered(found) == ""
    change, named = CHANGES[name]
    change(ascend)
    assert "the host of the environment has changed" in altered(found)
    assert named in altered(found)
    if not removed:
        assert named in venv_environment.holds(found), "as the input of a task"


def test_outcomes_of_other_machines_are_not_compared_with_this_host(cell: Cell, ascend: Path) -> None:
    found, _ = cell.build()
    upgrade("driver/version.info")(ascend)
    [check] = CHECKS
    measured_here = outcome("environment", **ENVIRONMENT_FORMAT.write(found))
    measured_here = replace(measured_here, origin=Origin(host=host_fingerprint()))
    assert "driver/version.info" in why_altered(check, measured_here)
    by_a_worker = replace(measured_here, origin=Origin(host="of a worker", recorder=host_fingerprint()))
    assert why_altered(check, by_a_worker) == ""
    assert why_altered(check, replace(measured_here, trust=Trust(foreign=True))) == ""


def test_another_toolkit_is_another_identity_and_the_same_one_is_not(cell: Cell, ascend: Path) -> None:
    def identity() -> dict[str, str]:
        assert isinstance(venv_environment.run(cell.ctx).measurements, EnvironmentBuilt)
        found: dict[str, str] = json.loads((cell.ctx.workdir / IDENTITY).read_text())
        return found

    first = identity()
    shutil.rmtree(cell.ctx.cache / "cells")
    assert identity() == first
    replace_link(ascend)
    after = identity()
    assert {part for part in first if first[part] != after[part]} == {"host", "toolkit"}


def test_an_environment_without_libraries_of_the_host_has_none(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv_environment, "probe_cell", lambda *_a, **_k: environment_probe(libraries=()))
    found, _ = cell.build()
    assert found.libraries is None
    assert altered(found) == ""


def test_hardware_outcomes_are_stale_when_the_list_of_their_libraries_is_gone(cell: Cell) -> None:
    found, _ = cell.build()
    assert found.libraries is not None
    shutil.rmtree(Path(found.prefix).parent)
    Path(found.libraries.manifest).unlink()
    assert "cannot be verified" in altered(found)


def holds(found: EnvironmentBuilt, *, measured_by: str = "") -> str:
    """Why the environment cannot be the input of a task."""
    [check] = CHECKS
    stored = outcome("environment", **ENVIRONMENT_FORMAT.write(found))
    return check.outdated(replace(stored, origin=Origin(host=measured_by or host_fingerprint())))


def test_a_toolkit_whose_path_is_not_utf_8_can_be_stored(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_OPP_PATH", os.fsdecode(b"/opp-\xe9"))
    found, _ = cell.build()
    assert found.toolkit["ASCEND_OPP_PATH"] == "/opp-\\xe9"
    assert (altered(found), holds(found)) == ("", "")


@pytest.mark.parametrize("name", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH"])
def test_another_toolkit_that_a_variable_selects_is_found(
    cell: Cell, ascend: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found, _ = cell.build()
    assert (altered(found), holds(found)) == ("", "")
    monkeypatch.setenv(name, str(ascend / "toolkit/8.3.RC1"))
    assert f"{name} now selects {ascend}/toolkit/8.3.RC1" in altered(found)
    assert name in holds(found)
    assert altered(found, foreign=True) == ""
    assert holds(found, measured_by="another machine") == ""


def test_the_same_toolkit_under_another_name_is_no_change(
    cell: Cell, ascend: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = cell.build()
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(ascend / "toolkit/8.5.0"))
    assert (altered(found), holds(found)) == ("", "")


def test_results_are_looked_at_without_the_settings_of_cann_but_not_measured(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = cell.build()
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME")
    assert altered(found) == ""
    assert "ASCEND_TOOLKIT_HOME now selects nothing" in holds(found)


def test_other_kernels_are_another_identity(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    venv_environment.run(cell.ctx)
    first = json.loads((cell.ctx.workdir / IDENTITY).read_text())
    monkeypatch.setenv("ASCEND_OPP_PATH", "/another/opp")
    venv_environment.run(cell.ctx)
    second = json.loads((cell.ctx.workdir / IDENTITY).read_text())
    assert {part for part in first if first[part] != second[part]} == {"toolkit"}


def change_library(folder: Path) -> None:
    (folder / "system/libmath.so").write_text("other")


def hide_library(folder: Path) -> None:
    (folder / "interpreter/libmath.so").write_text("")


def add_version(folder: Path) -> None:
    (folder / "interpreter/libpython.so").unlink()


@pytest.mark.parametrize("change", [change_library, hide_library, add_version])
def test_libraries_of_the_system_are_compared_for_every_device(
    wheels: Any,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    """Among them is a library that hides another one, because its folder is searched as well."""
    names = ("system/libmath.so", "interpreter/libpython.so")
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    libraries = tuple(str(tmp_path / name) for name in names)
    monkeypatch.setattr(
        venv_environment, "probe_cell", lambda *_a, **_k: environment_probe(libraries=libraries)
    )
    cell = Cell(context, tmp_path, wheels.add("verl", "0.9.1"))
    found, _ = cell.build()
    first = (cell.ctx.workdir / IDENTITY).read_text()
    assert (altered(found), holds(found)) == ("", "")
    change(tmp_path)
    assert "the host of the environment has changed" in altered(found)
    assert altered(found) == holds(found)
    assert altered(found, foreign=True) == ""
    again, _ = cell.build()
    assert again.reused, "its own files are as they were"
    assert altered(again) == ""
    assert (cell.ctx.workdir / IDENTITY).read_text() == first


def test_the_real_probe_reports_the_c_library(wheels: Any, context: Any, tmp_path: Path) -> None:
    found, _ = Cell(context, tmp_path, wheels.add("verl", "0.9.1")).build()
    assert any("/libc.so" in library for library in found.probe.libraries)
    assert found.libraries is not None


def test_libraries_of_the_environment_belong_to_it(tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib/libtorch.so").touch()
    assert library_folders([str(prefix / "lib/libtorch.so")], tmp_path / "venv") == ()

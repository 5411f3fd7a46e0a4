"""An NPU host of files: a CANN toolkit behind the link `latest`, and a driver. Hardware outcomes rest on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environments import environment_probe
from test_venv_environment import Cell, outcome

from harness.builds.cell import venv_environment
from harness.builds.cell.device_libraries import device_folders
from harness.builds.cell.environment_files import IDENTITY, altered
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
    return Cell(context, tmp_path, wheels.add("verl", "0.9.1", files={"verl/core.py": "ANSWER = 1\n"}))


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
    assert "device library" in altered(found)
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
    assert {part for part in first if first[part] != after[part]} == {"host"}


def test_a_device_without_libraries_has_none(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv_environment, "probe_cell", lambda *_a, **_k: environment_probe(libraries=()))
    found, _ = cell.build()
    assert found.device_files is None
    assert altered(found) == ""


def test_libraries_of_the_environment_belong_to_it(tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib/libtorch.so").touch()
    assert device_folders([str(prefix / "lib/libtorch.so")], prefix) == ()

"""Attacks on the files of a small environment that was built and green: each one must be noticed."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_venv_environment import ORIGINAL, Cell
from wheelhouse import Context, Wheels, only_index, record_line, rewritten

from harness.builds.cell import venv_environment
from harness.builds.cell.environment_files import (
    DIGEST_CHARACTERS,
    FINISHED,
    altered,
    earlier_manifest,
    runtime_folders,
    store_manifest,
    why_changed,
    with_folders,
)
from harness.builds.installed.file_manifest import (
    FileManifest,
    make_manifest,
    read_manifest,
    read_states,
    write_manifest,
)
from harness.cell_program.built_environment import EnvironmentBuilt
from harness.outcome import Status

PATCHED = b"ANSWER = 2\n"
FORGED = b"ANSWER = 7\n"


def make_cell(wheels: Wheels, folder: Path) -> Cell:
    files = {"verl/core.py": ORIGINAL.decode(), "verl/__init__.py": "from verl import core, other\n"}
    files["verl/other.py"] = ORIGINAL.decode()
    packages = wheels.add("verl", "0.9.1", files=files), wheels.add("ray", "2.0")
    made = Cell(lambda facets: Context(folder / "task", facets), folder, *packages)
    made.patch(folder, {"verl/core.py": (ORIGINAL, PATCHED)})
    return made


@pytest.fixture
def cell(wheels: Wheels, tmp_path: Path) -> Cell:
    return make_cell(wheels, tmp_path)


@pytest.fixture(scope="module")
def attacked_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell for all attacks: each ends with an environment that was built again."""
    folder = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patched:
        yield make_cell(only_index(folder, patched), folder)


def edit(site: Path) -> None:
    (site / "verl/other.py").write_bytes(FORGED)


def edit_and_restore_times(site: Path) -> None:
    target = site / "verl/other.py"
    times = target.stat()
    target.write_bytes(FORGED)
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def edit_with_record(site: Path) -> None:
    edit(site)
    record = site / "verl-0.9.1.dist-info/RECORD"
    text = record.read_text()
    old = record_line("verl/other.py", ORIGINAL)
    assert old in text
    record.write_text(text.replace(old, record_line("verl/other.py", FORGED)))


def add_module(site: Path) -> None:
    (site / "verl/added.py").write_bytes(FORGED)


def add_path_file(site: Path) -> None:
    (site / "zz.pth").write_text("import os\n")


def add_sitecustomize(site: Path) -> None:
    (site / "sitecustomize.py").write_bytes(FORGED)


def add_empty_package(site: Path) -> None:
    """Then `import flash_attn` works."""
    (site / "flash_attn").mkdir()


def remove_module(site: Path) -> None:
    (site / "verl/other.py").unlink()


def swap_symlink(site: Path) -> None:
    target = site / "verl/other.py"
    copy = site.parent / "outside.py"
    copy.write_bytes(target.read_bytes())
    target.unlink()
    target.symlink_to(copy)
    # Only the link remains inside the environment.
    shutil.move(copy, site.parents[4] / "outside.py")


def swap_folder(site: Path) -> None:
    moved = site.parents[4] / "moved"
    shutil.move(site / "verl", moved)
    (site / "verl").symlink_to(moved)


def edit_compiled(site: Path) -> None:
    """Other bytecode for an unchanged source: the size and time in its header still match."""
    source = site / "verl/other.py"
    [compiled] = source.parent.glob("__pycache__/other.*.pyc")
    times = source.stat()
    source.write_bytes(FORGED)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    py_compile.compile(str(source), cfile=str(compiled))
    source.write_bytes(ORIGINAL)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


def add_compiled(site: Path) -> None:
    folder = site / "ray/__pycache__"
    folder.mkdir(exist_ok=True)
    (folder / "late.cpython-311.pyc").write_bytes(b"x")


def revert_patch(site: Path) -> None:
    (site / "verl/core.py").write_bytes(ORIGINAL)


def replace_interpreter(site: Path) -> None:
    python = site.parents[2] / "bin" / "python"
    copy = site.parents[4] / "python"
    shutil.copy(python, copy)
    python.unlink()
    python.symlink_to(copy)


def edit_configuration(site: Path) -> None:
    configuration = site.parents[2] / "pyvenv.cfg"
    text = configuration.read_text()
    configuration.write_text(text.replace("site-packages = false", "site-packages = true"))
    assert configuration.read_text() != text


def add_script(site: Path) -> None:
    (site.parents[2] / "bin" / "ninja").write_text("#!/bin/sh\n")


def make_executable(site: Path) -> None:
    (site / "verl/other.py").chmod(0o777)


ATTACKS: tuple[Callable[[Path], None], ...] = (
    edit,
    edit_and_restore_times,
    edit_with_record,
    add_module,
    add_path_file,
    add_sitecustomize,
    add_empty_package,
    remove_module,
    swap_symlink,
    swap_folder,
    edit_compiled,
    add_compiled,
    revert_patch,
    replace_interpreter,
    edit_configuration,
    add_script,
    make_executable,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attacked_environment_is_stale_and_built_again(
    attacked_cell: Cell, attack: Callable[[Path], None]
) -> None:
    cell = attacked_cell
    found, _ = cell.build()
    assert (venv_environment.holds(found), altered(found)) == ("", "")
    attack(Path(found.site_packages))
    assert "has changed since it was built" in venv_environment.holds(found)
    assert altered(found) == venv_environment.holds(found)
    again, judgement = cell.build()
    assert (again.reused, judgement.status) == (False, Status.PASS)
    assert venv_environment.holds(again) == ""
    site = Path(again.site_packages)
    assert (site / "verl/core.py").read_bytes() == PATCHED
    assert (site / "verl/other.py").read_bytes() == ORIGINAL


def test_the_attacked_environment_is_set_aside_for_inspection(cell: Cell) -> None:
    found, _ = cell.build()
    edit(Path(found.site_packages))
    cell.build()
    home = Path(found.prefix).parent
    aside = home.with_suffix(".changed") / Path(found.site_packages).relative_to(home)
    assert (aside / "verl/other.py").read_bytes() == FORGED
    assert any(str(home.with_suffix(".changed")) in line for line in cell.ctx.lines)


def test_a_file_with_new_metadata_and_its_old_content_is_no_change(cell: Cell) -> None:
    found, _ = cell.build()
    target = Path(found.site_packages) / "verl/other.py"
    target.write_bytes(ORIGINAL)
    os.utime(target, ns=(0, 0))
    assert venv_environment.holds(found) == ""


def test_the_list_of_files_is_not_believed_when_it_was_edited(cell: Cell) -> None:
    found, _ = cell.build()
    assert found.files is not None
    manifest = Path(found.files.manifest)
    manifest.write_text(manifest.read_text().replace("verl/other.py", "verl/moved.py"))
    assert "is not the one that its build wrote" in venv_environment.holds(found)
    again, _ = cell.build()
    assert again.reused is False


def test_an_environment_whose_list_of_files_others_stored_is_not_reused(cell: Cell) -> None:
    """Whoever can write to the cache can make a list that fits the edited files."""
    found, _ = cell.build()
    assert found.files is not None
    edit(Path(found.site_packages))
    home, listed = Path(found.prefix).parent, Path(found.files.manifest)
    digest = write_manifest(make_manifest(read_manifest(listed, found.files.digest).folders), listed)
    listed.rename(home / f"files-{digest[:DIGEST_CHARACTERS]}.json")
    finished = home / FINISHED
    finished.write_text(finished.read_text().replace(found.files.digest, digest))
    again, _ = cell.build()
    assert not again.reused
    assert (Path(again.site_packages) / "verl/other.py").read_bytes() == ORIGINAL


def test_reading_every_file_finds_what_metadata_cannot_show(cell: Cell) -> None:
    """On file systems whose metadata is not reliable, and before a run on real devices."""
    found, _ = cell.build()
    assert found.files is not None
    assert why_changed(found.files, full=True) == ""
    manifest = read_manifest(Path(found.files.manifest), found.files.digest)
    edit(Path(found.site_packages))
    # The list with the metadata after the edit: as if the file system had shown nothing.
    states = read_states(manifest.folders)
    unseen = replace(
        manifest,
        entries={path: entry._replace(state=states[path]) for path, entry in manifest.entries.items()},
    )
    files = store_manifest(unseen, Path(found.files.manifest).parent)
    assert why_changed(files) == ""
    assert "verl/other.py" in why_changed(files, full=True)
    stored = replace(found, files=files)
    on_npu = replace(stored, requested_device=replace(found.requested_device, kind="npu"))
    assert venv_environment.holds(stored) == ""
    assert "verl/other.py" in venv_environment.holds(stored, full=True)
    assert "verl/other.py" in venv_environment.holds(on_npu)


def test_an_environment_of_another_machine_is_not_compared_with_the_one_in_its_folder_here(
    cell: Cell,
) -> None:
    found, _ = cell.build()
    assert found.files is not None
    edit(Path(found.site_packages))
    assert "verl/other.py" in altered(found, foreign=True)
    elsewhere = replace(found, files=replace(found.files, manifest=f"{found.files.manifest}-elsewhere"))
    assert altered(elsewhere, foreign=True) == ""
    assert "cannot be verified" in altered(elsewhere)


def test_an_environment_that_two_cells_share_stays_right_for_both(cell: Cell) -> None:
    first, _ = cell.build()
    second, _ = cell.build()
    assert second.reused
    assert (venv_environment.holds(first), venv_environment.holds(second)) == ("", "")


def test_an_edit_of_the_installers_cache_does_not_reach_an_environment(cell: Cell) -> None:
    found, _ = cell.build()
    for copy in Path(os.environ["UV_CACHE_DIR"]).rglob("other.py"):
        copy.write_bytes(FORGED)
    shutil.rmtree(Path(found.prefix).parent)
    again, _ = cell.build()
    assert (Path(again.site_packages) / "verl/other.py").read_bytes() == ORIGINAL


RIGHT_LINE = record_line("verl/core.py", ORIGINAL)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace(RIGHT_LINE, record_line("verl/core.py", FORGED)), "is not the file that"),
        (lambda text: text.replace(f"{RIGHT_LINE}\n", ""), "no SHA-256"),
        (lambda text: text.replace(RIGHT_LINE, "verl/core.py,,"), "no SHA-256"),
        (lambda text: text.replace(RIGHT_LINE, "verl/core.py,md5=abcd,2"), "no SHA-256"),
        (lambda text: text.replace(RIGHT_LINE, "verl/core.py,sha256=A,2"), "cannot be read"),
    ],
    ids=["other digest", "not listed", "no digest", "weak digest", "damaged digest"],
)
def test_a_wheel_that_contradicts_its_record_fails(
    wheels: Any, context: Any, tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    wheel = rewritten(wheels.add("verl", "0.9.1", files={"verl/core.py": ORIGINAL.decode()}), change)
    found, judgement = Cell(context, tmp_path, wheel).fail()
    assert (found.step, judgement.status) == ("verify", Status.FAIL)
    assert said in judgement.reasons[0]


def test_a_wheel_whose_metadata_was_edited_after_the_build_is_installed(
    wheels: Any, context: Any, tmp_path: Path
) -> None:
    """As torch_npu 2.5.1.post1 and 2.6.0."""
    metadata = "verl-0.9.1.dist-info/METADATA"
    wheel = wheels.add("verl", "0.9.1")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(metadata)
    line = record_line(metadata, text)
    rewritten(wheel, lambda record: record.replace(line, record_line(metadata, b"the former one")))
    found, judgement = Cell(context, tmp_path, wheel).build()
    assert judgement.status is Status.PASS
    target = Path(found.site_packages) / metadata
    assert target.read_bytes() == text
    target.write_bytes(text + b"Requires-Dist: x")
    assert "METADATA" in altered(found)


@pytest.mark.parametrize("name", ["__init__.py", "added.py", "__pycache__/without_source.cpython-311.pyc"])
def test_a_package_that_changes_another_one_when_it_is_imported_fails(
    wheels: Any, context: Any, tmp_path: Path, name: str
) -> None:
    code = (
        f"import pathlib, ray\ntarget = pathlib.Path(ray.__file__).parent / {name!r}\n"
        "target.parent.mkdir(exist_ok=True)\ntarget.write_text('X = 1')\n"
    )
    packages = wheels.add("verl", "0.9.1", files={"verl/__init__.py": code}), wheels.add("ray", "2.0")
    found, judgement = Cell(context, tmp_path, *packages).fail()
    assert (found.step, judgement.status) == ("verify", Status.FAIL)
    assert f"ray/{name}" in judgement.reasons[0]


def test_a_package_that_lets_python_import_from_elsewhere_fails(
    wheels: Any, context: Any, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    wheel = wheels.add("verl", "0.9.1", files={"verl/core.py": "", "verl.pth": f"{tmp_path}/elsewhere\n"})
    found, judgement = Cell(context, tmp_path, wheel).fail()
    assert (found.step, judgement.status) == ("verify", Status.FAIL)
    assert f"{tmp_path}/elsewhere" in judgement.reasons[0]


def test_a_package_with_a_path_file_that_imports_and_prints_is_built(
    wheels: Any, context: Any, tmp_path: Path
) -> None:
    files = {"hook.py": "print('hello')\n", "hook.pth": "import hook\n", "verl/core.py": ""}
    found, judgement = Cell(context, tmp_path, wheels.add("verl", "0.9.1", files=files)).build()
    assert (judgement.status, altered(found)) == (Status.PASS, "")


def test_the_interpreter_and_its_standard_library_are_among_the_files(cell: Cell) -> None:
    found, _ = cell.build()
    assert found.files is not None
    listed = set(read_manifest(Path(found.files.manifest), found.files.digest).entries)
    assert {str(Path(found.python).resolve()), json.__file__, json.__cached__} <= listed


def test_the_count_of_verified_files_is_a_reason(cell: Cell) -> None:
    found, judgement = cell.build()
    assert isinstance(found, EnvironmentBuilt)
    assert any("files are as their packages and patches say" in reason for reason in judgement.reasons)


def test_a_runtime_that_no_list_of_files_has_is_not_reused(tmp_path: Path) -> None:
    for name in ("sim/listed/toolkit/8.5.0", "sim/unknown", "sim/listed/toolkit/8.3.0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "lib.so").write_text("")
    listed = str(tmp_path / "sim/listed")
    manifest = with_folders(FileManifest(folders=(), entries={}), runtime_folders(listed, "8.5.0"))
    store_manifest(manifest, tmp_path)
    assert earlier_manifest(tmp_path) == manifest
    assert (tmp_path / "sim/listed/toolkit/8.5.0/lib.so").is_file()
    assert not (tmp_path / "sim/unknown").exists()
    assert not (tmp_path / "sim/listed/toolkit/8.3.0").exists()
    (tmp_path / "sim/listed/toolkit/8.5.0/lib.so").write_text("other")
    assert earlier_manifest(tmp_path) is None

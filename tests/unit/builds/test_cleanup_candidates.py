from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest
from memory_engine import MemoryEngine, MemoryProcess

from harness.builds.cell.venv_environment import FINISHED
from harness.builds.cleanup.cleanup_candidates import (
    CleanupCandidate,
    CleanupPolicy,
    freed_bytes,
    judge_bytecode_folders,
    judge_engine_resources,
    judge_environments,
    judge_temporary_folders,
    judge_unfinished_folders,
    removal_order,
    remove_candidate,
)
from harness.builds.engines.build_time_files import secret_files
from harness.builds.engines.engine import BuildTimeFiles, ContainerSpec, EngineResource, LayerBuild
from harness.builds.engines.image_layers import Layer
from harness.builds.ownership import temporary_folders
from harness.builds.ownership.cache_use import CacheUse, cache_in_use
from harness.builds.ownership.owner_labels import OWNER, ProcessView, make_labels, this_process
from harness.builds.ownership.temporary_folders import (
    OWNER_FILE,
    make_temporary_folder,
    remove_orphaned_folders,
    remove_temporary_folder,
)

DAY = 86400.0


def environment(cache: Path, digest: str, *, days: float = 0.0, finished: bool = True) -> Path:
    folder = cache / "cells" / digest
    (folder / "venv").mkdir(parents=True)
    files = [folder / "venv/pyvenv.cfg", *([folder / FINISHED] if finished else [])]
    for file in files:
        file.write_text("{}")
    then = time.time() - days * DAY
    for path in (*files, folder):
        os.utime(path, (then, then))
    return folder


def judged(cache: Path, policy: CleanupPolicy) -> dict[str, CleanupCandidate]:
    return {one.name: one for one in judge_environments(cache, policy)}


def test_only_environments_nobody_needs_go(tmp_path: Path) -> None:
    environment(tmp_path, "needed", days=90)
    environment(tmp_path, "recent", days=2)
    environment(tmp_path, "old", days=30)
    environment(tmp_path, "half", finished=False)
    found = judged(tmp_path, CleanupPolicy(environments={"needed"}))
    assert {name: one.removable for name, one in found.items()} == {
        "needed": False,
        "recent": False,
        "old": True,
        "half": True,
    }
    assert "an outcome" in found["needed"].reason
    assert "30.0 days ago" in found["old"].reason


def test_everything_means_what_outcomes_refer_to_as_well(tmp_path: Path) -> None:
    environment(tmp_path, "needed")
    assert judged(tmp_path, CleanupPolicy(environments={"needed"}, everything=True))["needed"].removable


def test_a_start_of_its_interpreter_counts_as_use(tmp_path: Path) -> None:
    folder = environment(tmp_path, "old", days=30)
    os.utime(folder / "venv/pyvenv.cfg", (time.time(), time.time() - 30 * DAY))
    assert not judged(tmp_path, CleanupPolicy())["old"].removable


def test_an_environment_a_process_runs_in_stays(tmp_path: Path) -> None:
    folder = environment(tmp_path, "old", days=30)
    link = folder / "venv/bin/python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    program = "print(1, flush=True); input()"
    process = subprocess.Popen([str(link), "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        assert judged(tmp_path, CleanupPolicy(everything=True))["old"].reason == "a process runs in it"
    finally:
        process.communicate(b"\n")
    assert judged(tmp_path, CleanupPolicy(everything=True))["old"].removable


def test_environments_of_a_living_run_stay(tmp_path: Path) -> None:
    environment(tmp_path, "old", days=30)
    assert not cache_in_use(tmp_path)
    use = CacheUse(tmp_path)
    assert cache_in_use(tmp_path)
    policy = CleanupPolicy(everything=True, cache_in_use=cache_in_use(tmp_path))
    assert not judged(tmp_path, policy)["old"].removable
    del use
    assert not cache_in_use(tmp_path)


def test_a_killed_run_uses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from harness.builds.ownership.cache_use import CacheUse\n"
    )
    program += f"use = CacheUse(Path({str(tmp_path)!r})); print('held', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert cache_in_use(tmp_path)
    process.kill()
    process.communicate()
    assert not cache_in_use(tmp_path)


def test_what_is_being_built_stays(tmp_path: Path) -> None:
    folder = environment(tmp_path, "half", finished=False)
    found = judged(tmp_path, CleanupPolicy())["half"]
    with filelock.FileLock(folder.with_suffix(".lock")):
        assert remove_candidate(found, None) == "it is being built"
    assert folder.is_dir()
    assert remove_candidate(found, None) == ""
    assert not folder.exists()


def test_half_made_folders_go_when_their_maker_must_be_dead(tmp_path: Path) -> None:
    hours_ago = {
        "bundle/.bundle-old": 3.0,
        "bundle/.bundle-new": 0.1,
        "sim/.build-old": 3.0,
        "wheels/.fetching-old": 3.0,
    }
    for name, hours in hours_ago.items():
        (tmp_path / name).mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(tmp_path / name, (then, then))
    (tmp_path / "bundle/whole").mkdir()
    found = judge_unfinished_folders(tmp_path, CleanupPolicy())
    assert {one.name: one.removable for one in found} == {
        "bundle/.bundle-old": True,
        "bundle/.bundle-new": False,
        "sim/.build-old": True,
        "wheels/.fetching-old": True,
    }
    for one in found:
        if one.removable:
            assert remove_candidate(one, None) == ""
    assert {path.name for path in tmp_path.glob("*/*")} == {".bundle-new", "whole"}


def test_compiled_modules_go_with_the_outcome_of_their_image(tmp_path: Path) -> None:
    for name in ("a" * 32, "b" * 32, "c" * 32):
        (tmp_path / "bytecode" / name).mkdir(parents=True)
        then = time.time() - (30 if name[0] != "c" else 1) * DAY
        os.utime(tmp_path / "bytecode" / name, (then, then))
    found = judge_bytecode_folders(tmp_path, CleanupPolicy(images={f"sha256:{'a' * 64}", ""}))
    assert {one.name[0]: one.removable for one in found} == {"a": False, "b": True, "c": False}
    assert all(
        not one.removable
        for one in judge_bytecode_folders(tmp_path, CleanupPolicy(everything=True, cache_in_use=True))
    )


@pytest.fixture
def dead_owner() -> Any:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = ProcessView().owner(process.pid)
    process.communicate(b"\n")
    return owner


def labels(owner: Any, *, expires: float = 0.0, key: str = "k") -> dict[str, str]:
    return make_labels(owner=owner, expires=expires or time.time() + DAY, key=key)


def thing(kind: str, name: str, given: dict[str, str], *, days: float = 0.0) -> EngineResource:
    return EngineResource(kind=kind, id=name, name=name, labels=given, created=time.time() - days * DAY)


def verdicts(things: list[EngineResource], policy: CleanupPolicy | None = None) -> dict[str, bool]:
    return {
        one.name: one.removable
        for one in judge_engine_resources(things, policy or CleanupPolicy(), ProcessView())
    }


def scratch(place: Path, name: str, owner: Any) -> Path:
    folder = place / name
    (folder / "r/session").mkdir(parents=True)
    (folder / "r/session/log").write_text("Ray's")
    if owner:
        (folder / OWNER_FILE).write_text(str(owner))
    return folder


def test_temporary_folders_of_the_dead_go_and_no_others(dead_owner: Any, tmp_path: Path) -> None:
    mine = this_process()
    scratch(tmp_path, "npmx-dead", dead_owner)
    scratch(tmp_path, "npmx-booted", replace(mine, boot="before"))
    scratch(tmp_path, "npmx-mine", mine)
    scratch(tmp_path, "npmx-elsewhere", replace(mine, host="elsewhere"))
    scratch(tmp_path, "npmx-space", replace(dead_owner, space="1"))
    scratch(tmp_path, "npmx-nobodys", None)
    # Its creator was killed before it wrote the owner.
    os.utime(scratch(tmp_path, "npmx-forgotten", None), (time.time() - 9e3,) * 2)
    scratch(tmp_path, "npmy-dead", dead_owner)
    (tmp_path / "npmx-link").symlink_to(scratch(tmp_path, "kept", dead_owner))
    found = {Path(one.name).name: one for one in judge_temporary_folders(ProcessView(), tmp_path)}
    assert {name: one.removable for name, one in found.items()} == {
        "npmx-booted": True,
        "npmx-dead": True,
        "npmx-elsewhere": False,
        "npmx-forgotten": True,
        "npmx-mine": False,
        "npmx-nobodys": False,
        "npmx-space": False,
    }
    assert found["npmx-dead"].reason == f"its owner, process {dead_owner.pid}, is dead"
    assert found["npmx-forgotten"].reason == "it names no owner, and was used 2.5 hours ago"
    remove_orphaned_folders(tmp_path)
    left = {"kept", "npmx-elsewhere", "npmx-link", "npmx-mine", "npmx-nobodys", "npmx-space", "npmy-dead"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_files_with_secrets_are_in_memory_and_what_the_dead_left_of_them_goes(
    dead_owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_folders, "SHARED_MEMORY", tmp_path)
    with secret_files({"settings": b"UV_INDEX_URL=secret"}) as (mount,):
        assert mount.source.parent.parent == tmp_path
        assert mount.source.stat().st_mode & 0o777 == 0o600
        assert mount.source.parent.stat().st_mode & 0o777 == 0o700
        assert mount.source.read_bytes() == b"UV_INDEX_URL=secret"
    assert list(tmp_path.iterdir()) == []
    scratch(tmp_path, "npmx-dead", dead_owner)
    assert str(tmp_path / "npmx-dead") in {one.name for one in judge_temporary_folders(ProcessView())}
    remove_orphaned_folders()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_its_owner_removes_meanwhile_is_nothing_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = scratch(tmp_path, "npmx-going", this_process())

    def too_late(folder: Path) -> None:
        remove_temporary_folder(folder)

    monkeypatch.setattr("harness.builds.ownership.temporary_folders.read_folder_owner", too_late)
    assert judge_temporary_folders(ProcessView(), tmp_path) == ()
    assert not going.exists()


def test_a_folder_that_vanishes_while_it_is_counted_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scratch(tmp_path, "npmx-mine", this_process())
    (folder / "vanishes/below").mkdir(parents=True)
    (folder / "vanishes/below/file").write_bytes(b"x" * 5000)
    stays = freed_bytes(folder) - 5000
    scan = os.scandir

    def too_late(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == "vanishes":
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", too_late)
    assert freed_bytes(folder) == stays


def test_a_removal_that_is_cut_short_leaves_whose_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = make_temporary_folder()
    (folder / "r").mkdir()

    def cut_short(_path: Path) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", cut_short)
        with pytest.raises(OSError, match="killed here"):
            remove_temporary_folder(folder)
    assert [one.reason.rsplit(" ", 1)[-1] for one in judge_temporary_folders(ProcessView())] == ["alive"]
    remove_temporary_folder(folder)
    remove_temporary_folder(folder)
    assert not list(tmp_path.iterdir())


def test_containers_and_networks_of_the_dead_go_and_of_the_living_stay(dead_owner: Any) -> None:
    mine = this_process()
    elsewhere = replace(mine, host="elsewhere")
    things = [
        thing("container", "dead", labels(dead_owner)),
        thing("network", "dead-net", labels(dead_owner)),
        thing("container", "mine", labels(mine)),
        # Resources of a living owner stay, even if they have expired.
        thing("container", "mine-expired", labels(mine, expires=1.0)),
        thing("container", "elsewhere", labels(elsewhere)),
        thing("container", "elsewhere-expired", labels(elsewhere, expires=1.0)),
        thing("container", "unreadable", {OWNER: "?", "npu-matrix.key": "k"}),
    ]
    assert verdicts(things) == {
        "dead": True,
        "dead-net": True,
        "mine": False,
        "mine-expired": False,
        "elsewhere": False,
        "elsewhere-expired": True,
        "unreadable": False,
    }


def test_images_stay_with_what_stands_on_them(dead_owner: Any) -> None:
    given = labels(dead_owner)
    things = [
        thing("image", "base", given, days=90),
        thing("image", "torch", {**given, "npu-matrix.parent": "base"}, days=90),
        thing("image", "verl", {**given, "npu-matrix.parent": "torch"}, days=90),
        thing("image", "unused", {**given, "npu-matrix.parent": "torch"}, days=90),
        thing("image", "new", {**given, "npu-matrix.parent": "torch"}, days=1),
    ]
    assert verdicts(things, CleanupPolicy(images={"verl"})) == {
        "base": False,
        "torch": False,
        "verl": False,
        "unused": True,
        "new": False,
    }
    found = judge_engine_resources(things, CleanupPolicy(everything=True), ProcessView())
    assert [one.name for one in removal_order(found)][-2:] == ["torch", "base"]


def test_images_of_a_living_run_stay_even_when_everything_is_to_go() -> None:
    given = labels(this_process())
    assert verdicts([thing("image", "new", given)], CleanupPolicy(everything=True)) == {"new": False}


def test_an_engine_is_left_with_what_is_not_ours_and_what_lives(dead_owner: Any) -> None:
    waiting = threading.Event()

    def hang(process: MemoryProcess) -> int:
        waiting.wait(90)
        return 0

    engine = MemoryEngine(programs={"hang": hang})
    base = engine.add_base("base:1")
    layer = Layer(name="torch", key="t", below="")
    request = LayerBuild(
        parent=base.id,
        layer=layer,
        build_files=BuildTimeFiles(),
        labels=labels(dead_owner, key="t"),
        log=lambda _text: None,
    )
    engine.build(request)
    for name, given in (("dead", labels(dead_owner)), ("mine", labels(this_process())), ("other", {})):
        engine.start(ContainerSpec(name=name, image="base:1", argv=("hang",), labels=given))
    engine.add_network("dead-net", labels(dead_owner))
    found = judge_engine_resources(engine.resources(), CleanupPolicy(), ProcessView())
    for one in removal_order(found):
        assert remove_candidate(one, engine) == ""
    waiting.set()
    assert sorted(one.name for one in engine.resources()) == ["mine", "npu-matrix-layer:t"]
    assert engine.wait("other", 90.0) is not None

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from git_command import commit_all
from memory_engine import MemoryEngine, MemoryProcess

from harness.builds.cell.cell_command import cell_command, cell_launcher
from harness.builds.engines import container_run
from harness.builds.engines.build_time_files import build_time_files
from harness.builds.engines.cann_environment import BUILD_ENV, SET_ENV
from harness.builds.engines.container_command import contained_command
from harness.builds.engines.container_run import PREFIX, ContainedCommand, run_contained
from harness.builds.engines.engine import BUILD_TIME_FOLDER, ContainerExit, ContainerSpec
from harness.builds.lock.cell_lock import LockedSource
from harness.cell_program.built_environment import CellContainer, CellDevice, EnvironmentLocation
from harness.errors import InputError
from harness.outcome import Evidence, Outcome, State, Tier
from harness.serialisation import json_object, load
from harness.settings import parse_size
from harness.sources.packages.index_settings import IndexSettings

CONTAINER = CellContainer(engine="docker", image="sha256:1", cell="a-cell", bytecode="/b")


def engine(program: Any) -> MemoryEngine:
    made = MemoryEngine(programs={"go": program})
    made.add_base("base:1")
    return made


ORDER = ContainerSpec(name="one", image="base:1", argv=("go",))


def test_a_container_is_gone_however_its_program_ended() -> None:
    for code in (0, 3):
        made, said = engine(lambda process, code=code: process.write(b"out\n") or code), bytearray()
        ended = run_contained(made, ORDER, threading.Event(), said.extend)
        assert (ended, bytes(said)) == (ContainerExit(code=code, out_of_memory=False), b"out\n")
        assert made.containers == ()


def test_a_hang_is_asked_for_its_stacks_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_run, "STACK_SECONDS", 0.2)
    signals: list[str] = []
    over = threading.Event()

    def hang(process: MemoryProcess) -> int:
        process.killed.wait(90)
        signals.extend(process.signals)
        over.set()
        return 0

    made, said, stopped = engine(hang), bytearray(), threading.Event()
    threading.Timer(0.3, stopped.set).start()
    ended = run_contained(made, ORDER, stopped, said.extend)
    assert ended.code == 137
    assert over.wait(90)
    assert signals == ["ABRT", "KILL"]
    assert b"stacks of the Python processes" in said
    assert made.containers == ()


def test_a_command_is_wrapped_with_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("{}")
    for name in ("bundle", "runtime", "bytecode"):
        (tmp_path / name).mkdir()
    environment = EnvironmentLocation(
        python="/cell/venv/bin/python",
        prefix="/cell/venv",
        runtime=str(tmp_path / "runtime"),
        requested_device=CellDevice(kind="sim"),
        container=replace(CONTAINER, bytecode=str(tmp_path / "bytecode")),
    )
    command, variables = cell_command(
        environment, tmp_path / "bundle", "a.module", [str(tmp_path / "in.json")]
    )
    order = load(ContainedCommand, command[-1])
    assert order.argv[0] == "/cell/venv/bin/python"
    assert order.argv[-2:] == ("a.module", str(tmp_path / "in.json"))
    assert dict(order.mounts) == {
        str(tmp_path / name): False for name in ("bundle", "runtime", "bytecode", "in.json")
    }
    assert variables[f"{PREFIX}PYTHONDONTWRITEBYTECODE"] == "1"
    assert not order.has_npu
    assert all(name.startswith(PREFIX) for name in variables)
    assert variables[f"{PREFIX}PYTHONPATH"] == str(tmp_path / "bundle")


def test_a_reference_of_a_container_runs_in_it_without_its_device(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    location = EnvironmentLocation(
        python="/cell/venv/bin/python",
        prefix="/cell/venv",
        runtime=str(tmp_path / "runtime"),
        requested_device=CellDevice(kind="sim"),
        container=replace(CONTAINER, bytecode=str(tmp_path)),
    )
    built = Outcome(
        key="k",
        check="environment",
        tier=Tier.BUILD,
        state=State.COMPLETED,
        evidence=Evidence.SIMULATED,
        facets={},
        measurements=json_object(location),
    )
    command, variables = cell_launcher(tmp_path / "cache")(built, "a.module", ["--out", "x"], on_cpu=True)
    order = load(ContainedCommand, command[-1])
    assert order.argv == ("/cell/venv/bin/python", "-m", "a.module", "--out", "x")
    assert variables[f"{PREFIX}TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert variables[f"{PREFIX}LD_LIBRARY_PATH"] == str(tmp_path / "runtime")


def test_a_container_on_an_npu_has_cann_its_folders_and_the_groups_of_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of the container is run here, with the scripts of a made-up CANN."""
    folders = tmp_path / "usr" / "local" / "Ascend"
    (folders / "cann").mkdir(parents=True)
    (folders / "cann" / "set_env.sh").write_text(
        "export PYTHONPATH=/cann/python:$PYTHONPATH ASCEND_HOME_PATH=/cann\n"
    )
    card = tmp_path / "davinci0"
    card.touch()
    monkeypatch.setattr(container_run, "card_nodes", lambda _visible: ((str(card),), "0"))
    order = ContainedCommand(
        engine="docker",
        image="sha256:1",
        cell="a-cell",
        argv=("sh", "-c", "echo $PYTHONPATH $ASCEND_HOME_PATH"),
        mounts=(),
        memory_bytes=0,
        shm_bytes=0,
        has_npu=True,
    )
    spec = container_run._container_spec(order, {f"{PREFIX}PYTHONPATH": "/bundle"})
    assert spec.groups == (card.stat().st_gid,)
    assert spec.network == "host"
    inside = [word.replace("/usr/local/Ascend", str(folders)) for word in spec.argv]
    environment = {**spec.env, "PATH": os.environ["PATH"], "PYTHONPATH": "/image/tbe"}
    done = subprocess.run(inside, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["/bundle:/cann/python:/image/tbe", "/cann"]


@pytest.mark.parametrize(("has_driver", "found"), [(False, ["/cann/lib", "STUBS"]), (True, ["/cann/lib"])])
def test_a_build_without_a_driver_has_the_toolkit_s_stubs_of_it(
    tmp_path: Path, has_driver: bool, found: list[str]
) -> None:
    ascend = tmp_path / "Ascend"
    stubs = ascend / f"cann/{platform.machine()}-linux/devlib"
    stubs.mkdir(parents=True)
    (ascend / "cann/set_env.sh").write_text(
        f"export ASCEND_TOOLKIT_HOME={ascend}/cann LD_LIBRARY_PATH=/cann/lib:$LD_LIBRARY_PATH\n"
    )
    if has_driver:
        (ascend / "driver/lib64").mkdir(parents=True)
    for script in (BUILD_ENV, SET_ENV):
        text = f"set -eu; {script}; echo $LD_LIBRARY_PATH".replace("/usr/local/Ascend", str(ascend))
        run = subprocess.run(
            ["bash", "-c", text], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
        )
        expected = found if script is BUILD_ENV else ["/cann/lib"]
        folders = [folder for folder in run.stdout.strip().split(":") if folder]
        assert folders == [folder.replace("STUBS", str(stubs)) for folder in expected]


def test_a_build_with_neither_cann_nor_driver_sets_nothing() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -eu; {BUILD_ENV}; echo ${{LD_LIBRARY_PATH-unset}}".replace("/usr/local", "/no")],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "unset"


def test_only_a_program_that_compiles_can_change_the_compiled_modules(tmp_path: Path) -> None:
    environment = EnvironmentLocation(
        python="/cell/venv/bin/python",
        prefix="/cell/venv",
        requested_device=CellDevice(kind="cpu"),
        container=replace(CONTAINER, bytecode=str(tmp_path)),
    )
    for compiles in (True, False):
        command, _variables = cell_command(environment, tmp_path / "bundle", "a.module", compiles=compiles)
        assert dict(load(ContainedCommand, command[-1]).mounts)[str(tmp_path)] is compiles


def test_the_wrapping_program_starts_and_says_what_engine_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("docker.errors", reason="the Docker SDK is not installed: nox -s containers")
    container = replace(CONTAINER, bytecode=str(tmp_path))
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/nothing"}
    command, variables = contained_command(container, ["true"], {}, needed=(), has_npu=False, environ=environ)
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 125
    assert "docker does not respond" in done.stdout


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("512m", 512 << 20), ("8g", 8 << 30), ("1GB", 1 << 30), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "X") == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5g", "g"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text, "NPU_MATRIX_CELL_MEMORY")
    assert "NPU_MATRIX_CELL_MEMORY" in str(caught.value)


def settings_of(lent: Any) -> dict[str, str]:
    lines = lent.secrets["settings"].decode().splitlines()
    return {
        name: shlex.split(value)[0] if value else ""
        for name, _, value in (line.partition("=") for line in lines)
    }


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("links", "index/simple", "cache"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "uv").write_text("")
    (tmp_path / "ca.pem").write_text("PRIVATE CA")
    (tmp_path / "netrc").write_text("machine m password hunter2")
    return tmp_path


def test_everything_about_fetching_is_lent_and_nothing_of_this_host(folders: Path) -> None:
    settings = IndexSettings(
        index_url="https://user:hunter2@mirror.example/simple",
        extra_index_urls=(f"file://{folders}/index/simple",),
        find_links=(f"file://{folders}/links",),
        cert=str(folders / "ca.pem"),
        proxy="http://proxy.example:1",
        inherited={"NETRC": str(folders / "netrc"), "HOME": "/root", "PATH": "/bin", "UV_CACHE_DIR": "/c"},
    )
    lent = build_time_files(settings, folders / "uv", cache=folders / "cache")
    found = settings_of(lent)
    assert found["UV_DEFAULT_INDEX"] == "https://user:hunter2@mirror.example/simple"
    assert found["HTTPS_PROXY"] == "http://proxy.example:1"
    assert found["SSL_CERT_FILE"] == f"{BUILD_TIME_FOLDER}/ca.pem"
    assert lent.secrets["ca.pem"] == b"PRIVATE CA"
    assert lent.secrets["netrc"].endswith(b"hunter2")
    assert "PATH" not in found
    where = {mount.target: mount.source for mount in lent.mounts}
    assert where[found["UV_FIND_LINKS"].removeprefix("file://")] == folders / "links"
    # The pages of an index folder link to files next to it.
    assert where[found["UV_INDEX"].removeprefix("file://").removesuffix("/simple")] == folders / "index"
    assert [mount.target for mount in lent.mounts if mount.writable] == [f"{BUILD_TIME_FOLDER}/cache"]
    assert str(folders) not in lent.secrets["settings"].decode()
    assert all(target.startswith(f"{BUILD_TIME_FOLDER}/") for target in where)


def test_settings_reach_a_shell_as_they_are(folders: Path) -> None:
    settings = IndexSettings(index_url="https://u:$(touch evil)'\"`x`@m.example/simple", no_index=True)
    lent = build_time_files(settings, folders / "uv")
    (folders / "settings").write_bytes(lent.secrets["settings"])
    script = (
        f'set -a; source {folders}/settings; set +a; printf \'%s|%s\' "$UV_DEFAULT_INDEX" "$INDEX_ARGUMENTS"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=folders, capture_output=True, text=True, check=True)
    assert done.stdout == f"{settings.index_url}|--no-index"
    assert not (folders / "evil").exists()


def test_a_mirror_with_the_commit_is_lent(folders: Path) -> None:
    repository = folders / "mirrors/verl"
    repository.mkdir(parents=True)
    commit = commit_all(repository)
    source = LockedSource(
        package="verl", version="1", commit=commit, repository="https://g.example/verl", env={}
    )
    environ = {"NPU_MATRIX_MIRRORS": str(folders / "mirrors")}
    lent = build_time_files(IndexSettings(), folders / "uv", sources=[source], environ=environ)
    assert {mount.target: mount.source for mount in lent.mounts}[
        f"{BUILD_TIME_FOLDER}/git/verl"
    ] == repository
    other = replace(source, commit="0" * 40)
    assert (
        len(build_time_files(IndexSettings(), folders / "uv", sources=[other], environ=environ).mounts) == 1
    )


def test_the_end_of_a_flood_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long, because the machine may be loaded.
    monkeypatch.setattr(container_run, "QUIET_SECONDS", 100.0)

    class Slow(MemoryEngine):
        """Passes on output long after the container has ended, like a daemon with very much output."""

        def follow(self, container: str, write: Any) -> None:
            for _ in range(30):
                time.sleep(0.1)
                write(b"noise\n")
            write(b"the end\n")

    made, said = Slow(programs={"go": lambda _process: 0}), bytearray()
    made.add_base("base:1")
    run_contained(made, ORDER, threading.Event(), said.extend)
    assert said.endswith(b"the end\n")


def test_the_last_words_of_a_flood_whose_follower_lost_its_place() -> None:
    class Lost(MemoryEngine):
        """The engine truncates its log while the output is followed."""

        def follow(self, container: str, write: Any) -> None:
            write(b"noise\n" * size)

    def flood(process: MemoryProcess) -> int:
        process.write(b"RuntimeError: the end\n")
        return 1

    size = 300_000
    made, said = Lost(programs={"go": flood}), bytearray()
    made.add_base("base:1")
    run_contained(made, ORDER, threading.Event(), said.extend)
    assert said.endswith(b"last lines:]\nRuntimeError: the end\n")
    size, quiet = 100, bytearray()
    run_contained(made, ORDER, threading.Event(), quiet.extend)
    assert quiet.endswith(b"noise\n")

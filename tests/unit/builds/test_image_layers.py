from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from git_command import commit_all, git
from hypothesis import given
from hypothesis import strategies as st
from memory_engine import KILLED, MemoryEngine, MemoryProcess

from harness.builds.engines.engine import BuildError, BuildTimeFiles, ContainerSpec, Mount, layer_image
from harness.builds.engines.image_build import base_notices, build_image, find_base_image
from harness.builds.engines.image_layers import (
    INDEX_SETTINGS,
    INSTALLER,
    PREFIX,
    Layer,
    PatchedTree,
    image_layers,
)
from harness.builds.lock.cell_lock import TOOLS_OF, CellLock, LockedSource, PatchFile
from harness.digest import digest_bytes
from harness.errors import InfrastructureError, InputError
from harness.sources.packages.lockfile import LockedPackage


def package(name: str, version: str, *via: str) -> LockedPackage:
    return LockedPackage(
        name=name, version=version, hashes=(f"sha256:{digest_bytes(name.encode())}",), via=via
    )


def lock(verl: str = "0.9.1", transformers: str = "4.57.3", torch: str = "2.9.0", **changes: Any) -> CellLock:
    made = CellLock(
        cell=f"verl-{verl}",
        title="",
        axes={},
        python="3.11",
        arch="x86_64",
        image="python:3.11-slim",
        image_digest="",
        packages=(
            package("torch", torch, "torch-npu"),
            package("torch-npu", torch),
            package("transformers", transformers, "verl"),
            package("verl", verl),
        ),
        from_source=(),
        overrides=(),
        patches=(),
        build_env={},
        compiled=(),
        inconsistencies=(),
    )
    return replace(made, **changes)


def patched(text: bytes = b"A = 2\n") -> PatchedTree:
    return PatchedTree(files={"verl/a.py": text}, before={"verl/a.py": digest_bytes(b"A = 1\n")})


def names(layers: tuple[Layer, ...]) -> list[str]:
    return [layer.name for layer in layers]


def build(
    engine: MemoryEngine, layers: tuple[Layer, ...], folder: Path, lent: BuildTimeFiles | None = None
) -> Any:
    base = find_base_image(engine, "base:1", "x86_64")
    return build_image(
        engine,
        base,
        layers,
        build_files=lent or BuildTimeFiles(),
        labels={"npu-matrix.owner": "h/b/s/1/2"},
        locks=folder,
        log=lambda _text: None,
    )


@pytest.fixture
def engine() -> MemoryEngine:
    made = MemoryEngine()
    made.add_base("base:1")
    return made


def test_cells_cost_their_distinct_layers(engine: MemoryEngine, tmp_path: Path) -> None:
    cells = {
        "a": image_layers(lock("0.9.1"), "base"),
        "b": image_layers(lock("0.6.1"), "base"),
        "c": image_layers(lock("0.6.1"), "base", patched()),
        "d": image_layers(lock("0.6.1", transformers="4.53.3"), "base"),
        "e": image_layers(lock("0.6.1"), "base"),
    }
    for layers in cells.values():
        build(engine, layers, tmp_path)
    # Shared: python, torch, training. Separate: two verl layers, patches, another training layer with its verl.
    distinct = list(dict.fromkeys(layer.key for layers in cells.values() for layer in layers))
    assert len(distinct) == 8
    assert engine.built == distinct
    assert sum(len(layers) for layers in cells.values()) == 21
    again = build(engine, cells["c"], tmp_path)
    assert again.built == ()
    assert list(again.reused) == names(cells["c"])


def test_layers_go_from_what_changes_seldom_to_what_changes_often() -> None:
    source = LockedSource(
        package="vllm", version="0.11.0", commit="v0.11.0", repository="https://git.example/v", env={}
    )
    layers = image_layers(lock(from_source=(source,)), "base", patched())
    assert names(layers) == ["python", "torch", "vllm", "training", "verl", "patches"]
    assert [layer.below for layer in layers[1:]] == [layer.key for layer in layers[:-1]]


def test_a_patch_of_one_line_rebuilds_only_the_last_layer(engine: MemoryEngine, tmp_path: Path) -> None:
    build(engine, image_layers(lock(), "base", patched()), tmp_path)
    again = build(engine, image_layers(lock(), "base", patched(b"A = 3\n")), tmp_path)
    assert again.built == ("patches",)
    assert engine.files(again.image.id)["/cell/patched/verl/a.py"] == b"A = 3\n"


@given(st.sampled_from(["torch", "transformers", "verl"]), st.integers(0, 9))
def test_a_change_reaches_its_layer_and_those_above_and_no_other(part: str, minor: int) -> None:
    order = ["torch", "transformers", "verl"]
    layer_of = {"torch": "torch", "transformers": "training", "verl": "verl"}
    before = image_layers(lock(), "base", patched())
    after = image_layers(lock(**{part: f"99.{minor}"}), "base", patched())
    changed = [new.name for old, new in zip(before, after, strict=True) if old.key != new.key]
    expected = [layer_of[name] for name in order[order.index(part) :]] + ["patches"]
    assert changed == expected


def test_another_base_or_architecture_is_another_image() -> None:
    keys = {
        image_layers(made, base)[-1].key
        for made, base in [(lock(), "base"), (lock(), "other"), (lock(arch="aarch64"), "base")]
    }
    assert len(keys) == 3


def test_the_build_environment_reaches_only_layers_that_compile() -> None:
    told = lock(build_env={"SOC_VERSION": "ascend910b1"}, compiled=("verl",))
    plain = image_layers(lock(), "base")
    compiled = image_layers(told, "base")
    assert [a.key == b.key for a, b in zip(plain, compiled, strict=True)] == [True, True, True, False]
    assert "export SOC_VERSION=ascend910b1" in compiled[-1].commands
    assert "--no-binary verl" in compiled[-1].commands[-1]


def test_what_is_lent_does_not_end_in_the_image(engine: MemoryEngine, tmp_path: Path) -> None:
    secret = b"UV_DEFAULT_INDEX=https://user:hunter2@mirror.example/simple\n"
    mirror = Mount(source=tmp_path, target="/run/npu-matrix/git/verl")
    lent = BuildTimeFiles(secrets={"settings": secret}, mounts=(mirror,))
    made = build(engine, image_layers(lock(), "base", patched()), tmp_path, lent)
    everything = engine.history(made.image.id).encode() + b"".join(engine.files(made.image.id).values())
    assert b"hunter2" not in everything
    assert b"mirror.example" not in everything
    assert str(tmp_path).encode() not in everything


def test_a_layer_whose_commands_fail_is_named_and_those_below_stay(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    engine.failing = {"verl"}
    layers = image_layers(lock(), "base")
    with pytest.raises(BuildError) as caught:
        build(engine, layers, tmp_path)
    assert caught.value.layer == "verl"
    engine.failing = set()
    assert build(engine, layers, tmp_path).built == ("verl",)


def test_a_base_image_that_cannot_be_had_or_run_is_named(engine: MemoryEngine) -> None:
    with pytest.raises(InfrastructureError) as missing:
        find_base_image(engine, "ascend/cann:9", "x86_64")
    assert "NPU_MATRIX_BASE_IMAGE" in str(missing.value)
    with pytest.raises(InputError) as other:
        find_base_image(engine, "base:1", "aarch64")
    assert "x86_64" in str(other.value)
    assert "aarch64" in str(other.value)
    engine.running = False
    with pytest.raises(InfrastructureError) as down:
        find_base_image(engine, "base:1", "x86_64")
    assert "does not respond" in str(down.value)


def test_a_base_image_without_a_digest_is_said(engine: MemoryEngine) -> None:
    plain, pinned = engine.add_base("a:1"), engine.add_base("b:1", digests=("b@sha256:00",))
    assert "digest" in base_notices("a:1", plain)[0]
    assert base_notices("b:1", pinned) == ()


def test_values_of_patches_reach_the_shell_as_words() -> None:
    tree = PatchedTree(
        files={"verl/a b; rm -rf x": b"", "verl/gone$(x).py": None}, before={"verl/gone$(x).py": "0" * 64}
    )
    commands = image_layers(lock(), "base", tree)[-1].commands
    assert "test ! -e 'verl/a b; rm -rf x'" in commands
    assert "rm 'verl/gone$(x).py'" in commands


def test_a_container_in_memory_ends_as_its_program_does() -> None:
    def greedy(process: MemoryProcess) -> int:
        process.write(b"allocating\n")
        return KILLED

    engine = MemoryEngine(programs={"greedy": greedy})
    engine.add_base("base:1")
    engine.start(ContainerSpec(name="a", image="base:1", argv=("greedy",), memory_bytes=1 << 20))
    said: list[bytes] = []
    engine.follow("a", said.append)
    ended = engine.wait("a", 5.0)
    assert ended is not None
    assert (ended.code, ended.out_of_memory) == (137, True)
    assert said == [b"allocating\n"]
    assert engine.image(layer_image("nothing")) is None


PATCH = PatchFile(id="verl/fix", file="patches/verl/fix/a.patch", digest="0" * 64)


def test_patch_files_are_no_part_of_a_layer_only_what_they_make() -> None:
    assert image_layers(lock(patches=(PATCH,)), "base") == image_layers(lock(), "base")


BUILD = "mkdir dist && touch dist/torch_npu-2.6.0-cp311.whl && echo built $1"


def run_layer(commands: tuple[str, ...], folder: Path, tools: tuple[str, ...]) -> tuple[str, str]:
    """Run the commands of a layer in a folder; returns the arguments of a fake installer, and the output."""
    program = folder / "program"
    program.mkdir()
    for name in tools:
        (program / name).symlink_to(shutil.which(name) or "/bin/true")
    log = folder / "installed"
    (folder / "uv").write_text(f'#!/bin/bash\necho "$@" >> {log}\n')
    (folder / "settings").write_text("INDEX_ARGUMENTS=--no-index\n")
    (folder / "venv/bin").mkdir(parents=True)
    for path in (folder / "uv", folder / "venv/bin/python3.11"):
        path.touch()
        path.chmod(0o755)
    script = (
        "\n".join(commands).replace(INSTALLER, f"{folder}/uv").replace(INDEX_SETTINGS, f"{folder}/settings")
    )
    script = script.replace(PREFIX, f"{folder}/venv").replace("/tmp/source-", f"{folder}/source-")
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": str(program)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    return (log.read_text() if log.exists() else ""), said


def repository_with_script(folder: Path) -> LockedSource:
    (folder / "ci").mkdir(parents=True)
    (folder / "ci/build.sh").write_text(BUILD)
    commit_all(folder)
    git(folder, "tag", "v7")
    return LockedSource(package="torch-npu", version="2.6.0", commit="v7", repository=str(folder), env={})


NEEDED = (
    "bash",
    "git",
    "rm",
    "mkdir",
    "touch",
    "which",
    "sh",
    "basename",
    "sed",
    "uname",
    *TOOLS_OF["torch-npu"],
)


def test_torch_npu_from_source_is_built_by_its_script_with_the_image_s_python(tmp_path: Path) -> None:
    source = repository_with_script(tmp_path / "repository")
    layer = image_layers(lock(packages=(), from_source=(source,)), "sha256:0")[-1]
    (tmp_path / "image").mkdir()
    installed, said = run_layer(layer.commands, tmp_path / "image", NEEDED)
    tools, wheel = installed.splitlines()
    assert "built --python=3.11" in said
    assert tools.endswith("--no-index pyyaml setuptools wheel auditwheel")
    assert "--no-deps" not in tools
    assert wheel.endswith("--no-deps --no-index dist/torch_npu-2.6.0-cp311.whl")
    assert not (tmp_path / "image/source-torch-npu").exists()


def test_a_base_image_without_what_torch_npu_is_built_with_is_named(tmp_path: Path) -> None:
    source = repository_with_script(tmp_path / "repository")
    layer = image_layers(lock(packages=(), from_source=(source,)), "sha256:0")[-1]
    (tmp_path / "image").mkdir()
    installed, said = run_layer(
        layer.commands, tmp_path / "image", tuple(one for one in NEEDED if one != "wget")
    )
    assert said.endswith("the base image has no wget, which building torch-npu needs\n")
    assert installed == ""

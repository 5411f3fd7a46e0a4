"""Requirements of packages from source, resolved with uv and generated wheels."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from git_command import commit_all, git

from harness.builds.export.export_formats import EXPORTS
from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.lock.extra_requirements import add_extra_requirements, overruled_requirements
from harness.errors import InfrastructureError
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet
from harness.sources.packages.lockfile import parse_lock

LOCK = """\
numpy==2.2.6 \\
    --hash=sha256:bb
    # via torch
ray==2.60.0 \\
    --hash=sha256:cc
    # via -r requirements.in
torch==2.7.1 \\
    --hash=sha256:dd
    # via -r requirements.in
"""
REQUIRES = '"hydra-core", "numpy<2.0.0", "ray[default]>=2.41", "torchdata", "vllm-ascend"'


@pytest.fixture
def mirrors(tmp_path: Path) -> Path:
    return clone(tmp_path / "mirrors", f"install_requires = [{REQUIRES}]\n")


def clone(folder: Path, setup: str, files: Mapping[str, str] | None = None) -> Path:
    """A folder with a clone of verl whose tag v0.9.9 has this setup.py."""
    repository = folder / "verl"
    repository.mkdir(parents=True)
    for name, text in {"setup.py": setup, **(files or {})}.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (repository / "pyproject.toml").write_text("[project]\nname = 'verl'\ndynamic = ['dependencies']\n")
    commit_all(repository)
    git(repository, "tag", "v0.9.9")
    return folder


@pytest.fixture
def index(wheels: Any) -> Any:
    wheels.add("hydra-core", "1.3.2", "omegaconf>=2.2", "numpy<2")
    wheels.add("omegaconf", "2.3.0")
    wheels.add("torchdata", "0.11.0", "torch>=2")
    wheels.add("numpy", "2.2.6")
    wheels.add("numpy", "1.26.4")
    wheels.add("ray", "2.60.0", "smart-open; extra == 'default'")
    wheels.add("smart-open", "7.0.0")
    wheels.add("torch", "2.7.1")
    wheels.add("torch", "2.9.0")
    return wheels


def lock(package: str = "verl") -> CellLock:
    sources = (
        PinnedSource(package=name, version="0.9.9", commit="v0.9.9", repository=f"https://git.example/{name}")
        for name in (package, "vllm-ascend")
    )
    return lock_of(*sources, soc="a2")


def lock_of(*sources: PinnedSource, soc: str, **changes: Any) -> CellLock:
    facets = LockFacets(
        pins=PinsFacet(from_source=sources), platform=PlatformFacet(python="3.11.7", arch="aarch64")
    )
    axes = {"cann": "8.5.0", "soc": soc}
    return make_lock(facets, LOCK, cell="a", title="a", axes=axes, resolved_sources=(), **changes)


def test_what_a_package_from_source_needs_is_pinned_and_the_pins_stay(index: Any, mirrors: Path) -> None:
    made = add_extra_requirements(lock(), [mirrors], os.environ)
    versions = {package.name: package.version for package in made.packages}
    assert versions == {
        "hydra-core": "1.3.2",
        "numpy": "2.2.6",
        "omegaconf": "2.3.0",
        "ray": "2.60.0",
        "smart-open": "7.0.0",
        "torch": "2.7.1",
        "torchdata": "0.11.0",
    }
    assert all(package.hashes for package in made.packages)
    assert made.unpinned_sources == ("vllm-ascend",)
    assert [name for name, packages in made.layers() if {"hydra-core"} & {p.name for p in packages}] == [
        "training"
    ]
    pinned = {package.name: package for package in lock().packages}
    assert {package.name: package for package in made.packages if package.name in pinned} == pinned


def test_exports_install_it_and_say_what_the_pins_overrule(index: Any, mirrors: Path) -> None:
    made = add_extra_requirements(lock(), [mirrors], os.environ)
    for shape in ("script", "requirements", "markdown", "conda"):
        text = EXPORTS[shape](made)
        assert "verl requires other versions than the pins: numpy<2.0.0 (pinned 2.2.6)" in (
            text.replace("&lt;", "<")
        )
    assert "omegaconf==2.3.0" in EXPORTS["script"](made)


def test_without_its_sources_the_export_says_what_is_left_open(index: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for places in ([], [tmp_path / "empty"]):
        made = add_extra_requirements(lock(), places, os.environ)
        assert made == lock()
        assert "neither pinned nor installed: verl, vllm-ascend" in EXPORTS["script"](made)
        assert "NPU_MATRIX_MIRRORS" in EXPORTS["script"](made)


def test_a_tree_that_does_not_say_what_it_requires_stays_left_open(index: Any, tmp_path: Path) -> None:
    made = add_extra_requirements(
        lock(), [clone(tmp_path / "other", "install_requires = read()\n")], os.environ
    )
    assert made.unpinned_sources == ("verl", "vllm-ascend")


FROM_FILE = "setup(install_requires=Path('requirements.txt').read_text().splitlines())\n"


def test_what_a_setup_reads_from_a_file_is_pinned_too(index: Any, tmp_path: Path) -> None:
    common = "--extra-index-url https://index.example\nomegaconf  # of hydra\n\n# no more\n"
    files = {
        "requirements.txt": "-r requirements/common.txt\nnumpy<2.0.0\n",
        "requirements/common.txt": common,
    }
    made = add_extra_requirements(lock(), [clone(tmp_path / "other", FROM_FILE, files)], os.environ)
    assert made.unpinned_sources == ("vllm-ascend",)
    assert made.overruled["verl"] == ("numpy<2.0.0 (pinned 2.2.6)",)
    assert "omegaconf" in {package.name for package in made.packages}


@pytest.mark.parametrize("included", ["../outside.txt", "/etc/passwd", "requirements.txt", "absent.txt"])
def test_a_file_that_leaves_its_tree_or_includes_itself_is_not_read(tmp_path: Path, included: str) -> None:
    folder = clone(tmp_path / "other", FROM_FILE, {"requirements.txt": f"-r {included}\n"})
    assert add_extra_requirements(lock(), [folder], {}).unpinned_sources == ("verl", "vllm-ascend")


@pytest.fixture
def empty_index(tmp_path: Path) -> Iterator[str]:
    """An index that responds but has no packages; they are in the folder of wheels."""
    (tmp_path / "nothing").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "nothing"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_index_of_a_vendor_that_is_out_of_reach_is_left_out(
    index: Any, mirrors: Path, empty_index: str
) -> None:
    environ = {**os.environ, "PIP_INDEX_URL": empty_index, "UV_HTTP_RETRIES": "0"}
    del environ["PIP_NO_INDEX"]
    far = replace(lock(), package_index={"torch": ("http://127.0.0.1:9/simple",)})
    assert add_extra_requirements(far, [mirrors], environ).unpinned_sources == ("vllm-ascend",)
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9"):
        add_extra_requirements(lock(), [mirrors], {**environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"})


def test_a_part_that_patches_others_is_told_and_torch_npu_is_built_by_its_own_script(tmp_path: Path) -> None:
    source = PinnedSource(
        package="torch-npu", version="2.6.0", commit="v7.2", repository="https://git.example/p"
    )
    made = lock_of(source, soc="a3", not_installed={"a plugin 2.3": "https://git.example/q"})
    script = EXPORTS["script"](made)
    assert "a plugin 2.3 of https://git.example/q belongs to this stack but is not installed" in script
    assert (
        "bash ci/build.sh --python=3.11 && python3 -m pip install --no-deps dist/torch_npu-*.whl)" in script
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    # Missing programs are reported before anything is installed.
    asked = next(line for line in script.splitlines() if line.startswith("for tool in"))
    assert asked.startswith("for tool in cmake g++ git make unzip wget;")
    done = subprocess.run(
        ["/bin/bash", "-c", asked], env={"PATH": "/nonexistent"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "cmake is needed and not installed\n")


def test_what_cannot_be_had_is_named(index: Any, tmp_path: Path) -> None:
    other = clone(tmp_path / "other", 'install_requires = ["of-nobody"]\n')
    with pytest.raises(InfrastructureError, match="cannot be resolved together with the pins") as caught:
        add_extra_requirements(lock(), [other], os.environ)
    assert "of-nobody" in str(caught.value)
    assert caught.value.problems[0].fix


def test_only_what_the_pins_contradict_is_overruled() -> None:
    wishes = ["numpy<2.0.0", "ray[default]>=2.41", "torch", "elsewhere>9", "Ray!=2.60.0"]
    assert list(overruled_requirements(wishes, parse_lock(LOCK))) == [
        "numpy<2.0.0 (pinned 2.2.6)",
        "Ray!=2.60.0 (pinned 2.60.0)",
    ]


def test_what_was_resolved_before_is_not_asked_again(mirrors: Path) -> None:
    known = replace(lock(), unpinned_sources=())
    assert add_extra_requirements(known, [mirrors], {}) == known

"""Packages that are built inside the environment, and locked packages that are not installed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from environments import environment_built, environment_probe
from test_venv_environment import Cell

from harness.builds.cell.environment_judge import judge
from harness.builds.lock import omitted_packages
from harness.digest import digest_file
from harness.outcome import Status
from harness.sources.packages.lockfile import LockedPackage

BACKEND = """
import base64, hashlib, os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    target = os.environ["ENGINE_TARGET"]
    import needed
    version = "0.18.0+" + target
    info = f"engine-{version}.dist-info"
    name = f"engine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        record = f"{info}/RECORD,,\\n"
        for path, text in (
            ("engine/__init__.py", f"TARGET = {target!r}, {needed.__version__!r}\\n"),
            (f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: engine\\nVersion: {version}\\n"),
            (f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"),
        ):
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{path},sha256={digest},{len(text)}\\n"
        wheel.writestr(f"{info}/RECORD", record)
    return name
"""
PROJECT = """
[project]
name = "engine"
version = "0.18.0"
[build-system]
requires = ["needed"]
build-backend = "backend"
backend-path = ["."]
"""


def sdist(folder: Path) -> Path:
    target = folder / "engine-0.18.0.tar.gz"
    metadata = "Metadata-Version: 2.1\nName: engine\nVersion: 0.18.0\n"
    with tarfile.open(target, "w:gz") as archive:
        for name, text in (("backend.py", BACKEND), ("pyproject.toml", PROJECT), ("PKG-INFO", metadata)):
            info = tarfile.TarInfo(f"engine-0.18.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return target


@pytest.fixture
def engine(wheels: Any, context: Any, tmp_path: Path) -> Cell:
    """A cell whose package `engine` has a wheel for another device and must be built for this one."""
    wheels.add("engine", "0.18.0")
    wheels.folder.joinpath("engine-0.18.0-py3-none-any.whl").unlink()
    cell = Cell(context, tmp_path, wheels.add("needed", "7"))
    archive = sdist(wheels.folder)

    with cell.lock.open("a") as lock:
        lock.write(f"engine==0.18.0 --hash=sha256:{digest_file(archive)}\n")
    cell.ctx.facets["pins"]["build_env"] = {"engine": {"ENGINE_TARGET": "empty"}}
    return cell


def test_a_package_is_built_inside_the_environment_for_the_named_target(engine: Cell) -> None:
    found, judgement = engine.build()
    assert judgement.status is Status.PASS, judgement
    assert found.probe.packages["engine"] == "0.18.0+empty"
    # Its build imported the locked package, not one that was fetched for the build.
    source = Path(found.site_packages) / "engine/__init__.py"
    assert source.read_text() == "TARGET = 'empty', '7'\n"
    assert "Built from source on this host: engine." in judgement.reasons


def test_a_second_build_takes_the_first(engine: Cell) -> None:
    engine.build()
    found, judgement = engine.build()
    assert found.reused
    assert judgement.status is Status.PASS


def test_another_target_is_another_build(engine: Cell) -> None:
    first, _ = engine.build()
    engine.ctx.facets["pins"]["build_env"] = {"engine": {"ENGINE_TARGET": "cuda"}}
    second, _ = engine.build()
    assert first.digest != second.digest
    assert second.probe.packages["engine"] == "0.18.0+cuda"


def test_a_build_that_fails_is_a_verdict_with_its_step(engine: Cell) -> None:
    engine.ctx.facets["pins"]["build_env"] = {"engine": {"OTHER": "x"}}
    found, judgement = engine.fail()
    assert judgement.status is Status.FAIL
    assert found.step == "build"
    assert "ENGINE_TARGET" in found.tail
    assert judgement.remedies


def test_another_version_than_locked_is_red_for_what_is_built_too() -> None:
    def reasons(version: str, built: tuple[str, ...]) -> tuple[Status, tuple[str, ...]]:
        probe = environment_probe(packages={"torch": "2.13.0+cpu", "Ray": version})
        judgement = judge(environment_built(built_here=built, probe=probe), {})
        return judgement.status, judgement.reasons

    assert reasons("2.0+empty", ("ray",))[0] is Status.PASS
    assert reasons("2.1+empty", ("ray",))[1] == ("ray 2.1+empty is installed, but 2.0 is locked.",)
    assert reasons("2.0+empty", ())[0] is Status.FAIL


def locked(name: str, *via: str) -> LockedPackage:
    return LockedPackage(name=name, version="1", hashes=(), via=via)


LOCK = (
    locked("torch", "-r requirements.in"),
    locked("nvidia-cublas-cu12", "torch", "nvidia-cudnn-cu12"),
    locked("nvidia-ml-py", "vllm"),
    locked("flashinfer-python", "vllm"),
    locked("tabulate", "flashinfer-python"),
    locked("tqdm", "flashinfer-python", "vllm"),
    locked("triton-ascend", "vllm-ascend", "--override overrides.txt"),
    locked("vllm", "-r requirements.in"),
)


def test_the_simulated_device_does_without_cuda_and_what_only_that_wants() -> None:
    assert set(omitted_packages.omitted_packages(LOCK, "sim")) == {
        "flashinfer-python",
        "nvidia-cublas-cu12",
        "tabulate",
        "triton-ascend",
    }
    for_torch_without_cuda = {"flashinfer-python", "nvidia-cublas-cu12", "tabulate"}
    assert set(omitted_packages.omitted_packages(LOCK, "npu", cuda_torch=False)) == for_torch_without_cuda
    assert set(omitted_packages.omitted_packages(LOCK, "npu")) == {"flashinfer-python", "tabulate"}
    assert omitted_packages.omitted_packages(LOCK, "cpu") == {}


def test_what_the_cell_itself_asks_for_stays() -> None:
    packages = (*LOCK, locked("pyelftools", "-r requirements.in", "flashinfer-python"))
    assert "pyelftools" not in omitted_packages.omitted_packages(packages, "sim")


def test_a_pass_says_what_was_left_out() -> None:
    omitted = {"nvidia-x": "nothing calls it", "nvidia-y": "nothing calls it"}
    assert judge(environment_built(left_out=omitted), {}).reasons[-1] == (
        "2 locked packages are not installed: nvidia-x, nvidia-y (nothing calls it)."
    )


def test_an_environment_that_lost_a_built_package_no_longer_holds(engine: Cell) -> None:
    from harness.builds.cell import venv_environment

    found, _ = engine.build()
    record = Path(found.site_packages) / "engine-0.18.0+empty.dist-info" / "RECORD"
    record.unlink()
    assert f"removed: {record}" in venv_environment.holds(found)

"""Docker builds exported Dockerfiles on an image that has a CANN installation, and runs the results.

The packages are tiny wheels; everything else is real: pip, patch, the checks before and after.
"""

from __future__ import annotations

import ensurepip
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import BASE, program
from daemon import image_history
from wheelhouse import Wheels

from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.export.container_files import ContainerOptions
from harness.builds.export.export_formats import export_files
from harness.builds.lock.cell_lock import CellLock, LockFacets, PatchFile, make_lock
from harness.digest import digest_bytes, digest_file
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet

# The Python of Debian bookworm.
PYTHON = "3.11"
PATCH = b"--- a/verl/a.py\n+++ b/verl/a.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n"
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"
IMAGE = "local/cann:8.5.0"
DOCKERFILE = f"""\
FROM {BASE}
COPY pip.whl /opt/
COPY simple /simple
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
ENV PYTHONPATH=/opt/pip.whl
RUN mkdir -p /usr/local/Ascend/ascend-toolkit/latest/{platform.machine()}-linux && \\
    printf 'package_name=toolkit\\nversion=8.5.0\\n' \\
      > /usr/local/Ascend/ascend-toolkit/latest/{platform.machine()}-linux/ascend_toolkit_install.info && \\
    printf 'export ASCEND_HOME_PATH=/usr/local/Ascend/ascend-toolkit/latest\\n' \\
      > /usr/local/Ascend/ascend-toolkit/set_env.sh
ENTRYPOINT ["/bin/bash", "-c", "source /usr/local/Ascend/ascend-toolkit/set_env.sh && exec \\"$@\\"", "--"]
"""


@dataclass(frozen=True)
class Docker:
    """The command `docker` of a daemon. buildkit: whether it builds with BuildKit."""

    environ: Mapping[str, str]
    buildkit: bool

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [program("docker"), *arguments]
        return subprocess.run(argv, env=self.environ, capture_output=True, text=True)

    def build(self, folder: Path, tag: str, *more: str) -> subprocess.CompletedProcess[str]:
        progress = ("--progress", "plain") if self.buildkit else ()
        return self("build", *progress, "--network", "none", "--tag", tag, *more, str(folder))

    def run(self, image: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self("run", "--rm", "--network", "none", image, *arguments)


@pytest.fixture
def docker_command(request: pytest.FixtureRequest, docker_host: str) -> Docker:
    """With BuildKit if a client here has it, or as the test's parameter says."""
    client = program("docker")
    engine = DockerEngine({"DOCKER_HOST": docker_host, "PATH": str(Path(client).parent)})
    builder = engine.builder
    engine.close()
    buildkit = getattr(request, "param", builder == "buildkit")
    if buildkit and builder != "buildkit":
        pytest.skip("no client here can build with BuildKit")
    environ = {**os.environ, "DOCKER_HOST": docker_host, "DOCKER_BUILDKIT": str(int(buildkit))}
    return Docker(environ, buildkit)


@pytest.fixture
def lock(docker_command: Docker, tmp_path: Path) -> CellLock:
    """A lock of three packages and a patch, whose base image was built."""
    base, root = tmp_path / "base", tmp_path / "root"
    base.mkdir()
    (root / "patches").mkdir(parents=True)
    (root / "patches/fix.patch").write_bytes(PATCH)
    wheels = Wheels(base / "wheels")
    entries = ""
    for name, version, files in (
        ("torch", "2.9.0", {}),
        ("torch-npu", "2.9.0", {}),
        ("verl", "0.9.1", {"verl/a.py": "A = 1\n"}),
    ):
        wheel = wheels.add(name, version, files=files)
        folder = base / "simple" / name
        folder.mkdir(parents=True)
        wheel.rename(folder / wheel.name)
        (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
        digest = digest_file(folder / wheel.name)
        entries += f"{name}=={version} --hash=sha256:{digest}\n    # via -r requirements.in\n"
    [pip] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    (base / "pip.whl").write_bytes(pip.read_bytes())
    (base / "Dockerfile").write_text(DOCKERFILE)
    done = docker_command.build(base, IMAGE)
    assert done.returncode == 0, done.stderr[-3000:]
    facets = LockFacets(
        pins=PinsFacet(),
        platform=PlatformFacet(python=PYTHON, arch=platform.machine()),
        patches=(PatchFile(id="verl/fix", file="patches/fix.patch", digest=digest_bytes(PATCH)),),
    )
    return make_lock(
        facets, entries, cell="a-cell", title="a cell", axes={"cann": "8.5.0", "soc": "a2"}, base_image=IMAGE
    )


def export(lock: CellLock, shape: str, docker: Docker, folder: Path) -> Path:
    target = folder / shape
    options = ContainerOptions(buildkit=docker.buildkit, image="exported:1")
    for name, data in export_files(lock, shape, folder / "root", options).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return target


def build(context: Path, docker: Docker, *more: str) -> subprocess.CompletedProcess[str]:
    """Build with the packages of the image's folder /simple, which pip is told by secret or by argument."""
    index = ["--build-arg", "PIP_INDEX_URL=file:///simple"]
    if docker.buildkit:
        (context.parent / "pip.conf").write_text("# hunter2\n[global]\nindex-url = file:///simple\n")
        index = ["--secret", f"id=pip.conf,src={context.parent / 'pip.conf'}"]
    return docker.build(context, "exported:1", *index, *more)


@pytest.mark.parametrize("docker_command", [True, False], ids=["buildkit", "no-buildkit"], indirect=True)
def test_an_exported_dockerfile_builds_and_its_image_checks_itself(
    lock: CellLock, docker_command: Docker, docker: DockerEngine, tmp_path: Path
) -> None:
    done = build(export(lock, "dockerfile", docker_command, tmp_path), docker_command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout + done.stderr
    assert "CANN 8.5.0" in said
    assert "skipped driver" in said
    assert "3 of 3 packages as locked" in said
    patched = docker_command.run("exported:1", "bash", "-c", f'cat $(python3 -c "{PURELIB}")/verl/a.py')
    assert patched.stdout == "A = 2\n"
    assert "hunter2" not in image_history(docker, "exported:1")
    probe = docker_command.run("exported:1", "python3", "/cell/cell_check.py", "device", "/cell/cell.json")
    assert probe.returncode == 1
    assert "FAILED  driver not found" in probe.stdout
    assert "start the container with the devices and the driver of the host" in probe.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": {"cann": "8.3.RC1", "soc": "a2"}}, "FAILED  CANN 8.5.0"),
        ({"python": "3.10"}, f"FAILED  Python {PYTHON}"),
        ({"arch": "riscv64"}, f"FAILED  architecture {platform.machine()}; the cell is for riscv64"),
    ],
)
def test_a_wrong_base_image_is_refused_before_anything_is_installed(
    lock: CellLock, docker_command: Docker, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    done = build(export(replace(lock, **change), "dockerfile", docker_command, tmp_path), docker_command)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert message in said
    assert "to do: " in said
    assert "Successfully installed" not in said


def test_compose_bake_and_devcontainer_build_and_run_the_image(
    lock: CellLock, docker_command: Docker, tmp_path: Path
) -> None:
    """Each file as its tool reads it, for a simulated cell, which needs no device of the host."""
    simulated = replace(lock, axes={**lock.axes, "device": "sim"})
    composed = export(simulated, "compose", docker_command, tmp_path)
    service = yaml.safe_load((composed / "compose.yaml").read_text())["services"]["cell"]
    platform_option = ("--platform", service["platform"])
    assert build(composed / service["build"]["context"], docker_command, *platform_option).returncode == 0
    options = [*platform_option, "--shm-size", service["shm_size"]]
    done = docker_command("run", "--rm", *options, service["image"], *service["command"])
    assert (done.returncode, "3 of 3 packages as locked" in done.stdout) == (0, True), done.stdout

    baked = export(simulated, "bake", docker_command, tmp_path)
    target = json.loads((baked / "docker-bake.json").read_text())["target"]["cell"]
    again = build(baked / target["context"], docker_command, "--file", str(baked / target["dockerfile"]))
    assert again.returncode == 0

    developed = export(simulated, "devcontainer", docker_command, tmp_path) / ".devcontainer"
    content = json.loads((developed / "devcontainer.json").read_text())
    context = developed / content["build"]["context"]
    dockerfile = developed / content["build"]["dockerfile"]
    assert build(context, docker_command, "--file", str(dockerfile)).returncode == 0
    # Dev containers replace the entry point.
    options = [*content["runArgs"], "--entrypoint", content["postCreateCommand"][0]]
    done = docker_command("run", "--rm", *options, "exported:1", *content["postCreateCommand"][1:])
    assert done.returncode == 0, done.stdout + done.stderr

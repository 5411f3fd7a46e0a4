"""BuildKit builds an exported Dockerfile; a replacement of pip records its arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import BASE, REPOSITORY, program
from daemon import image_history

from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.export.docker_context import docker_context
from harness.builds.lock.cell_lock import LockFacets, PatchFile, make_lock
from harness.digest import digest_bytes
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet

# Records the arguments and whether it can read its configuration; installs nothing.
PIP = """
import pathlib, sys
conf = pathlib.Path("/etc/pip.conf")
with open("/pip.log", "a") as log:
    print(*sys.argv[1:], len(conf.read_text()) if conf.exists() else "no conf", file=log)
"""
LOCK = """\
torch==2.9.0 --hash=sha256:aa
    # via -r requirements.in
verl==0.9.1 --hash=sha256:bb
    # via -r requirements.in
"""
PATCH = b"--- a/verl/a.py\n+++ b/verl/a.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n"
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"


def test_an_exported_dockerfile_builds(docker: DockerEngine, docker_host: str, tmp_path: Path) -> None:
    client = program("docker")
    engine = DockerEngine({"DOCKER_HOST": docker_host, "PATH": str(Path(client).parent)})
    if engine.builder != "buildkit":
        engine.close()
        pytest.skip("no client here can build with BuildKit")
    engine.close()
    base = tmp_path / "base"
    base.mkdir()
    (base / "pip.py").write_text(PIP)
    (base / "Dockerfile").write_text(
        f"FROM {BASE}\n"
        f"COPY pip.py /usr/lib/python3/dist-packages/pip/__main__.py\n"
        f'RUN mkdir -p $(python3 -c "{PURELIB}")/verl && echo \'A = 1\' > $(python3 -c "{PURELIB}")/verl/a.py\n'
    )
    environ = {**os.environ, "DOCKER_HOST": docker_host, "DOCKER_BUILDKIT": "1"}

    def build(folder: Path, tag: str, *more: str) -> str:
        argv = [client, "build", "--progress", "plain", "--network", "none", "--tag", tag, *more, str(folder)]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    build(base, "python:3.11-slim")
    root = tmp_path / "root"
    (root / "patches").mkdir(parents=True)
    (root / "patches/fix.patch").write_bytes(PATCH)
    (root / "docker").symlink_to(REPOSITORY / "docker")
    facets = LockFacets(
        pins=PinsFacet(),
        platform=PlatformFacet(python="3.11", arch="x86_64"),
        patches=(PatchFile(id="verl/fix", file="patches/fix.patch", digest=digest_bytes(PATCH)),),
    )
    lock = make_lock(facets, LOCK, cell="a-cell", title="a cell", axes={}, inconsistencies=["odd (a table)"])
    for name, data in docker_context(lock, root).items():
        (tmp_path / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "context" / name).write_bytes(data)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://u:hunter2@mirror.example/simple\n")
    build(tmp_path / "context", "exported:1", "--secret", f"id=pip.conf,src={tmp_path / 'pip.conf'}")
    script = f'cat /pip.log; cat $(python3 -c "{PURELIB}")/verl/a.py'
    argv = [client, "run", "--rm", "--network", "none", "exported:1", "bash", "-c", script]
    said = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    size = (tmp_path / "pip.conf").stat().st_size
    assert said == [
        f"install --no-deps --require-hashes -r /cell/layers/torch.txt {size}",
        f"install --no-deps --require-hashes -r /cell/layers/verl.txt {size}",
        "A = 2",
    ]
    assert "hunter2" not in image_history(docker, "exported:1")

"""A cell for NPUs, rehearsed in containers: a Docker daemon on the stand-in host, an image of CANN's name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import BASE, REPOSITORY

from harness import __version__

CHECKS = ("environment", "loss")
# Without vllm-ascend, which has to be compiled with CANN.
MATRIX = f"""\
format: 1
include: npu-matrix:{__version__}
profiles:
  default:
    title: a release of verl on an Atlas 800T A2
    select:
      - product:
          verl: [0.9.1]
          torch: [2.13.0]
          torch_npu: [2.13.0]
          device: [npu]
        with: {{python: 3.11, cann: 8.5.0, soc: a2}}
"""


def report_of(folder: Path) -> dict[str, dict[str, Any]]:
    (file,) = (folder / "reports").glob("*/report.json")
    (cell,) = json.loads(file.read_text("utf-8"))["cells"]
    return {result["check"]: result for result in cell["results"]}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_cell_for_npus_is_rehearsed_in_an_image_of_cann(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its CANN is in the image, its driver on the host, and its evidence is simulated."""
    if engine == "docker":
        base, environ = BASE, {**os.environ, "DOCKER_HOST": request.getfixturevalue("docker_host")}
    else:
        base, environ = f"localhost/{BASE}", request.getfixturevalue("podman_environ")
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX, "utf-8")
    argv = [sys.executable, "-m", "harness", "--matrix", str(matrix)]
    argv += ["--engine", engine, "--base-image", base, "rehearse", "--folder", str(tmp_path / "rehearsal")]
    argv += [word for check in CHECKS for word in ("--check", check)]
    done = subprocess.run(argv, env=environ, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = report_of(tmp_path / "rehearsal")
    assert {name: (found[name]["status"], found[name]["evidence"]) for name in CHECKS} == dict.fromkeys(
        CHECKS, ("pass", "simulated")
    )
    container = found["environment"]["measurements"]["container"]
    assert container["engine"] == engine
    assert container["base"] == "quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11"

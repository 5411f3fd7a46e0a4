"""A recipe on two hosts, rehearsed: stand-ins with networks of their own, Ray between them, torchrun on each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from missing_programs import missing

from harness import __version__

# The recipe is that of the article; vllm-ascend, which has to be compiled with CANN, is left out.
MATRIX = f"""\
format: 1
include: npu-matrix:{__version__}
profiles:
  default:
    title: two Atlas 800T A2
    select:
      - product:
          verl: [0.9.1]
          torch: [2.13.0]
          torch_npu: [2.13.0]
          device: [npu]
        with: {{python: host, cann: 8.5.0, soc: a2}}
        recipe: gspo-qwen3-30b-a3b
"""


@pytest.mark.timeout(1800)
def test_the_hosts_of_a_recipe_are_connected_by_the_commands_of_a_user(tmp_path: Path) -> None:
    if shutil.which("ip") is None or shutil.which("nsenter") is None or os.geteuid() != 0:
        missing("network namespaces need root, iproute2 and util-linux")
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX, "utf-8")
    argv = [sys.executable, "-m", "harness", "--matrix", str(matrix), "rehearse", "--hosts"]
    argv += ["--folder", str(tmp_path / "rehearsal")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (cell,) = json.loads((tmp_path / "rehearsal/reports/hosts/report.json").read_text("utf-8"))["cells"]
    (found,) = [result for result in cell["results"] if result["check"] == "hosts"]
    # A rehearsal is never shown as hardware.
    assert (found["status"], found["evidence"]) == ("pass", "simulated")
    hosts = found["measurements"]["hosts"]
    # Ray decides which host is the first one.
    assert {host["address"] for host in hosts} == {"198.18.7.1", "198.18.7.2"}
    # Every rank took part: two of each host, because the device is simulated.
    assert [len(host["devices"]) for host in hosts] == [2, 2]

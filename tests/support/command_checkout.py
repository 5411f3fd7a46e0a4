"""A small checkout with its own matrix, patches and wheels, in which the real command runs without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from patched_checkout import EMPTY_MEAN, MEAN, write_patch
from wheelhouse import Wheels

REPOSITORY = Path(__file__).parents[2]
# Timeout of a command.
SECONDS = 300
PATCH = EMPTY_MEAN.format(file="verl/core.py")


def matrix_text(versions: list[str], expectation: str = "") -> str:
    cells = ", ".join(versions)
    return f"""\
format: 1
axes:
  verl: {{title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl"}}
  python: {{title: Python, scheme: python, source: a test}}
  device: {{title: device, scheme: name, source: a test, values: {{sim: {{title: simulated}}, npu: {{title: NPU}}}}}}
profiles:
  default:
    title: a test
    select:
      - product: {{verl: [{cells}]}}
        with: {{python: host, device: sim}}
{expectation}
"""


class Checkout:
    """A folder with a matrix, patches and wheels, in which `npu-matrix` is started as a user would start it."""

    def __init__(self, folder: Path, parsed_code: Path | None = None) -> None:
        if parsed_code:
            shutil.copytree(parsed_code, folder / "cache")
        self.root = folder / "checkout"
        self.root.mkdir(parents=True)
        self.wheels = Wheels(folder / "wheels")
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PIP_", "UV_", "NPU_MATRIX_"))
            },
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.folder.as_uri(),
            "UV_CACHE_DIR": str((parsed_code.parent if parsed_code else folder) / "uv-cache"),
            "NPU_MATRIX_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(REPOSITORY),
            "CI": "true",
        }

    def release(self, version: str, *requires: str, source: str = MEAN) -> None:
        self.wheels.add("verl", version, *requires, files={"verl/core.py": source})

    def matrix(self, *versions: str, expectation: str = "") -> None:
        (self.root / "matrix.yaml").write_text(matrix_text(list(versions), expectation))

    def patch(self, text: str = PATCH) -> None:
        write_patch(self.root / "patches" / "verl" / "empty-mean", text)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=self.root,
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, **environ: str) -> str:
        with self.start(*arguments, **environ) as process:
            try:
                output, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == code, output
        assert "Traceback" not in output, output
        return output

    def static(self, *more: str, code: int = 0, **environ: str) -> str:
        return self.run("run", "--check", "resolve", "--check", "patches", *more, code=code, **environ)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "reports" / "report.json").read_text())
        return found

    def status(self, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json", code=code))
        return found

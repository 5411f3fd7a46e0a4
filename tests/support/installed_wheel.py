"""The built wheel, installed beside the requirements of this environment, for tests in foreign folders."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class InstalledWheel:
    """folder: what must be on PYTHONPATH."""

    wheel: Path
    folder: Path

    @classmethod
    def build(cls, folder: Path) -> InstalledWheel:
        """Build the wheel of this checkout and install it below `folder`."""
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "build", "-q", "--wheel", "-o", str(folder / "dist"), str(ROOT)], check=True)
        (wheel,) = (folder / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "installed")
        return cls(wheel, folder / "installed")

    def run(self, *arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run npu-matrix in a folder; fails if it ends with another exit code."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NPU_MATRIX_")}
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=cwd,
            env={**inherited, "PYTHONPATH": str(self.folder), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == code, (done.stdout[-3000:], done.stderr[-3000:])
        return done

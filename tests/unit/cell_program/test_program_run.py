from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment_built

from harness.cell_program.built_environment import ENVIRONMENT_FORMAT
from harness.cell_program.program_run import run_reference
from harness.check import Completed
from harness.outcome import Evidence, Outcome, State, Tier
from harness.package import IMPORT_ROOT

IMPORTS = """
import sys
import harness.evidence
try:
    import installed_next_to_harness
except ImportError:
    open(sys.argv[1], "w").close()
"""


class Context:
    """Runs the reference with this Python, without the packages that are installed for it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        measured = ENVIRONMENT_FORMAT.write(environment_built())
        self.inputs = {
            "environment": Outcome(
                key="k",
                check="environment",
                tier=Tier.BUILD,
                state=State.COMPLETED,
                evidence=Evidence.CPU,
                facets={},
                measurements=measured,
            )
        }

    def command(self, argv: list[str], *, env: Any, timeout: float) -> Completed:
        command = [sys.executable, "-S", "-c", IMPORTS, *argv[3:]]
        done = subprocess.run(
            command, env=env, timeout=timeout, cwd=self.workdir, capture_output=True, text=True
        )
        return Completed(argv=tuple(command), returncode=done.returncode, tail=done.stderr, seconds=0.1)


def test_a_reference_imports_no_package_that_is_installed_next_to_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would hide those of the cell if npu-matrix is installed with pip: the reference had another numpy."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "harness").symlink_to(IMPORT_ROOT / "harness")
    (site / "installed_next_to_harness.py").touch()
    monkeypatch.setattr("harness.package.PACKAGE_ROOT", site / "harness")
    context: Any = Context(tmp_path)
    for _ in range(2):
        out = tmp_path / "out"
        ended = run_reference(context, "program", str(out), out=out, what="the reference", timeout=60.0)
        assert isinstance(ended, Completed), ended
        out.unlink()

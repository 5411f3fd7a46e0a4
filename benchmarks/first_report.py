"""From nothing to the first report, and to a red gate, in other people's repositories.

The wheel is built and installed into an empty virtual environment, and its commands run in a repository with
patches, and in an empty folder, with an empty cache. The commands are those of the first page of the docs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure, timed

LIMIT_S = 180.0


def install_wheel(folder: Path) -> Path:
    """Build the wheel and install it into an empty environment; the program."""
    uv = [sys.executable, "-m", "uv"]
    for command in (
        [*uv, "build", "-q", "--wheel", "-o", str(folder / "dist"), str(ROOT)],
        [*uv, "venv", "-q", "--python", sys.executable, str(folder / "env")],
    ):
        subprocess.run(command, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    python = folder / "env/bin/python"
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), str(wheel)], check=True)
    return folder / "env/bin/npu-matrix"


def run_commands(
    program: Path, folder: Path, cache: Path, *commands: str, codes: tuple[int, ...] = (0,)
) -> float:
    """Seconds of these commands in a folder; the last one must end with one of `codes`, the others with 0."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("NPU_MATRIX_", "PYTHON"))
    }
    seconds = 0.0
    for command in commands:
        with timed() as took:
            done = subprocess.run(
                [program, *command.split()],
                cwd=folder,
                env={**inherited, "NPU_MATRIX_CACHE": str(cache)},
                capture_output=True,
                text=True,
                check=False,
            )
        seconds += took.seconds
        if done.returncode not in (codes if command == commands[-1] else (0,)):
            said = (done.stdout + done.stderr)[-300:]
            raise CannotRunError(f"`npu-matrix {command}` ended with {done.returncode}: {said}", "see there")
    return seconds


def figures() -> Iterator[Figure]:
    """Seconds to the first report, and from there to a red gate, with a limit of three minutes."""
    from foreign_repository import break_patch, commit, git, patches_repository

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = install_wheel(folder)
        mine = patches_repository(folder / "mine")
        (folder / "empty").mkdir()
        for place in (mine, folder / "empty"):
            cache = folder / f"cache of {place.name}"
            # 1: the report has a failure. The newest transformers lacks what verl 0.6.1 imports.
            seconds = run_commands(program, place, cache, "init", "run", codes=(0, 1))
            if not (place / "reports/index.html").is_file():
                raise CannotRunError(f"there is no report in {place.name}", "see `npu-matrix run`")
            what = "a repository with patches" if place == mine else "an empty folder"
            yield Figure(
                claim=f"from nothing to the first report of {what}: two commands, empty cache",
                measured=seconds,
                unit="s",
                limit=LIMIT_S,
            )
        commit(mine, "npu-matrix")
        git(mine, "checkout", "-q", "-b", "broken")
        break_patch(mine)
        commit(mine, "a patch that does not apply")
        gate = "gate --base main --run --run-base"
        yield Figure(
            claim="from there to a red gate on a broken patch: one more command",
            measured=run_commands(program, mine, folder / "cache of mine", gate, codes=(1,)),
            unit="s",
            limit=LIMIT_S,
        )

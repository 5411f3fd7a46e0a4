"""Sessions: `nox -s npu_e2e` is the main job, `nox -s tests` runs the tests, `nox -s lint` checks the code.

Each session's environment is reused while pyproject.toml stays the same: a repeated run starts at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["tests", "npu_e2e"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def project(*extras: str) -> str:
    """What to install: with a C compiler as a wheel where the system has none (see harness.devices.sim)."""
    has_compiler = os.environ.get("CC") or any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    wanted = sorted({*extras, *(() if has_compiler else ("compiler",))})
    return f".[{','.join(wanted)}]" if wanted else "."


def install(session: nox.Session, *groups: str, extras: tuple[str, ...] = ()) -> None:
    """The project (editable) and dependency groups, once per pyproject.toml, interpreter and compiler."""
    chosen = project(*extras)
    wanted = hashlib.sha256(
        (ROOT / "pyproject.toml").read_bytes() + sys.version.encode() + repr((chosen, groups)).encode()
    )
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    if stamp.is_file() and stamp.read_text() == wanted.hexdigest():
        return
    session.install("-e", chosen, *nox.project.dependency_groups(PROJECT, *groups))
    stamp.write_text(wanted.hexdigest())


def run_and_exit(session: nox.Session, *argv: str) -> None:
    """Run a program of the session and return its exit code, which nox would turn into 1."""
    program = str(Path(session.bin) / argv[0])
    code = subprocess.call([program, *argv[1:]], cwd=ROOT)
    if code:
        raise SystemExit(code)


@nox.session
def npu_e2e(session: nox.Session) -> None:
    """The main job: plan the default profile, run it, report. Arguments after `--` go to `npu-matrix run`."""
    install(session)
    run_and_exit(session, "npu-matrix", "run", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Unit and whole-harness tests. Arguments after `--` go to pytest."""
    install(session, "test")
    # The long tests come first, so that at the end no worker waits for another. The variable lets Python
    # store compiled modules even where a machine's settings forbid it. Otherwise each command that a test
    # starts compiles them again.
    # Tests often wait for a program or a lock: with a worker per processor, a third of the time was idle.
    workers = str((os.cpu_count() or 1) + 1)
    everything = ["-n", workers, "--dist", "worksteal", "--durations", "30", "tests/e2e", "tests/unit"]
    session.run(
        *("python", "-m", "pytest", *(session.posargs or everything)),
        env={"PYTHONDONTWRITEBYTECODE": ""},
    )


@nox.session
def cells(session: nox.Session) -> None:
    """Tests inside the cells the main job built: devices, losses, and faults that must turn a cell red."""
    install(session, "test")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", "tests/cells"]))


@nox.session
def cluster(session: nox.Session) -> None:
    """Plans on a real Ray cluster of several nodes; needs root and iproute2 for those with own addresses."""
    install(session, "test", extras=("ray",))
    session.run("python", "-m", "pytest", *(session.posargs or ["tests/cluster"]))


@nox.session
def containers(session: nox.Session) -> None:
    """Cells in containers of a real docker daemon and podman, from Debian's packages; needs root.

    And the unit tests of builds, some of which need the daemon's SDK.
    """
    install(session, "test", extras=("docker",))
    # The SDK leaves sockets of attached streams to the garbage collector.
    quiet = ["-W", "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"]
    # Two runs: each folder's conftest is the module `conftest`.
    for paths in [session.posargs] if session.posargs else [["tests/unit/builds"], ["tests/containers"]]:
        session.run("python", "-m", "pytest", *quiet, *paths)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what npu-matrix claims about itself. Arguments after `--` go to `python -m benchmarks`."""
    install(session, "test", "bench", extras=("docker", "ray"))
    run_and_exit(session, "python", "-m", "benchmarks", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as pages, into the folder `site`."""
    install(session, "docs")
    session.run("python", "docs/build.py", "site")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy --strict, import contracts."""
    install(session, "lint", "test")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    for folder in ("cells", "cluster", "npu"):
        session.run(
            *("mypy", "--config-file", "tests/mypy.ini", f"tests/{folder}"),
            env={"MYPYPATH": f"tests/{folder}"},
        )
    session.run("lint-imports")

"""Rehearses cells for NPUs: the commands that a user of an NPU host runs, on stand-ins for their hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.compat.resolve.resolve_problems import UNAVAILABLE_TEXT
from harness.devices.stand_in.enter_host import unshare_command
from harness.devices.stand_in.host_faults import HostFault
from harness.devices.stand_in.host_shapes import SHAPES, HostShape
from harness.devices.stand_in.host_tree import StandIn, write_host
from harness.errors import EXIT_OK, InputError, Location
from harness.matrix.model.cell import Cell
from harness.package import IMPORT_ROOT
from harness.settings import ENVIRONMENT_PREFIX, FOUND, Settings
from harness.sources.git.mirrors import COMMIT_REMEDY
from harness.sources.packages.uv_errors import UvFailureKind
from harness.workspace.execution.rehearsal_engine import cann_images, engine_on_stand_in

#: The variable that makes cells of NPUs rehearsed ones.
REHEARSAL_VARIABLE = f"{ENVIRONMENT_PREFIX}REHEARSAL"
#: What a login shell on an NPU host does before the user types a command.
_SOURCE = 'for file in {files}; do source "$file"; done; exec "$@"'
#: The settings of the rehearsal that its commands get too; state and reports are in its own folder.
_PASSED = (
    "profile",
    "cache",
    "mirrors",
    "fetch",
    "fetch_file",
    "references",
    "jobs",
    "cell_memory",
    "engine",
    "found_python",
)


@dataclass(frozen=True, kw_only=True)
class HostGroup:
    """The cells that one stand-in host can run."""

    name: str
    host: StandIn
    cells: tuple[Cell, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of its cells."""
        return tuple(cell.id for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A check of a rehearsed cell that did not pass. kind: a member of `STOPS`."""

    check: str
    status: str
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RehearsedCell:
    """What became of a cell: how many checks passed with which evidence, and where it stopped.

    following: how many checks did not run because of these stops.
    """

    cell: str
    passed: Mapping[str, int]
    stops: tuple[Stop, ...]
    following: int


#: Kinds of stops: what they mean, and whether npu-matrix can do something about it.
STOPS = {
    "index": ("a package is not on the index for this machine's architecture", False),
    "compiler": ("needs the compiler of CANN", False),
    "known": ("an expected failure of matrix.yaml", False),
    "network": ("a repository, package index or Python that this machine cannot reach", False),
    "left out": ("the profile leaves the check out", False),
    "source": ("a package from a repository, which the engine `venv` does not build", True),
    "other": ("not explained: look at it", True),
}
#: What the check `resolve` says of a package that no index has for this platform.
_NOT_ON_INDEX = tuple(text for kind, text in UNAVAILABLE_TEXT.items() if kind is not UvFailureKind.BUILD)
_COMPILED_WITH_CANN = ("vllm-ascend", "triton-ascend", "torch-npu", "vllm_ascend")


def host_groups(cells: Iterable[Cell]) -> tuple[HostGroup, ...]:
    """The stand-in hosts for the NPU cells: one for each SoC, CANN, driver and torch_npu.

    InputError for a cell with a SoC of which there is no stand-in.
    """
    groups: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in cells:
        if cell.device == "npu":
            axes = [cell.axes.get(axis, "") for axis in ("soc", "cann", "driver", "torch_npu")]
            groups.setdefault((axes[0], axes[1], axes[2], axes[3]), []).append(cell)
    return tuple(
        HostGroup(
            name="-".join(_file_name(part) for part in (soc, cann, torch_npu) if part),
            host=StandIn(shape=_shape(soc, of_host[0].id), cann=cann, driver=driver),
            cells=tuple(of_host),
        )
        for (soc, cann, driver, torch_npu), of_host in groups.items()
    )


def run_on_stand_in(
    group: HostGroup,
    folder: Path,
    settings: Settings,
    arguments: Sequence[str],
    engine: Mapping[str, str],
    shown: bool = True,
    suffix: str = "",
) -> int:
    """Run an npu-matrix command on the stand-in host of the group; returns its exit code.

    folder: of the rehearsal. engine: variables with which the command reaches a container engine. suffix: of
    the host's folder, if the group has several hosts.
    InfrastructureError if this machine cannot make a mount namespace.
    """
    place = host_folder(group, folder, suffix)
    files = write_host(place, group.host)
    output = None if shown else subprocess.DEVNULL
    return _run(place, folder, files, settings, arguments, engine, stdout=output).returncode


def output_on_stand_in(
    group: HostGroup, folder: Path, settings: Settings, arguments: Sequence[str], fault: HostFault
) -> str:
    """What an npu-matrix command prints on the stand-in host of the group with a fault."""
    place = host_folder(group, folder)
    files = write_host(place, group.host)
    fault.damage(place)
    return _run(place, folder, files, settings, arguments, {}, stdout=subprocess.PIPE).stdout


def _run(
    place: Path,
    folder: Path,
    files: Iterable[Path],
    settings: Settings,
    arguments: Sequence[str],
    engine: Mapping[str, str],
    stdout: int | None,
) -> subprocess.CompletedProcess[str]:
    """Run the command as after the login on the host in `place`, whose CANN has the files set_env.sh."""
    command = login_command(place, files, own_command(folder, settings, arguments))
    environ = {**rehearsal_environment(place, settings), **engine}
    return subprocess.run(command, cwd=settings.root, env=environ, check=False, stdout=stdout, text=True)


def own_command(folder: Path, settings: Settings, arguments: Sequence[str]) -> list[str]:
    """The command line of an npu-matrix command with the state of the rehearsal."""
    own = ("--matrix", str(settings.path("matrix")), "--state", str(folder / "state"))
    return [sys.executable, "-m", "harness", *own, *arguments]


def login_command(place: Path, files: Iterable[Path], command: Sequence[str]) -> list[str]:
    """The command line that runs a command on the stand-in host in `place`, as after a login there."""
    shell = ["bash", "-c", _SOURCE.format(files=" ".join(map(str, files))), "--", *command]
    return unshare_command(place, shell)


def rehearsal_environment(place: Path, settings: Settings) -> dict[str, str]:
    """The environment variables of commands on the stand-in host in `place`."""
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    # Not every setting has a flag.
    passed = {
        f"{ENVIRONMENT_PREFIX}{name.upper()}": settings[name]
        for name in _PASSED
        if settings.is_explicit(name)
    }
    own_variables = {REHEARSAL_VARIABLE: str(place), "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **passed, **own_variables}


def host_folder(group: HostGroup, folder: Path, suffix: str = "") -> Path:
    """The folder of the stand-in host; InputError if it cannot be mounted."""
    place = folder / "hosts" / f"{group.name}{suffix}"
    place.mkdir(parents=True, exist_ok=True)
    if any(mark in str(place) for mark in ":,\\"):
        raise InputError(
            "the folder of a rehearsal cannot be mounted",
            where=Location(place),
            why="its path contains a colon, a comma or a backslash",
            fix="use --folder",
        )
    return place


def _engine(
    group: HostGroup, folder: Path, settings: Settings, notify: Callable[[str], None]
) -> AbstractContextManager[Mapping[str, str]]:
    """The engine of the settings on the stand-in host, with stand-ins for the images of CANN."""
    place = host_folder(group, folder)
    write_host(place, group.host)
    images = cann_images(group.cells, settings["base_image"])
    return engine_on_stand_in(settings["engine"], place, group.host, images, notify)


def rehearse_group(
    group: HostGroup,
    folder: Path,
    settings: Settings,
    checks: Sequence[str],
    notify: Callable[[str], None],
) -> tuple[RehearsedCell, ...]:
    """Run `doctor`, `plan` and `run` for the cells of the group, and read what the run reported."""
    selection = ["--only", ",".join(group.ids), *(part for check in checks for part in ("--check", check))]
    reports = folder / "reports" / group.name
    commands = (
        ["doctor", "--need", "NPU"],
        ["plan", *selection],
        ["run", *selection, "--reports", str(reports)],
    )
    # An earlier report must not be taken for that of a run that wrote none.
    shutil.rmtree(reports, ignore_errors=True)
    with _engine(group, folder, settings, notify) as engine:
        for arguments in commands:
            notify(f"$ npu-matrix {' '.join(arguments)}")
            code = run_on_stand_in(group, folder, settings, arguments, engine)
            notify(f"exit {code}")
            if arguments[0] == "plan" and code != EXIT_OK:
                break
    return read_report(reports / "report.json", group.ids)


def contact_group(
    group: HostGroup, folder: Path, settings: Settings, notify: Callable[[str], None]
) -> tuple[Path, int]:
    """Run `first-contact` for the cells of the group; returns its file and its exit code."""
    out = folder / "first-contact" / f"{group.name}.tar.gz"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    # What is installed is a cell of its own.
    only = [] if settings["engine"] == FOUND else ["--only", ",".join(group.ids)]
    arguments = ["first-contact", *only, "--out", str(out), "--minutes", "60"]
    with _engine(group, folder, settings, notify) as engine:
        notify(f"$ npu-matrix {' '.join(arguments)}")
        code = run_on_stand_in(group, folder, settings, arguments, engine)
    notify(f"exit {code}")
    return out, code


def read_report(file: Path, cells: Sequence[str]) -> tuple[RehearsedCell, ...]:
    """What a report says about the cells; a cell that is not in it has the stop `other`."""
    try:
        rows = {row["id"]: row["results"] for row in json.loads(file.read_text("utf-8"))["cells"]}
    except (OSError, ValueError, KeyError):
        rows = {}
    return tuple(_rehearsed(cell, rows.get(cell, ())) for cell in cells)


def _rehearsed(cell: str, results: Sequence[Mapping[str, object]]) -> RehearsedCell:
    passed: dict[str, int] = {}
    stops, following = [], 0
    for result in results:
        status = str(result.get("status"))
        if status == "pass":
            evidence = str(result.get("evidence"))
            passed[evidence] = passed.get(evidence, 0) + 1
        elif status == "blocked":
            following += 1
        elif status != "unsupported":
            stops.append(_stop(result, status))
    if not results:
        stops.append(Stop(check="run", status="error", kind="other", reason="the run wrote no report"))
    return RehearsedCell(cell=cell, passed=passed, stops=tuple(stops), following=following)


def _stop(result: Mapping[str, object], status: str) -> Stop:
    reasons = _texts(result, "reasons")
    check = str(result.get("check"))
    return Stop(
        check=check,
        status=status,
        kind=_kind(check, status, result, " ".join(reasons)),
        reason=reasons[0] if reasons else status,
    )


def _texts(result: Mapping[str, object], name: str) -> list[str]:
    given = result.get(name)
    return [str(one) for one in given] if isinstance(given, list) else []


def _kind(check: str, status: str, result: Mapping[str, object], text: str) -> str:
    measured = result.get("measurements")
    lacks = measured.get("lacks") if isinstance(measured, Mapping) else None
    lacking = lacks.get("kind") if isinstance(lacks, Mapping) else ""
    # Unexpected failures have the value `unexpected`.
    if result.get("expected") == "known":
        return "known"
    # Another failure of `resolve`, such as a contradiction between pins, is none of the index.
    if check == "resolve" and status == "fail" and any(part in text for part in _NOT_ON_INDEX):
        return "index"
    if lacking == "engine":
        return "compiler" if any(name in text for name in _COMPILED_WITH_CANN) else "source"
    silent = isinstance(measured, Mapping) and bool(measured.get("unreachable"))
    if (
        lacking in ("commits", "python")
        or COMMIT_REMEDY in _texts(result, "remedies")
        or (status == "not-run" and silent)
    ):
        return "network"
    return "left out" if status == "not-run" and "not in profile" in text else "other"


def _shape(soc: str, cell: str) -> HostShape:
    if soc not in SHAPES:
        raise InputError(
            f"there is no stand-in for a host with {soc or 'an unknown SoC'}",
            why=f"the cell {cell} needs it",
            fix=f"select cells with one of: {', '.join(SHAPES)}",
        )
    return SHAPES[soc]


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in text)

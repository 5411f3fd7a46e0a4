"""How much of the code that only NPU hosts use is executed by rehearsals on this machine.

Two sets of commands run under coverage: `doctor`, `plan` and `run` for a cell on the simulated device, and
the rehearsals of a cell on NPUs (`rehearse`, with `--faults` and with `--first-contact`, also with what is
installed and with something in the way), with what is written for its hosts and merged from them. Code of the
hardware path is every function that only the rehearsals enter, and every function that nothing enters, in
modules of which only the rehearsals enter any. What both enter is not counted, nor are functions of modules
that nothing enters. Programs inside cells are not traced. The lines that remain are in `hardware_path.json`,
by function.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure
from harness import __version__
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.package import PACKAGE_ROOT
from harness.settings import load_settings

#: What rehearses is not what it rehearses.
MACHINERY = ("harness/devices/stand_in/", "harness/workspace/execution/rehears", "harness/cli/rehearse")
STORED = Path(__file__).with_name("hardware_path.json")
MATRIX = """\
format: 1
include: npu-matrix:{version}
profiles:
  default:
    title: a release of verl on the simulated device and on an Atlas 800T A2
    select:
      - product: {{verl: [0.9.1], torch: [2.13.0], torch_npu: [2.13.0], device: [sim, npu]}}
        with: {{python: 3.11, cann: 8.5.0, soc: a2}}
"""
CHECKS = ("--check", "environment,loss")
#: Replaced in the commands by what the rehearsals made: a cell, its Python, and the file to send.
CELL, PYTHON, SENT = "{cell}", "{python}", "{sent}"
SIMULATED = (("doctor",), ("plan",), ("run", "--only", "*-sim-*", *CHECKS))
REHEARSED = (
    ("rehearse", *CHECKS),
    ("rehearse", "--faults"),
    ("rehearse", "--first-contact"),
    ("--engine", "found", "--found-python", PYTHON, "rehearse", "--first-contact", "--faults"),
    *(("jobs", kind) for kind in ("kubernetes", "slurm", "compose", "bake", "runners")),
    ("plan", "--github", "2", "--cards", "8"),
    ("run", "--only", CELL, "--check", "resolve"),
    *(
        ("lock", CELL, "--export", form, "--output", f"exported-{form}")
        for form in ("dockerfile", "compose", "bake", "devcontainer", "kubernetes")
    ),
    ("--state", "merged", "ledger", "merge", SENT),
)
# Subprocesses are traced too, also those that replace themselves by another program or end at once.
SETTINGS = """\
[run]
source = {package}
data_file = {folder}/data
parallel = true
patch = subprocess, execv, _exit
concurrency = thread
"""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the package, with the lines of its body that have statements."""

    file: str
    name: str
    lines: frozenset[int]


def functions_of(file: Path, statements: frozenset[int]) -> Iterator[Function]:
    """The functions in a file; lines of a nested function are its own."""
    taken: set[int] = set()
    tree = ast.parse(file.read_text("utf-8"))
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    # Inner functions begin later than those around them.
    for node in sorted(nodes, key=lambda one: -one.lineno):
        inside = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        lines = frozenset(statements & set(inside) - taken)
        taken |= lines
        if lines:
            yield Function(file=str(file.relative_to(PACKAGE_ROOT.parent)), name=node.name, lines=lines)


def hardware_path(
    functions: Sequence[Function], simulated: Mapping[str, set[int]], rehearsed: Mapping[str, set[int]]
) -> list[Function]:
    """The functions that only rehearsals enter, and those that nothing enters in modules like that."""
    ours, common = set[str](), set[str]()
    for one in functions:
        if one.lines & simulated.get(one.file, set()):
            common.add(one.file)
        elif one.lines & rehearsed.get(one.file, set()):
            ours.add(one.file)
    return [
        one
        for one in functions
        if not one.file.startswith(MACHINERY)
        and not one.lines & simulated.get(one.file, set())
        and (one.lines & rehearsed.get(one.file, set()) or one.file in ours - common)
    ]


def made(folder: Path) -> dict[str, str]:
    """What stands for `CELL`, `PYTHON` and `SENT`, as far as it was made."""
    found: dict[str, str] = {}
    for sent in folder.glob("npu-matrix-rehearsal/first-contact/*.tar.gz"):
        found[SENT] = str(sent)
    for report in folder.glob("npu-matrix-rehearsal/reports/*/report.json"):
        for row in json.loads(report.read_text("utf-8"))["cells"]:
            found[CELL] = row["id"]
            for result in row["results"]:
                if result["check"] == "environment":
                    python = (result["measurements"] or {}).get("python", PYTHON)
                    # Reports name the folder of the cache so.
                    found[PYTHON] = python.replace(
                        "{cache}", str(load_settings({}, os.environ, folder).cache)
                    )
    return found


def trace(commands: Sequence[Sequence[str]], folder: Path) -> dict[str, set[int]]:
    """File -> lines that the commands execute, in all processes of the host side."""
    import coverage

    folder.mkdir()
    (folder / "matrix.yaml").write_text(MATRIX.format(version=__version__), "utf-8")
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(package=PACKAGE_ROOT, folder=folder), "utf-8")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NPU_MATRIX_MATRIX": str(folder / "matrix.yaml")}
    for words in commands:
        names = made(folder)
        arguments = [names.get(word, word) for word in words]
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            f"--rcfile={settings}",
            "-m",
            "harness",
            *arguments,
        ]
        log = folder / "log.txt"
        with log.open("a") as stream:
            stream.write(f"$ {' '.join(arguments)}\n")
            stream.flush()
            done = subprocess.run(command, cwd=folder, env=environ, stdout=stream, stderr=stream, check=False)
        print(f"exit {done.returncode}: npu-matrix {' '.join(arguments)}", file=sys.stderr)
    data = coverage.Coverage(config_file=str(settings))
    data.combine()
    measured = data.get_data()
    relative = {file: str(Path(file).relative_to(PACKAGE_ROOT.parent)) for file in measured.measured_files()}
    return {name: set(measured.lines(file) or ()) for file, name in relative.items()}


def figures() -> Iterator[Figure]:
    if importlib.util.find_spec("coverage") is None:
        raise CannotRunError("coverage is not installed", "pip install 'coverage>=7.10'")
    from coverage.python import PythonParser

    functions: list[Function] = []
    for file in sorted(PACKAGE_ROOT.rglob("*.py")):
        parser = PythonParser(filename=str(file))
        parser.parse_source()
        functions += functions_of(file, frozenset(parser.statements))
    with temporary_folder(Path("/var/tmp")) as folder:
        simulated, rehearsed = trace(SIMULATED, folder / "sim"), trace(REHEARSED, folder / "npu")
    path = hardware_path(functions, simulated, rehearsed)
    untried = [(one, sorted(one.lines - rehearsed.get(one.file, set()))) for one in path]
    lines, missing = sum(len(one.lines) for one in path), sum(len(rest) for _, rest in untried)
    listed = {f"{one.file}:{one.name}": rest for one, rest in untried if rest}
    STORED.write_text(json.dumps({"lines": lines, "untried": listed}, indent=1) + "\n", "utf-8")
    yield Figure(claim="functions on the hardware path", measured=len(path))
    yield Figure(
        claim=f"of {lines} lines on the hardware path, executed by rehearsals",
        measured=round(100 * (1 - missing / max(1, lines)), 1),
        unit="%",
        limit=95,
        is_lower_limit=True,
    )

"""`npu-matrix inspect`: are the versions that an environment, an image or a list has compatible?"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_INCOMPLETE,
    EXIT_NOTHING_SELECTED,
    EXIT_OK,
    EXIT_UNEXPECTED,
    InputError,
    Location,
    did_you_mean,
)
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.matrix.version_matrix import Matrix
    from harness.workspace.inspection.inspect_source import OpenedSource
    from harness.workspace.inspection.inspection_report import Inspection

CODES = {
    EXIT_OK: "nothing that was looked at is wrong",
    EXIT_UNEXPECTED: "something is wrong: the problems are listed, those that hurt first at the top",
    EXIT_BAD_INPUT: "SOURCE cannot be read, or has no packages",
    EXIT_NOTHING_SELECTED: "SOURCE has no package that the matrix knows",
    EXIT_INCOMPLETE: "nothing wrong was found, but a check had no answer, for example without an index",
}


@click.command(
    "inspect",
    epilog="\b\nExamples:\n  npu-matrix inspect\n  npu-matrix inspect --python /opt/venv/bin/python\n"
    "  pip freeze | npu-matrix inspect - --with cann=8.5.0 --with soc=a2\n"
    "  python collect_env.py > env.txt; npu-matrix inspect env.txt\n"
    "  docker save IMAGE -o image.tar; npu-matrix inspect image.tar --json\n\n"
    "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items()),
)
@click.argument("source", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--python",
    "interpreter",
    type=click.Path(path_type=Path),
    help="Inspect the environment of this interpreter. It is started once, isolated (-I -S).",
)
@click.option(
    "--with",
    "given",
    multiple=True,
    metavar="AXIS=VALUE",
    help="A version that SOURCE does not state, such as cann=8.5.0. May be repeated.",
)
@click.option("--files/--no-files", default=True, help="Compare files and shared libraries, too.")
@click.option("--change/--no-change", default=True, help="Search for the fewest versions to move.")
@click.option(
    "--patched",
    multiple=True,
    metavar="PACKAGE",
    help="A package whose files were altered on purpose. May be repeated.",
)
@click.option(
    "--to-install",
    is_flag=True,
    help="Judge a list as one that pip is to install. Default: a list with == in every line is installed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.inspection).")
@click.pass_obj
def command(
    settings: Settings,
    /,
    source: Path | None,
    interpreter: Path | None,
    given: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Are the versions that are installed somewhere compatible?

    SOURCE is a text (pip freeze, pip list, collect_env or a requirements file; - for standard input), the
    folder of a virtual environment, or a container image as a file (docker save, podman save, OCI archive).
    Without SOURCE, the activated Python environment is inspected. Nothing that is inspected is imported or
    run. The checks are those of the static tier. In an environment or an image, files are compared with
    RECORD, and the symbols and libraries that shared libraries need with those that are there.
    """
    from harness.cli.inspect_output import inspection_json, inspection_lines
    from harness.workspace.inspection.inspect_source import InspectOptions, inspect_source
    from harness.workspace.planning.open_plan import open_matrix

    if source is not None and interpreter is not None:
        raise click.UsageError("SOURCE and --python exclude each other")
    matrix = open_matrix(settings)
    wanted = InspectOptions(
        given=_given(matrix, given),
        files=options["files"],
        change=options["change"],
        patched=frozenset(options["patched"]),
    )
    with tempfile.TemporaryDirectory(prefix="npu-matrix-inspect-") as folder:
        opened = _open(source, interpreter, Path(folder))
        if options["to_install"]:
            opened = opened.to_install()
        inspection = inspect_source(settings, matrix, opened, wanted)
    if as_json:
        click.echo(json.dumps(inspection_json(inspection), indent=2))
    else:
        click.echo("\n".join(inspection_lines(inspection)))
    return _exit_code(inspection)


def _exit_code(inspection: Inspection) -> int:
    if inspection.failing:
        return EXIT_UNEXPECTED
    return EXIT_INCOMPLETE if inspection.unanswered else EXIT_OK


def _open(source: Path | None, interpreter: Path | None, folder: Path) -> OpenedSource:
    """The source. folder: an empty one for copies of the files of an image."""
    from harness.compat.inspection.image_archive import is_image
    from harness.workspace.inspection.inspect_source import (
        open_environment,
        open_folder,
        open_image,
        open_text,
    )

    if source is None:
        return open_environment(interpreter)
    if str(source) == "-":
        return open_text(sys.stdin.buffer.read((8 << 20) + 1), "standard input")
    if source.is_dir():
        return open_folder(source)
    if is_image(source):
        return open_image(source, folder)
    try:
        with source.open("rb") as stream:
            data = stream.read((8 << 20) + 1)
    except OSError as error:
        raise InputError(
            "SOURCE cannot be read",
            where=Location(source),
            why=error.strerror or str(error),
            fix="name a file or folder; for an image in a registry: docker save IMAGE -o image.tar",
        ) from error
    return open_text(data, str(source))


def _given(matrix: Matrix, texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        axis, equals, value = text.partition("=")
        if axis not in matrix.axes:
            raise InputError(f"--with {text}: unknown axis {axis!r}", fix=did_you_mean(axis, matrix.axes))
        try:
            matrix.axes[axis].parse(value)
        except ValueError as error:
            raise InputError(f"--with {text}: {error}", fix="write AXIS=VALUE") from None
        found[axis] = value if equals else ""
    return found

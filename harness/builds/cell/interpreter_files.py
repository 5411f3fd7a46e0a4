"""The files of an environment's interpreter: the program, the links to it, and its standard library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.installed.file_manifest import WatchedFolder
from harness.cell_program.installed_records import CACHE_FOLDER, COMPILED
from harness.check import TaskContext

# Folders next to the modules of the standard library that do not belong to it, and its own tests.
NOT_OF_THE_INTERPRETER = frozenset({"site-packages", "dist-packages", "test", "tests"})
_NAMES = "|".join(sorted(NOT_OF_THE_INTERPRETER))
# Python takes its standard library from elsewhere if one of these is next to its program, or if a landmark is
# in a folder that it searches before its own one (Modules/getpath.py of CPython).
REDIRECTIONS = ("pybuilddir.txt", "Modules/Setup.local", "{program}._pth")
LANDMARKS = ("os.py", "os.pyc")
SECONDS_TO_ASK = 60.0
SECONDS_TO_COMPILE = 300.0
_QUESTION = """
import json, site, sys
found = {"base": list(sys.path), "tag": sys.implementation.cache_tag, "prefix": sys.base_prefix}
site.main()
print(json.dumps({**found, "paths": sys.path, "home": getattr(sys, "_home", None) or ""}))
"""


@dataclass(frozen=True, kw_only=True)
class InterpreterFiles:
    """What an environment imports.

    base: the folders and archives of the standard library. paths: all of `sys.path`. tag: the name of the
    interpreter in the names of compiled modules. prefix: where the interpreter is installed. home: the folder
    of its program according to `pyvenv.cfg`.
    """

    base: tuple[str, ...]
    paths: tuple[str, ...]
    tag: str
    prefix: str
    home: str


def ask_interpreter(ctx: TaskContext, python: Path) -> InterpreterFiles:
    """Ask the Python of an environment what it imports from; BuildStepError if it does not start."""
    # Path files of packages import modules, which must not be compiled yet: what no RECORD lists is refused.
    argv = [str(python), "-I", "-B", "-S", "-c", _QUESTION]
    done = ctx.command(argv, cwd=ctx.workdir, timeout=SECONDS_TO_ASK)
    try:
        # They may also print something.
        answer = json.loads(done.tail.splitlines()[-1])
        return InterpreterFiles(
            base=tuple(answer["base"]),
            paths=tuple(answer["paths"]),
            tag=str(answer["tag"]),
            prefix=str(answer["prefix"]),
            home=str(answer["home"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        what = "The Python of the environment does not start."
        raise BuildStepError("verify", what, tail=done.tail) from error


def require_no_other_paths(found: InterpreterFiles, prefix: Path) -> None:
    """BuildStepError if the environment imports from a place that neither its lock nor Python describes."""
    own = (str(prefix), *found.base)
    others = [path for path in found.paths if not _is_within(path, own) and os.path.lexists(path)]
    if others:
        raise BuildStepError(
            "verify",
            f"Python also imports from {', '.join(others)}, which a path file of an installed package names. "
            "No lock describes what is there.",
        )


def compile_library(ctx: TaskContext, python: Path, found: InterpreterFiles) -> None:
    """Compile the modules of the standard library that are not compiled yet.

    Otherwise any program that uses this interpreter stores compiled modules there later, and those cannot be
    told from forged ones. What this user may not write, only an administrator of this host can change.
    """
    folders = [
        folder
        for folder in _library_folders(found)
        if os.access(folder, os.W_OK)
        and not all((folder / name).exists() for name in _compiled_names(folder, found.tag))
    ]
    if not folders:
        return
    left_out = f"^({'|'.join(re.escape(str(folder)) for folder in folders)})/(.*/)?({_NAMES})/"
    argv = [str(python), "-I", "-S", "-m", "compileall", "-qq", "-x", left_out]
    # Some files of the standard library are wrong on purpose, so that the exit code means nothing.
    ctx.command([*argv, *map(str, folders)], cwd=ctx.workdir, timeout=SECONDS_TO_COMPILE)


def interpreter_folders(python: Path, found: InterpreterFiles, prefix: Path) -> tuple[WatchedFolder, ...]:
    """What belongs to the interpreter `python` of the environment in `prefix`, outside this environment.

    Among them are files that do not exist, and that would replace a part of the interpreter.
    """
    program = python.resolve()
    links = [link for link in symbolic_links(python) if not link.is_relative_to(prefix)]
    programs = [*links, program, *([Path(found.home) / program.name] if found.home else [])]
    files = [*links, program, *(path for path in _redirections(programs, found) if not os.path.lexists(path))]
    folders = _library_folders(found)
    files += [Path(path) for path in found.base if not Path(path).is_dir()]
    files += sorted({library for folder in folders for library in folder.parent.glob("libpython*.so*")})
    for link in _links_in(folders):
        steps = [*(symbolic_links(link) if link.exists() else ()), Path(os.path.realpath(link))]
        files += [step for step in steps if not any(map(step.is_relative_to, folders))]
    return (
        *(WatchedFolder(path=str(file.parent), only=(file.name,)) for file in dict.fromkeys(files)),
        *(
            watched
            for folder in folders
            for watched in (
                WatchedFolder(path=str(folder), without=(CACHE_FOLDER, *sorted(NOT_OF_THE_INTERPRETER))),
                WatchedFolder(path=str(folder), only=tuple(_compiled_names(folder, found.tag))),
            )
        ),
    )


def _redirections(programs: Iterable[Path], found: InterpreterFiles) -> Iterator[Path]:
    """Where Python searches for its standard library and its path, apart from where they are."""
    parts = [
        path.relative_to(found.prefix) for path in map(Path, found.base) if path.is_relative_to(found.prefix)
    ]
    prefix = Path(found.prefix)
    for program in programs:
        yield from (program.parent / name.format(program=program.name) for name in REDIRECTIONS)
        for folder in program.parents:
            # It searches upwards for an archive in every folder, and for a library as far as its own one.
            above = folder in prefix.parents
            yield from (folder / part for part in parts if part.suffix == ".zip" or not above)
            if not above:
                yield from (folder / part / name for part in parts for name in LANDMARKS)


def _library_folders(found: InterpreterFiles) -> list[Path]:
    """The folders of the standard library, and those that links in it lead to; none is within another one."""
    folders: list[Path] = []
    pending = sorted((Path(path) for path in found.base if Path(path).is_dir()), key=lambda path: path.parts)
    for folder in pending:
        # A link may also lead to a folder above the library.
        if not any(folder.is_relative_to(one) or one.is_relative_to(folder) for one in folders):
            folders.append(folder)
            pending += [link.resolve() for link in _links_in([folder]) if link.is_dir()]
    return folders


def _links_in(folders: Iterable[Path]) -> Iterator[Path]:
    """The symbolic links in the folders of the standard library."""
    for folder in folders:
        for parent, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if name not in NOT_OF_THE_INTERPRETER)
            yield from (path for name in (*names, *files) if (path := Path(parent, name)).is_symlink())


def _compiled_names(folder: Path, tag: str) -> Iterator[str]:
    """Where Python stores the compiled form of each module of this folder, whether it exists or not."""
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in {*NOT_OF_THE_INTERPRETER, CACHE_FOLDER})
        cache = (Path(parent) / CACHE_FOLDER).relative_to(folder)
        for name in sorted(files):
            if name.endswith(".py"):
                yield f"{cache}/{name.removesuffix('.py')}.{tag}{COMPILED}"


def symbolic_links(path: Path) -> Iterator[Path]:
    """Every symbolic link that the system follows to open `path`, which exists and is absolute."""
    pending = list(reversed(path.parts[1:]))
    place = Path(path.anchor)
    while pending:
        part = pending.pop()
        if part == "..":
            place = place.parent
            continue
        step = place / part
        if not step.is_symlink():
            place = step
            continue
        yield step
        target = step.readlink()
        place = Path(target.anchor) if target.is_absolute() else place
        pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}{os.sep}") for folder in folders)

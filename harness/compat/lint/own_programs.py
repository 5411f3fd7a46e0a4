"""What is no part of verl: recipes and configurations of users lie beside their launch scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from harness.compat.lint.hydra_compose import FOLDER_OPTIONS
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import LaunchScript
from harness.sources.tree import EXECUTABLE, REGULAR, DirectoryTree, OverlayTree, Tree, TreeFile, path_problem

# A recipe has at most some dozens of files, below a checkout's third level.
MAX_FILES = 500
MAX_FILE_BYTES = 1 << 20
MAX_LEVELS = 6
READ = (".py", ".yaml")
# The repository of verl's recipes is checked out as the folder `recipe`, or has this folder's content.
RECIPES = "recipe"


def with_own_programs(verl: Tree, scripts: Sequence[tuple[Path, LaunchScript]]) -> Tree:
    """The files of verl, of the programs that scripts start, and of the configurations that they name.

    Programs and configurations are looked for in the folders above their script, inside its repository. Only
    Python and YAML files are read, and no file of verl is replaced.
    """
    known = frozenset(verl.paths())
    found: dict[str, TreeFile | None] = {}
    for path, script in scripts:
        for entry in dict.fromkeys(job.entry for job in script.jobs):
            program = _program_path(entry)
            if program is not None and program not in known and program not in found:
                found.update((name, file) for name, file in _beside(path, program) if name not in known)
        for folder, config in dict.fromkeys(one for job in script.jobs for one in _named_configurations(job)):
            found.update(
                (name, file) for name, file in _configuration(path, folder, config) if name not in known
            )
    return OverlayTree(base=verl, changes=found) if found else verl


def _folders_above(script: Path) -> Iterator[Path]:
    """The folders above a script, up to that of its repository: what lies beside it is of other projects."""
    for folder in [*script.absolute().parents][:MAX_LEVELS]:
        yield folder
        if (folder / ".git").exists():
            return


def _named_configurations(job: JobSettings) -> Iterator[tuple[str, str]]:
    """The folders of configurations that a job names by a path of its host, and the configuration's name."""
    for option in FOLDER_OPTIONS:
        given = job.options.get(option, "")
        if given.startswith(("/", "$", "~", "<", "`")):
            yield given.rstrip("/"), job.config.removesuffix(".yaml")


def _configuration(script: Path, given: str, name: str) -> Iterator[tuple[str, TreeFile]]:
    """The files of a folder whose path ends as the given one, which is known from the script's folders up."""
    parts = given.split("/")
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    for folder in _folders_above(script):
        for end in ends:
            place = folder / end
            if not end or path_problem(end) or not place.is_dir() or place.is_symlink():
                continue
            if not name or DirectoryTree(root=place).mode(f"{name}.yaml") in (REGULAR, EXECUTABLE):
                yield from _files(DirectoryTree(root=place), PurePosixPath(end))
                return


def _program_path(entry: str) -> str | None:
    """The path of a module's file in its checkout; None for a file, which is given by its own path."""
    parts = entry.split(".")
    if entry.endswith(".py") or len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return None
    return "/".join(parts) + ".py"


def _beside(script: Path, program: str) -> Iterator[tuple[str, TreeFile]]:
    """The files of a program's folder, and of the folders below it."""
    inside = PurePosixPath(program)
    for folder in _folders_above(script):
        for within in (inside, inside.relative_to(RECIPES) if inside.parts[0] == RECIPES else inside):
            if len(within.parts) > 1 and DirectoryTree(root=folder).mode(str(within)) in (
                REGULAR,
                EXECUTABLE,
            ):
                yield from _files(DirectoryTree(root=folder / within.parent), inside.parent)
                return


def _files(tree: Tree, place: PurePosixPath) -> Iterator[tuple[str, TreeFile]]:
    names = sorted(name for name in tree.paths() if name.endswith(READ) and not path_problem(name))
    for name in names[:MAX_FILES]:
        data = tree.read(name) if tree.mode(name) in (REGULAR, EXECUTABLE) else None
        if data is not None and len(data) <= MAX_FILE_BYTES:
            yield f"{place}/{name}", TreeFile(data=data)

"""Verifies the files of a virtual environment: against the lock when it is built, later against its manifest.

The manifest covers the whole environment with its scripts, `pyvenv.cfg` and compiled modules, the simulated
runtime, and the interpreter with its standard library.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.cell.environment_spec import BuildStepError, EnvironmentSpec
from harness.builds.installed.file_manifest import (
    FileManifest,
    ManifestError,
    WatchedFolder,
    extend_manifest,
    find_changes,
    make_manifest,
    path_list,
    read_manifest,
    write_manifest,
)
from harness.builds.installed.installed_records import COMPILED, record_problems
from harness.cell_program.built_environment import VerifiedFiles
from harness.errors import InfrastructureError

# Installed next to the standard library, tests of it, and compiled modules that any program may write.
NOT_OF_THE_INTERPRETER = ("site-packages", "dist-packages", "test", "__pycache__")
TOOLKIT = "toolkit"


def watched_folders(prefix: Path, minor: str) -> tuple[WatchedFolder, ...]:
    """The folders of a virtual environment and of its interpreter."""
    interpreter = (prefix / "bin" / "python").resolve()
    home = interpreter.parent.parent
    libraries = tuple(path.name for path in sorted(home.glob(f"lib/libpython{minor}*.so*")))
    folders = [
        WatchedFolder(path=str(prefix)),
        WatchedFolder(path=str(interpreter.parent), only=(interpreter.name,)),
        WatchedFolder(path=str(home / "lib" / f"python{minor}"), without=NOT_OF_THE_INTERPRETER),
    ]
    if libraries:
        folders.append(WatchedFolder(path=str(home / "lib"), only=libraries))
    return tuple(folders)


def runtime_folders(runtime: str, cann: str) -> tuple[WatchedFolder, ...]:
    """The folders of a simulated runtime. It contains the toolkits of several CANN versions."""
    if not runtime:
        return ()
    return (
        WatchedFolder(path=runtime, without=(TOOLKIT,)),
        WatchedFolder(path=str(Path(runtime) / TOOLKIT / cann)),
    )


def verify_installed(
    spec: EnvironmentSpec, prefix: Path, site_packages: Path, own: Collection[str]
) -> FileManifest:
    """The manifest of an environment whose packages are installed and patched.

    own: the files that the virtual environment consisted of before. BuildStepError if a file is not the one
    that the RECORD of its distribution or a patch says, or belongs to nothing.
    """
    manifest = make_manifest(watched_folders(prefix, spec.minor))
    inside = f"{prefix}/"
    installed = replace(
        manifest,
        entries={path: entry for path, entry in manifest.entries.items() if path.startswith(inside)},
    )
    problems = record_problems(installed, site_packages, patched=spec.manifest, own=own)
    if problems:
        count = f"{len(problems)} installed files are" if len(problems) > 1 else "1 installed file is"
        raise BuildStepError("verify", f"{count} not as recorded: {problems[0]}", tail="\n".join(problems))
    return manifest


def compiled_since(manifest: FileManifest) -> FileManifest:
    """The manifest with the modules that the first import compiled; nothing else may have changed.

    BuildStepError if importing the packages changed other files of the environment.
    """
    changes = find_changes(manifest)
    others = [path for path in changes.added if not _is_compiled(path, manifest)]
    if changes.edited or changes.removed or others:
        raise BuildStepError(
            "verify",
            "Importing the packages changed the environment: "
            f"{path_list([*changes.edited, *changes.removed, *others])}.",
        )
    return extend_manifest(manifest)


def _is_compiled(path: str, manifest: FileManifest) -> bool:
    """Whether the path is where Python stores the compiled form of a module of this environment."""
    file = Path(path)
    source = file.parent.parent / f"{file.name.split('.')[0]}.py"
    return file.parent.name == "__pycache__" and file.suffix == COMPILED and str(source) in manifest.entries


def store_manifest(manifest: FileManifest, added: Sequence[WatchedFolder], home: Path) -> VerifiedFiles:
    """Store the manifest, with the files of the folders `added`, in the folder of the environment.

    Each manifest has a file of its own: outcomes of several cells can refer to one environment.
    """
    other = make_manifest(folder for folder in added if folder not in manifest.folders)
    complete = FileManifest(
        folders=(*manifest.folders, *other.folders), entries={**manifest.entries, **other.entries}
    )
    written = home / "files.json"
    digest = write_manifest(complete, written)
    target = home / f"files-{digest[:32]}.json"
    written.replace(target)
    return VerifiedFiles(manifest=str(target), digest=digest, count=len(complete.entries))


def why_changed(files: VerifiedFiles, *, full: bool = False) -> str:
    """How the files of an environment differ from those that were built, or "".

    full: read every file. Otherwise only files whose metadata differs are read.
    """
    try:
        changes = find_changes(read_manifest(Path(files.manifest), files.digest), full=full)
    except ManifestError as error:
        return f"the environment cannot be verified: {error}"
    except OSError as error:
        return f"the environment cannot be verified: {error}"
    return f"the environment has changed since it was built: {changes}" if changes else ""


def reusable_manifest(home: Path, digest: str) -> FileManifest | None:
    """The manifest of an environment that an earlier task built, if every file still has its content."""
    path = home / f"files-{digest[:32]}.json"
    try:
        manifest = read_manifest(path, digest)
        return None if find_changes(manifest, full=True) else extend_manifest(manifest)
    except (ManifestError, OSError):
        return None


def require_unchanged(manifest: FileManifest) -> None:
    """InfrastructureError if a file changed while the environment was probed."""
    changes = find_changes(manifest)
    if changes:
        raise InfrastructureError(
            "the environment changed while it was probed",
            why=str(changes),
            fix="end the programs that write to it, then run again",
        )

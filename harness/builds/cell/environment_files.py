"""Verifies the files of a virtual environment: against the lock when it is built, later against its manifest.

The manifest covers the whole environment with its scripts, `pyvenv.cfg` and compiled modules, the simulated
runtime, and the interpreter with its standard library.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from harness.builds.cell.device_libraries import device_folders
from harness.builds.cell.environment_spec import BuildStepError, EnvironmentSpec
from harness.builds.cell.interpreter_files import (
    ask_interpreter,
    compile_library,
    interpreter_folders,
    require_no_other_paths,
)
from harness.builds.installed.content_identity import content_identity
from harness.builds.installed.file_manifest import (
    FileManifest,
    ManifestError,
    WatchedFolder,
    extend_manifest,
    find_changes,
    has_same_states,
    make_manifest,
    path_list,
    read_manifest,
    write_manifest,
)
from harness.builds.installed.installed_records import CACHE_FOLDER, COMPILED, record_problems
from harness.cell_program.built_environment import EnvironmentBuilt, VerifiedFiles
from harness.check import TaskContext
from harness.errors import InfrastructureError

TOOLKIT = "toolkit"
FINISHED = "finished.json"
#: The artifact with the digests of an environment's contents. Dependent outcomes rest on it.
IDENTITY = "identity.json"
DIGEST_CHARACTERS = 32


def runtime_folders(runtime: str, cann: str) -> tuple[WatchedFolder, ...]:
    """The folders of a simulated runtime. It contains the toolkits of several CANN versions."""
    if not runtime:
        return ()
    return (
        WatchedFolder(path=runtime, without=(TOOLKIT,)),
        WatchedFolder(path=str(Path(runtime) / TOOLKIT / cann)),
    )


def verify_installed(
    ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, site_packages: Path, own: Collection[str]
) -> FileManifest:
    """The manifest of an environment whose packages are installed and patched.

    own: the files that the virtual environment consisted of before. BuildStepError if a file is not the one
    that the RECORD of its distribution or a patch says, or belongs to nothing, or if the environment imports
    from other places.
    """
    python = prefix / "bin" / "python"
    interpreter = ask_interpreter(ctx, python)
    require_no_other_paths(interpreter, prefix)
    compile_library(ctx, python, interpreter)
    folders = (WatchedFolder(path=str(prefix)), *interpreter_folders(python, interpreter, prefix))
    manifest = make_manifest(folders)
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
    """Whether Python stores compiled modules of this environment there, or this one."""
    file = Path(path)
    if file.name == CACHE_FOLDER:
        return True
    source = file.parent.parent / f"{file.name.split('.')[0]}.py"
    return file.parent.name == CACHE_FOLDER and file.suffix == COMPILED and str(source) in manifest.entries


def with_folders(manifest: FileManifest, added: Iterable[WatchedFolder]) -> FileManifest:
    """The manifest with the files of further folders."""
    other = make_manifest(folder for folder in added if folder not in manifest.folders)
    return FileManifest(
        folders=(*manifest.folders, *other.folders), entries={**manifest.entries, **other.entries}
    )


def store_manifest(manifest: FileManifest, home: Path) -> VerifiedFiles:
    """Store the manifest in the folder of the environment, and note there that it is the latest.

    Each manifest has a file of its own: outcomes of several cells can refer to one environment.
    """
    written = home / "files.json"
    digest = write_manifest(manifest, written)
    target = home / f"files-{digest[:DIGEST_CHARACTERS]}.json"
    written.replace(target)
    temporary = home / f"{FINISHED}.tmp"
    temporary.write_text(json.dumps({"files": digest}), "utf-8")
    temporary.replace(home / FINISHED)
    return VerifiedFiles(manifest=str(target), digest=digest, count=len(manifest.entries))


def with_device_files(
    manifest: FileManifest, libraries: Iterable[str], prefix: Path, cache: Path
) -> tuple[FileManifest, VerifiedFiles | None]:
    """The manifest with the `libraries` of this host that drive its NPU, and these alone.

    The second list is stored where `cleanup` does not remove it; None if there are no such libraries.
    """
    folders = device_folders(libraries, prefix)
    if not folders:
        return manifest, None
    part = make_manifest(folders)
    home = cache / "devices"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=home, suffix=".new", delete=False) as written:
        digest = write_manifest(part, Path(written.name))
    target = home / f"{digest[:DIGEST_CHARACTERS]}.json"
    Path(written.name).replace(target)
    stored = VerifiedFiles(manifest=str(target), digest=digest, count=len(part.entries))
    return with_folders(manifest, folders), stored


def write_identity(manifest: FileManifest, home: Path, folder: Path) -> None:
    """Write the artifact `IDENTITY` of the environment in `home` to `folder`."""
    (folder / IDENTITY).write_text(json.dumps(content_identity(manifest, home), indent=1), "utf-8")


def earlier_manifest(home: Path) -> FileManifest | None:
    """The latest manifest of an environment, None unless every file still has its content.

    Simulated runtimes that it does not list are removed, because nothing verifies them.
    """
    try:
        digest = str(json.loads((home / FINISHED).read_text("utf-8"))["files"])
        manifest = read_manifest(home / f"files-{digest[:DIGEST_CHARACTERS]}.json", digest)
        if find_changes(manifest, full=True):
            return None
        manifest = extend_manifest(manifest)
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        return None
    listed = {folder.path for folder in manifest.folders}
    for folder in (*home.glob("sim/*"), *home.glob(f"sim/*/{TOOLKIT}/*")):
        if str(folder) not in listed:
            shutil.rmtree(folder, ignore_errors=True)
    return manifest


def altered(measurements: EnvironmentBuilt, *, foreign: bool = False) -> str:
    """How the files of an environment differ from those that were built, or ""; also "" if it was removed.

    The libraries that drive the NPU of this host are compared even if the environment was removed.
    foreign: whether another machine may have built it. An environment in the same folder here is then another
    one, unless the list of its files is there as well. One for an NPU is then not compared: this host has
    another CANN.
    """
    device = measurements.device_files
    if device is not None and foreign:
        return ""
    if device is not None and Path(device.manifest).is_file():
        changed = why_changed(device, what="device library of this host")
        if changed:
            return changed
    files = measurements.files
    if files is None or not (Path(files.manifest).parent / FINISHED).is_file():
        return ""
    if foreign and not Path(files.manifest).is_file():
        return ""
    return why_changed(files)


def why_changed(files: VerifiedFiles, *, full: bool = False, what: str = "environment") -> str:
    """How the files of an environment differ from those that were built, or "".

    full: read every file. Otherwise only files whose metadata differs are read. what: what the files are.
    """
    path = Path(files.manifest)
    try:
        if not full and has_same_states(path, files.digest):
            return ""
        changes = find_changes(read_manifest(path, files.digest), full=full)
    except ManifestError as error:
        return f"the {what} cannot be verified: {error}"
    except OSError as error:
        return f"the {what} cannot be verified: {error}"
    return f"the {what} has changed since it was built: {changes}" if changes else ""


def require_unchanged(manifest: FileManifest) -> None:
    """InfrastructureError if a file changed while the environment was probed."""
    changes = find_changes(manifest)
    if changes:
        raise InfrastructureError(
            "the environment changed while it was probed",
            why=str(changes),
            fix="end the programs that write to it, then run again",
        )

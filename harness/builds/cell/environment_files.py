"""Verifies the files of a virtual environment: against the lock when it is built, later against its manifest.

The manifest covers the whole environment with its scripts, `pyvenv.cfg` and compiled modules, the simulated
runtime, and the interpreter with its standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.cell.cann_variables import selected_toolkit, why_other_toolkit
from harness.builds.cell.environment_spec import EnvironmentSpec
from harness.builds.cell.host_libraries import library_folders
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
from harness.cache_seal import sealed, unsealed
from harness.cell_program.built_environment import CellDevice, EnvironmentBuilt, VerifiedFiles
from harness.cell_program.installed_records import CACHE_FOLDER, COMPILED, InstalledFile, record_problems
from harness.check import TaskContext
from harness.digest import digest_json
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
    installed = {
        path: InstalledFile(
            digest=entry.content if stat.S_ISREG(entry.state.mode) else "", size=entry.state.size
        )
        for path, entry in manifest.entries.items()
        if path.startswith(inside) and not stat.S_ISDIR(entry.state.mode) and path not in own
    }
    require_as_recorded(record_problems(installed, site_packages, patched=spec.manifest))
    return manifest


def require_as_recorded(problems: Sequence[str]) -> None:
    """BuildStepError if installed files are not as their RECORD and the patches say."""
    if problems:
        count = f"{len(problems)} installed files are" if len(problems) > 1 else "1 installed file is"
        raise BuildStepError("verify", f"{count} not as recorded: {problems[0]}", tail="\n".join(problems))


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
    """Store the manifest in the folder of the environment, and note there that it is the latest."""
    stored = _store(manifest, home, "files")
    temporary = home / f"{FINISHED}.tmp"
    temporary.write_text(sealed(_seal_name(home), json.dumps({"files": stored.digest})), "utf-8")
    temporary.replace(home / FINISHED)
    return stored


def _store(manifest: FileManifest, folder: Path, name: str) -> VerifiedFiles:
    """Store a manifest in a file of its own: outcomes of several cells can refer to one environment."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".new", delete=False) as written:
        digest = write_manifest(manifest, Path(written.name))
    target = folder / f"{name}-{digest[:DIGEST_CHARACTERS]}.json"
    Path(written.name).replace(target)
    return VerifiedFiles(manifest=str(target), digest=digest, count=len(manifest.entries))


def _seal_name(home: Path) -> str:
    return f"environment {home}"


def with_libraries(
    manifest: FileManifest, libraries: Iterable[str], device: CellDevice, home: Path, cache: Path
) -> tuple[FileManifest, VerifiedFiles | None]:
    """The manifest, and a list of the `libraries` of this host that the environment in `home` loads.

    The libraries that drive an NPU are also in the manifest, and their list is stored where `cleanup` does
    not remove it: hardware outcomes rest on them. None if there are no libraries.
    """
    folders = library_folders(libraries, home)
    if not folders:
        return manifest, None
    if device.kind != "npu":
        return manifest, _store(make_manifest(folders), home, "libraries")
    return with_folders(manifest, folders), _store(make_manifest(folders), cache / "devices", "libraries")


def write_identity(
    manifest: FileManifest, home: Path, folder: Path, toolkit: Mapping[str, str] | None = None
) -> None:
    """Write the artifact `IDENTITY` of the environment in `home` to `folder`.

    toolkit: what variables select, see `selected_toolkit`.
    """
    identity = content_identity(manifest, home) | ({"toolkit": digest_json(toolkit)} if toolkit else {})
    (folder / IDENTITY).write_text(json.dumps(identity, indent=1), "utf-8")


def earlier_manifest(home: Path) -> FileManifest | None:
    """The latest manifest of an environment, None unless every file still has its content.

    Simulated runtimes that it does not list are removed, because nothing verifies them.
    """
    try:
        # Whoever can write to the cache could otherwise store another list of files.
        finished = unsealed(_seal_name(home), (home / FINISHED).read_text("utf-8"))
        digest = str(json.loads(finished or "")["files"])
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

    What drives the NPU of this host is compared even if the environment was removed.
    foreign: whether another machine may have built it. An environment in the same folder here is then another
    one, unless the list of its files is there as well. One for an NPU is then not compared: this host has
    another CANN.
    """
    files = measurements.files
    of_npu = measurements.requested_device.kind == "npu"
    is_listed = files is not None and Path(files.manifest).is_file()
    if foreign and (of_npu or not is_listed):
        return ""
    exists = files is not None and (Path(files.manifest).parent / FINISHED).is_file()
    if (of_npu or exists) and not foreign and (changed := why_host_changed(measurements)):
        return changed
    return why_changed(files) if files is not None and exists else ""


def why_host_changed(measurements: EnvironmentBuilt, *, full: bool = False, running: bool = False) -> str:
    """How what an environment uses of this host differs from what it was measured with, or "".

    full: read every library. running: whether a task is about to run. Otherwise it does not matter that a
    variable is not set, because results are also looked at without the settings of CANN.
    """
    libraries, host = measurements.libraries, "host of the environment"
    changed = why_changed(libraries, full=full, what=host) if libraries is not None else ""
    if changed or measurements.requested_device.kind != "npu" or measurements.container is not None:
        return changed
    measured, selected = measurements.toolkit, selected_toolkit(os.environ)
    other = why_other_toolkit(measured, selected if running else {**measured, **selected})
    return f"the {host} has changed since it was built: {other}" if other else ""


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

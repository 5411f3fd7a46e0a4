"""Program: what the Python that runs it has installed. Standard library only; nothing is changed.

    python found_packages.py                    facts about the interpreter and its packages, as JSON
    python found_packages.py --verify torch,..  how files of these packages differ from their RECORD, as JSON

It is started as a file, so that it works in any environment: it imports nothing of this project.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.machinery
import io
import json
import os
import platform
import site
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

GIT_SECONDS = 30.0
MOST_NAMED = 5
# After the commit of a folder with changes that are not committed.
CHANGED = "+changed"
CACHE_FOLDER = "__pycache__"
# Larger files of a checkout are data or results, if Python does not import them.
LARGEST_SOURCE = 1 << 20
# An installer writes RECORD last, and the layers of an image are unpacked in any order.
SECONDS_TO_INSTALL = 60
# What the environment itself prints when Python starts (`sitecustomize`, `.pth` files) comes before this.
ANSWER = "found-packages: "


def facts() -> dict[str, object]:
    """The interpreter, and name -> facts of each package that it can import."""
    packages: dict[str, dict[str, object]] = {}
    folders: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    for name, one, folder in _distributions(sys.path):
        # Python imports from the first folder on its path. Two in one folder: which one it is, nobody knows.
        if name not in packages:
            packages[name], folders[name] = _package(one), folder
        elif folders[name] == folder and one.version != packages[name]["version"]:
            others.setdefault(name, []).append(one.version)
    for name, versions in others.items():
        packages[name]["others"] = sorted(versions)
    deviations, owners = _deviations(sys.path)
    for (name, folder), files in owners.items():
        if files and folders.get(name) == folder:
            packages[name]["changed"] = sorted(files)
    return {
        "version": platform.python_version(),
        "prefix": sys.prefix,
        "site_packages": sysconfig.get_paths()["purelib"],
        "packages": dict(sorted(packages.items())),
        "elsewhere": _elsewhere(),
        "deviations": dict(sorted(deviations.items())),
    }


def _distributions(path: list[str]) -> list[tuple[str, metadata.Distribution, str]]:
    """Names, installed packages and their folders; without the remains of interrupted installations.

    pip renames a package that it replaces to `~ame`. Without METADATA nothing tells name and version.
    """
    found = []
    for one in metadata.distributions(path=path):
        place = Path(str(getattr(one, "_path", "")))
        if place.name.startswith("~") or not (one.read_text("METADATA") or one.read_text("PKG-INFO")):
            continue
        name, version = one.metadata["Name"], one.metadata["Version"]
        if name and version:
            found.append((_normal(name), one, str(place.parent)))
    return found


def _elsewhere() -> dict[str, str]:
    """Name -> folder of packages in PYTHONPATH and in the user's site, which an isolated Python ignores."""
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    folders = [*named, *([] if sys.prefix != sys.base_prefix else [site.getusersitepackages()])]
    used = {os.path.realpath(path) for path in sys.path}
    found: dict[str, str] = {}
    for folder in folders:
        if os.path.realpath(folder) in used:
            continue
        with contextlib.suppress(OSError):
            names = [
                _normal(entry.name) for entry in Path(folder).iterdir() if (entry / "__init__.py").is_file()
            ]
            for name in (*names, *(name for name, _, _ in _distributions([folder]))):
                found.setdefault(name, folder)
    return found


def _package(one: metadata.Distribution) -> dict[str, object]:
    record = one.read_text("RECORD") or ""
    found: dict[str, object] = {"version": one.version, "record": hashlib.sha256(record.encode()).hexdigest()}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        origin = json.loads(one.read_text("direct_url.json") or "{}")
        if "vcs_info" in origin:
            found["commit"] = str(origin["vcs_info"]["commit_id"])
        elif "dir_info" in origin:
            folder = unquote(urlsplit(str(origin["url"])).path)
            found |= {"folder": folder, "commit": _commit(folder)}
    return found


def _commit(folder: str) -> str:
    """The commit that is checked out in a folder, with `CHANGED` if tracked files differ; "" if unknown."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changed is None:
        return ""
    return commit.strip() + (CHANGED if changed.strip() else "")


def _git(folder: str, *arguments: str) -> str | None:
    """What git says about a folder, None if it says nothing."""
    try:
        done = subprocess.run(
            ["git", "-c", f"safe.directory={folder}", "-C", folder, *arguments],  # noqa: S607 - of the PATH
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout)


def _deviations(path: list[str]) -> tuple[dict[str, str], dict[tuple[str, str], list[str]]]:
    """Path -> SHA-256 of the files that neither a RECORD nor a commit describes; "" for a missing file.

    Also (package, its folder) -> those files that belong to it.

    These are files that were edited or added after the installation, and all files of packages without
    RECORD. Compiled modules are left out. A file with the size that RECORD states is read only if it is newer
    than RECORD: reading all of torch would take longer than planning.
    """
    folders = {os.path.realpath(one) for one in path if os.path.basename(one).endswith("-packages")}  # noqa: PTH119
    present = {file: status for folder in folders for file, status in _files(folder)}
    found: dict[str, str] = {}
    owners: dict[tuple[str, str], list[str]] = {}
    recorded: set[str] = set()
    for name, one, folder in _distributions(path):
        own: dict[str, str] = {}
        rows, written = _record_of(one)
        for row in rows:
            file = os.path.normpath(os.path.join(os.path.realpath(folder), row[0]))  # noqa: PTH118
            recorded.add(file)
            if row[1] and _is_suspect(present.get(file) or _status(file), row, written):
                digest = _digest(file)
                if digest != row[1]:
                    own[file] = digest
        if source := _package(one).get("folder"):
            own |= {file: _digest(file) for file in _uncommitted(str(source))}
        found |= own
        owners[name, folder] = list(own)
    return found | {file: _digest(file) for file in present.keys() - recorded}, owners


def _files(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a folder that are no compiled modules; not those of hidden folders."""
    for parent, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != CACHE_FOLDER and not name.startswith(".")]
        for name in names:
            file = os.path.join(parent, name)  # noqa: PTH118
            status = _status(file)
            if status is not None and stat.S_ISREG(status.st_mode) and not name.endswith(".pyc"):
                yield file, status


def _status(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)  # noqa: PTH116 - of 40,000 files
    except OSError:
        return None


def _record_of(one: metadata.Distribution) -> tuple[list[tuple[str, str, str]], os.stat_result | None]:
    """The paths, digests (hexadecimal, "" without one) and sizes of a RECORD, and its own status."""
    rows = csv.reader(io.StringIO(one.read_text("RECORD") or ""))
    lines = [(row[0], _hexadecimal(row[1]), row[2]) for row in rows if len(row) > 2]
    return lines, _status(os.path.join(str(getattr(one, "_path", "")), "RECORD"))  # noqa: PTH118


def _hexadecimal(digest: str) -> str:
    kind, _, text = digest.partition("=")
    if kind != "sha256":
        return ""
    with contextlib.suppress(ValueError):
        return base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}").hex()
    return ""


def _is_suspect(
    status: os.stat_result | None, row: tuple[str, str, str], written: os.stat_result | None
) -> bool:
    """Whether a file may have been edited since the RECORD with this status was written."""
    if status is None or written is None or str(status.st_size) != row[2]:
        return True
    return status.st_mtime > written.st_mtime or status.st_ctime > written.st_ctime + SECONDS_TO_INSTALL


def _uncommitted(folder: str) -> list[str]:
    """The files of a checkout that its commit does not describe; all of them, if it has no commit."""
    changed = _git(folder, "diff", "--name-only", "-z", "--no-relative", "HEAD", "--", ".")
    if changed is None:
        return [file for file, status in _files(folder) if _is_source(file, status)]
    top = (_git(folder, "rev-parse", "--show-toplevel") or folder).removesuffix("\n")
    others = _git(folder, "ls-files", "-z", "--others") or ""
    considered = set((_git(folder, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0"))
    files = [os.path.join(top, name) for name in changed.split("\0") if name]  # noqa: PTH118
    for name in filter(None, others.split("\0")):
        file = os.path.join(folder, name)  # noqa: PTH118
        status = _status(file)
        if status is not None and (_is_imported(name) or (name in considered and _is_source(file, status))):
            files.append(file)
    return files


def _is_imported(name: str) -> bool:
    suffixes = (*importlib.machinery.SOURCE_SUFFIXES, *importlib.machinery.EXTENSION_SUFFIXES)
    return name.endswith(suffixes)


def _is_source(file: str, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and (_is_imported(file) or status.st_size < LARGEST_SOURCE)


def _digest(file: str) -> str:
    """The SHA-256 of a file, "" if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as stream:  # noqa: PTH123
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def differing(names: list[str]) -> list[str]:
    """One sentence for each package with files that its RECORD does not describe, or without a RECORD."""
    found = []
    for name in names:
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        record = one.read_text("RECORD")
        if record is None:
            found.append(f"{name} has no RECORD, so its files cannot be compared with what was published.")
            continue
        folder = str(one.locate_file(""))
        rows = [row for row in _record_of(one)[0] if row[1]]
        wrong = [row[0] for row in rows if _digest(os.path.join(folder, row[0])) != row[1]]  # noqa: PTH118
        if wrong:
            more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
            listed = ", ".join(wrong[:MOST_NAMED])
            found.append(f"Files of {name} are not those that were published: {listed}{more}.")
    return found


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--verify"]:
        answer: object = differing([name for name in sys.argv[2].split(",") if name])
    else:
        answer = facts()
    print(f"\n{ANSWER}{json.dumps(answer)}")

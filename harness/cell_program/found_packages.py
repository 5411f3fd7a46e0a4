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
import io
import json
import os
import platform
import site
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

GIT_SECONDS = 30.0
MOST_NAMED = 5
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
    return {
        "version": platform.python_version(),
        "prefix": sys.prefix,
        "site_packages": sysconfig.get_paths()["purelib"],
        "packages": dict(sorted(packages.items())),
        "elsewhere": _elsewhere(),
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
    """The commit that is checked out in a folder, with `+changed` if tracked files differ; "" if unknown."""
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    said = []
    for arguments in commands:
        try:
            done = subprocess.run(
                ["git", "-c", f"safe.directory={folder}", "-C", folder, *arguments],  # noqa: S607 - of the PATH
                capture_output=True,
                text=True,
                timeout=GIT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        said.append(done.stdout.strip())
    return said[0] + ("+changed" if said[1] else "")


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
        wrong = [path for path, digest in _digests(record) if not _has_digest(one, path, digest)]
        if wrong:
            more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
            listed = ", ".join(wrong[:MOST_NAMED])
            found.append(f"Files of {name} are not those that were published: {listed}{more}.")
    return found


def _digests(record: str) -> list[tuple[str, str]]:
    rows = csv.reader(io.StringIO(record))
    return [
        (row[0], row[1].partition("=")[2]) for row in rows if len(row) > 1 and row[1].startswith("sha256=")
    ]


def _has_digest(one: metadata.Distribution, path: str, digest: str) -> bool:
    try:
        data = Path(str(one.locate_file(path))).read_bytes()
    except OSError:
        return False
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=") == digest


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--verify"]:
        answer: object = differing([name for name in sys.argv[2].split(",") if name])
    else:
        answer = facts()
    print(f"\n{ANSWER}{json.dumps(answer)}")

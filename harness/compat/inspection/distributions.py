"""Reads the metadata of installed packages from their `.dist-info` folders. Imports nothing of them."""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.matrix.cells.pins import normal_package

MAX_METADATA_BYTES = 4 << 20
_SITE = re.compile(r"python3\.\d+")


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed package.

    folder: its `.dist-info`. commit: if it was installed from a repository. editable: the folder or address
    of an editable installation. tags: the platform tags of its wheel.
    """

    name: str
    version: str
    folder: Path
    requires: tuple[str, ...] = ()
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    commit: str = ""
    editable: str = ""

    @property
    def site(self) -> Path:
        """The folder in which it is installed."""
        return self.folder.parent


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A Python environment that can be read.

    sites: its site-packages. python: its version, such as 3.11.9. arch: its machine. libraries: folders in
    which shared libraries of the system are, for an image; empty for this host. root: the folder that no read
    leaves; "/" for this host.
    """

    sites: tuple[Path, ...]
    python: str
    arch: str
    where: str
    libraries: tuple[Path, ...] = ()
    root: Path = Path("/")

    @property
    def is_on_host(self) -> bool:
        """Whether its libraries are loaded by the dynamic loader of this host."""
        return self.root == Path("/")


def read_distributions(sites: tuple[Path, ...]) -> Iterator[Distribution]:
    """The packages of all folders, in the order in which Python searches them."""
    for site in sites:
        for folder in sorted(site.glob("*.dist-info")):
            found = _distribution(folder)
            if found is not None:
                yield found


def leftovers(sites: tuple[Path, ...]) -> tuple[Path, ...]:
    """Folders that pip renamed while it removed a package, and did not delete."""
    return tuple(path for site in sites for path in sorted(site.glob("~*")))


def _distribution(folder: Path) -> Distribution | None:
    metadata = _headers(folder / "METADATA")
    stem = folder.name.removesuffix(".dist-info")
    name, _, version = stem.partition("-")
    if metadata is None:
        # Without METADATA pip does not see the package either, but its files are there.
        return None
    direct = _direct_url(folder / "direct_url.json")
    return Distribution(
        name=normal_package(str(metadata.get("Name", name))),
        version=str(metadata.get("Version", version)),
        folder=folder,
        requires=tuple(map(str, metadata.get_all("Requires-Dist") or ())),
        requires_python=str(metadata.get("Requires-Python") or ""),
        tags=_tags(folder / "WHEEL"),
        commit=direct[0],
        editable=direct[1],
    )


def _headers(file: Path) -> email.message.Message | None:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_METADATA_BYTES)
    except OSError:
        return None
    head = data.partition(b"\n\n")[0].decode("utf-8", "replace")
    return email.parser.Parser(policy=email.policy.compat32).parsestr(head, headersonly=True)


def _tags(file: Path) -> tuple[str, ...]:
    headers = _headers(file)
    return tuple(map(str, headers.get_all("Tag") or ())) if headers is not None else ()


def _direct_url(file: Path) -> tuple[str, str]:
    """The commit of a repository, and the address of an editable installation; "" for none."""
    try:
        found = json.loads(file.read_bytes()[:MAX_METADATA_BYTES])
        commit = str(found.get("vcs_info", {}).get("commit_id", ""))
        editable = str(found["url"]) if found.get("dir_info", {}).get("editable") else ""
    except (OSError, ValueError, AttributeError, KeyError, RecursionError):
        return "", ""
    return (commit if re.fullmatch(r"[0-9a-f]{7,64}", commit) else ""), editable


def python_of_site(site: Path) -> str:
    """The minor version of Python that a site-packages folder is of, by its path, or ""."""
    found = [part for part in site.parts if _SITE.fullmatch(part)]
    return found[-1].removeprefix("python") if found else ""

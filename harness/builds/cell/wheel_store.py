"""The wheels of environments, stored under the SHA-256 that locks have for them.

Environments with equal packages download them once. A stored wheel is compared with its digest whenever it is
used, so a damaged or edited one is downloaded again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import filelock
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from harness.digest import digest_file
from harness.errors import InfrastructureError, InputError
from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import IndexSettings, local_path
from harness.sources.packages.lockfile import LockedPackage
from harness.sources.packages.program_runner import ProgramRunner
from harness.sources.packages.remote_file import download_file

STORE = "wheels"
DOWNLOADS = 8
SECONDS_TO_WAIT = 1500.0


@dataclass(frozen=True, kw_only=True)
class WheelStore:
    """Stored wheels below `cache`, for environments with the interpreter `python` of version `minor`.

    work: a folder of the task. command: runs a program.
    """

    cache: Path
    python: Path
    minor: str
    settings: IndexSettings
    work: Path
    command: ProgramRunner

    def collect(self, packages: Sequence[LockedPackage]) -> Path | None:
        """A folder with a wheel for every package; None if one could not be downloaded.

        The installer then finds out, and reports, what is wrong with it.
        """
        store = self.cache / STORE
        store.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(store / ".lock", timeout=SECONDS_TO_WAIT):
                found = self._stored(packages)
                missing = [package for package in packages if package.name not in found]
                found |= self._download(missing)
        except OSError:
            return None
        if len(found) < len(packages):
            return None
        folder = self.work / "wheels"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for wheel in found.values():
            (folder / wheel.name).symlink_to(wheel)
        return folder

    def _stored(self, packages: Iterable[LockedPackage]) -> dict[str, Path]:
        """Package -> its stored wheel for this interpreter. Wheels with another digest are removed."""
        tags = _supported_tags(self.minor)
        found: dict[str, Path] = {}
        for package in packages:
            for folder in (self.cache / STORE / digest for digest in _sha256(package)):
                for wheel in folder.glob("*.whl"):
                    if digest_file(wheel) != folder.name:
                        wheel.unlink()
                    elif _fits(wheel.name, tags):
                        found[package.name] = wheel
        return found

    def _download(self, packages: Sequence[LockedPackage]) -> dict[str, Path]:
        """Package -> its wheel, for the packages whose wheel could be downloaded and has a locked digest."""
        if not packages:
            return {}
        urls = self._urls(packages)
        wanted = [package for package in packages if package.name in urls]
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            wheels = pool.map(lambda package: self._fetch(package, urls[package.name]), wanted)
            return {package.name: wheel for package, wheel in zip(wanted, wheels, strict=True) if wheel}

    def _urls(self, packages: Sequence[LockedPackage]) -> dict[str, str]:
        """Package -> the URL of the wheel that uv selects for the interpreter; empty if the index fails."""
        pins = [f"{package.name}=={package.version}" for package in packages]
        index = PackageIndex(settings=self.settings, command=self.command)
        try:
            files = index.files(pins, self.python)
        except (InputError, InfrastructureError):
            return {}
        urls: dict[str, str] = {}
        for file in files:
            if file.name.endswith(".whl"):
                urls.setdefault(file.package, file.url)
        return urls

    def _fetch(self, package: LockedPackage, url: str) -> Path | None:
        """The wheel at `url`, None if it cannot be downloaded or is not a locked one."""
        path = local_path(url)
        try:
            if path is not None:
                return path if digest_file(path) in _sha256(package) else None
            with tempfile.TemporaryDirectory(dir=self.cache / STORE, prefix=".fetching-") as folder:
                wheel = Path(folder) / Path(unquote(urlsplit(url).path)).name
                download_file(url, self.settings, wheel)
                digest = digest_file(wheel)
                if digest not in _sha256(package):
                    return None
                stored = self.cache / STORE / digest / wheel.name
                stored.parent.mkdir(exist_ok=True)
                return wheel.replace(stored)
        except OSError:
            return None


def _sha256(package: LockedPackage) -> list[str]:
    return [digest.removeprefix("sha256:") for digest in package.hashes if digest.startswith("sha256:")]


def _supported_tags(minor: str) -> frozenset[Tag]:
    version = tuple(map(int, minor.split(".")))
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset((*cpython_tags(version), *compatible_tags(version, interpreter)))


def _fits(name: str, tags: Collection[Tag]) -> bool:
    try:
        return not parse_wheel_filename(name)[3].isdisjoint(tags)
    except InvalidWheelFilename:
        return False

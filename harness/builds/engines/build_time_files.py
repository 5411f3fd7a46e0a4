"""Collects the files that an image build needs but no layer may contain: the installer and index settings.

This is the only way in which index mirrors, extra indexes, find-links folders, private certificates, netrc,
proxies and git mirrors reach a build. They are below `engine.BUILD_TIME_FOLDER` while a layer is built.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.builds.engines.engine import BUILD_TIME_FOLDER, BuildTimeFiles, Mount
from harness.builds.engines.image_layers import INSTALLER
from harness.builds.lock.cell_lock import LockedSource
from harness.builds.ownership.temporary_folders import memory_folder, temporary_folder
from harness.sources.git.absent_objects import FETCHED
from harness.sources.git.mirrors import MIRRORS, find_source
from harness.sources.packages.index_settings import IndexSettings, local_path

# Variables that refer to files or the session of this host and are not valid in a container.
OF_THIS_HOST = (
    "HOME",
    "PATH",
    "NETRC",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSL_CLIENT_CERT",
    "UV_CACHE_DIR",
    "UV_CONFIG_FILE",
    "UV_CREDENTIALS_DIR",
    "UV_LINK_MODE",
    "UV_PYTHON_INSTALL_DIR",
    "UV_SYSTEM_CERTS",
    "UV_NATIVE_TLS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
# Variables that contain several locations, and the character that separates them.
LOCATIONS = {"UV_FIND_LINKS": ",", "UV_INDEX": " ", "UV_EXTRA_INDEX_URL": " ", "UV_DEFAULT_INDEX": None}
FIXED = {
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "HOME": f"{BUILD_TIME_FOLDER}/home",
}


def build_time_files(
    settings: IndexSettings,
    uv: Path,
    *,
    sources: Sequence[LockedSource] = (),
    environ: Mapping[str, str] = os.environ,
    cache: Path | None = None,
) -> BuildTimeFiles:
    """The files and settings for a build.

    uv: the installer. sources: packages built from repositories; mirrors below NPU_MATRIX_MIRRORS that have
    their commits are mounted. cache: the installer's cache, which the build shares.
    """
    variables = settings.uv_environment()
    secrets: dict[str, bytes] = {}
    mounts = [Mount(source=uv, target=INSTALLER)]
    passed = {name: value for name, value in variables.items() if name not in OF_THIS_HOST}
    for name, separator in LOCATIONS.items():
        if name in passed:
            passed[name], folders = _paths_in_build(passed[name], separator, len(mounts))
            mounts += folders
    if certificates := _certificates(variables):
        secrets["ca.pem"] = certificates
        passed["SSL_CERT_FILE"] = f"{BUILD_TIME_FOLDER}/ca.pem"
    for name, secret in (("NETRC", "netrc"), ("SSL_CLIENT_CERT", "client.pem")):
        path = Path(variables.get(name) or Path(variables.get("HOME", "/nonexistent")) / f".{secret}")
        if path.is_file():
            secrets[secret] = path.read_bytes()
            passed[name] = f"{BUILD_TIME_FOLDER}/{secret}"
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        mounts.append(Mount(source=cache, target=f"{BUILD_TIME_FOLDER}/cache", writable=True))
        passed["UV_CACHE_DIR"] = f"{BUILD_TIME_FOLDER}/cache"
    passed |= {**FIXED, "INDEX_ARGUMENTS": " ".join(settings.uv_arguments())}
    secrets["settings"] = "".join(
        f"{name}={shlex.quote(value)}\n" for name, value in sorted(passed.items())
    ).encode()
    return BuildTimeFiles(secrets=secrets, mounts=(*mounts, *_mirrors(sources, environ)))


@contextlib.contextmanager
def secret_files(secrets: Mapping[str, bytes]) -> Iterator[list[Mount]]:
    """Secrets as files that only this user can read, in memory if possible, removed after the build."""
    with temporary_folder(memory_folder()) as folder:
        mounts = []
        for name, data in secrets.items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_bytes(data)
            mounts.append(Mount(source=path, target=f"{BUILD_TIME_FOLDER}/{name}"))
        yield mounts


def _paths_in_build(value: str, separator: str | None, first: int) -> tuple[str, list[Mount]]:
    """`value` with folders of this host replaced by their paths in the build, and the mounts for them."""
    mounts: list[Mount] = []
    parts = value.split(separator) if separator else [value]
    for index, part in enumerate(parts):
        path = local_path(part.replace("%2C", ","))
        if path is not None and path.is_absolute() and path.is_dir():
            # The pages of an index folder link to files next to it, so its parent is mounted.
            root = path.parent if path.name == "simple" else path
            target = f"{BUILD_TIME_FOLDER}/folder-{first + len(mounts)}"
            mounts.append(Mount(source=root, target=target))
            parts[index] = f"file://{target}/{path.relative_to(root)}".removesuffix("/.")
    return (separator or "").join(parts), mounts


def _certificates(variables: Mapping[str, str]) -> bytes:
    """All certificates that this host trusts for downloads, as one file."""
    paths = ssl.get_default_verify_paths()
    named = variables.get("SSL_CERT_FILE") or variables.get("SSL_CERT_DIR")
    location = Path(named or paths.cafile or paths.openssl_cafile)
    if location.is_dir():
        files = {path.resolve() for path in location.iterdir() if path.suffix in (".pem", ".crt")}
        return b"".join(path.read_bytes() for path in sorted(files) if path.is_file())
    return location.read_bytes() if location.is_file() else b""


def _mirrors(sources: Sequence[LockedSource], environ: Mapping[str, str]) -> Iterator[Mount]:
    folders = [Path(folder) for name in (MIRRORS, FETCHED) if (folder := environ.get(name, ""))]
    for source in sources:
        repository = find_source(folders, source.commit, source.repository)
        if repository is not None:
            yield Mount(source=repository.path, target=f"{BUILD_TIME_FOLDER}/git/{source.package}")

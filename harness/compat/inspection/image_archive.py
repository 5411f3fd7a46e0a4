"""Reads a container image from a file: `docker save`, `podman save`, an OCI archive, or a file system as tar.

Nothing of the image is run, and it is not extracted as an image: of its layers, the regular files below
site-packages and the shared libraries of the system are copied to a folder, under names that cannot leave it.
Links, devices, owners and permissions of the image are not created.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harness.compat.inspection.distributions import Installation, python_of_site
from harness.errors import InputError, Location

MAX_MANIFEST_BYTES = 8 << 20
MAX_FILE_BYTES = 8 << 30
MAX_FILES = 2_000_000
#: Of the free disk space, this part may be used.
SHARE_OF_DISK = 0.8
CHUNK = 1 << 20
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
_WANTED = re.compile(
    r"(?:.*/)?(?:site|dist)-packages/.+|(?:usr/)?lib(?:64)?/(?:[\w-]+-linux-gnu/)?[^/]+\.so(?:\.[\w.]+)?"
    r"|usr/local/(?:Ascend/.+|lib/[^/]+)\.so(?:\.[\w.]+)?|usr/local/Ascend/.+/(?:version|\w+_install)\.info"
)
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_CANN = re.compile(r"(?:^|\n)[Vv]ersion\s*=\s*\[?([0-9][\w.]*)")


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """What was copied. folder: with the paths of the image. arch: "" if the image does not say."""

    folder: Path
    arch: str
    cann: str
    unread: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Copy:
    """The state while layers are copied, lowest first. links: name of a link -> its target, as texts."""

    folder: Path
    limit: int
    written: int = 0
    files: int = 0
    links: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def is_image(file: Path) -> bool:
    """Whether a file is a tar archive, perhaps compressed."""
    try:
        return tarfile.is_tarfile(file)
    except (OSError, EOFError):
        return False


def read_image(file: Path, folder: Path) -> ImageFiles:
    """Copy what is wanted of an image into `folder`. InputError if the file is no image."""
    limit = int(shutil.disk_usage(folder).free * SHARE_OF_DISK)
    copy = _Copy(folder=folder, limit=limit)
    try:
        with tarfile.open(file) as archive:
            layers, arch = _layers(archive, file)
            if layers is None:
                _copy_layer(archive, copy, file)
            for name in layers or ():
                _copy_blob(archive, name, copy, file)
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        raise _unreadable(file, str(error)) from error
    _create_links(copy)
    return ImageFiles(folder=folder, arch=arch, cann=_cann_version(folder), unread=tuple(copy.unread))


def image_installation(image: ImageFiles, where: str) -> Installation:
    """The Python environment of the image that has most packages. InputError if there is none."""
    sites = {site: len(list(site.glob("*.dist-info"))) for site in _site_folders(image.folder)}
    best = max(sites, key=lambda site: sites[site], default=None)
    if best is None or not sites[best]:
        raise InputError(
            "this image has no installed Python packages",
            where=Location(where),
            why="no site-packages or dist-packages folder in it has a .dist-info folder",
            fix="name an image with a Python environment",
        )
    python = python_of_site(best)
    group = [site for site in sites if python_of_site(site) in ("", python) and sites[site] and site != best]
    libraries = {path.parent for path in image.folder.rglob("*.so*") if not _in_site(path, image.folder)}
    return Installation(
        sites=(best, *group),
        python=python,
        arch=image.arch,
        where=f"image {where}",
        libraries=tuple(sorted(libraries)),
        root=image.folder,
    )


def _in_site(path: Path, root: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.relative_to(root).parts))


def _site_folders(root: Path) -> Iterator[Path]:
    for name in ("site-packages", "dist-packages"):
        yield from sorted(path for path in root.rglob(name) if path.is_dir())


def _layers(archive: tarfile.TarFile, file: Path) -> tuple[list[str] | None, str]:
    """The members with the layers, lowest first, and the architecture; None for a plain file system."""
    names = {member.name.removeprefix("./"): member for member in archive.getmembers()}
    if "manifest.json" in names:
        entry = _json(archive, names, "manifest.json")
        first = entry[0] if isinstance(entry, list) and entry else {}
        config = _json(archive, names, str(first.get("Config", "")))
        return [str(name) for name in first.get("Layers", ())], _arch(config)
    if "index.json" in names:
        manifest = _oci_manifest(archive, names, _json(archive, names, "index.json"))
        config = _json(archive, names, _blob(manifest.get("config", {})))
        return [_blob(layer) for layer in manifest.get("layers", ())], _arch(config)
    if any(name.startswith(("usr/", "lib/", "opt/", "home/")) for name in names):
        return None, ""
    raise _unreadable(file, "it has neither manifest.json nor index.json nor a file system")


def _oci_manifest(archive: tarfile.TarFile, names: Mapping[str, tarfile.TarInfo], index: object) -> dict:  # type: ignore[type-arg]
    for _ in range(4):
        entries = index.get("manifests") if isinstance(index, dict) else None
        if not entries:
            break
        index = _json(archive, names, _blob(entries[0]))
    return index if isinstance(index, dict) else {}


def _blob(entry: object) -> str:
    digest = str(entry.get("digest", "")) if isinstance(entry, dict) else ""
    return f"blobs/{digest.replace(':', '/', 1)}"


def _arch(config: object) -> str:
    found = str(config.get("architecture", "")) if isinstance(config, dict) else ""
    return _ARCHITECTURES.get(found, found)


def _json(archive: tarfile.TarFile, names: Mapping[str, tarfile.TarInfo], name: str) -> object:
    member = names.get(name)
    stream = archive.extractfile(member) if member is not None and member.isreg() else None
    if stream is None:
        raise ValueError(f"it names {name!r}, which is not in it")
    return json.loads(stream.read(MAX_MANIFEST_BYTES))


def _copy_blob(archive: tarfile.TarFile, name: str, copy: _Copy, file: Path) -> None:
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise ValueError(f"it names the layer {name!r}, which is not in it")
    if stream.read(4) == b"\x28\xb5\x2f\xfd":
        raise ValueError("its layers are compressed with zstd; save it with docker save")
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|*") as layer:
        _copy_layer(layer, copy, file)


def _copy_layer(layer: tarfile.TarFile, copy: _Copy, file: Path) -> None:
    """Copy the wanted files of a layer over those of lower ones; whiteouts remove files."""
    for member in layer:
        parts = PurePosixPath(member.name.lstrip("/")).parts
        if not parts or ".." in parts:
            continue
        name = "/".join(part for part in parts if part != ".")
        base = parts[-1]
        if base == OPAQUE:
            _remove(copy, "/".join(parts[:-1]), keep_folder=True)
        elif base.startswith(WHITEOUT):
            _remove(copy, "/".join((*parts[:-1], base.removeprefix(WHITEOUT))))
        elif not _WANTED.fullmatch(name):
            continue
        elif member.issym():
            copy.links[name] = member.linkname
        elif member.islnk():
            copy.links[name] = f"/{member.linkname.lstrip('/')}"
        elif member.isreg():
            _write(layer, member, name, copy, file)


def _write(layer: tarfile.TarFile, member: tarfile.TarInfo, name: str, copy: _Copy, file: Path) -> None:
    copy.files += 1
    copy.written += member.size
    if copy.files > MAX_FILES or copy.written > copy.limit:
        raise InputError(
            "this image needs more space than there is",
            where=Location(file),
            why=f"it needs more than {copy.written >> 30} GiB, and {copy.limit >> 30} GiB may be used",
            fix="choose a folder with more space: TMPDIR=/path npu-matrix inspect ...",
        )
    place = copy.folder / name
    copy.links.pop(name, None)
    if place.exists():
        _remove(copy, name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        copy.unread.append(f"{name} lies below a file")
        return
    stream = layer.extractfile(member)
    if stream is None or member.size > MAX_FILE_BYTES:
        copy.unread.append(f"{name} is too large")
        return
    with place.open("xb") as target:
        shutil.copyfileobj(stream, target, CHUNK)


def _remove(copy: _Copy, name: str, *, keep_folder: bool = False) -> None:
    place = copy.folder / name
    below = f"{name}/" if name else ""
    for link in [one for one in copy.links if one.startswith(below)]:
        del copy.links[link]
    if not keep_folder:
        copy.links.pop(name, None)
    if place == copy.folder and not keep_folder:
        return
    if place.is_dir():
        shutil.rmtree(place)
        if keep_folder:
            place.mkdir(parents=True, exist_ok=True)
    elif place.exists():
        place.unlink()


def _create_links(copy: _Copy) -> None:
    """Links as hard links to the files that they name, if these were copied. Others do not exist."""
    for name, target in copy.links.items():
        place = copy.folder / name
        found = _target(copy, name, target)
        if found is not None and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(found)


def _target(copy: _Copy, name: str, target: str) -> Path | None:
    for _ in range(16):
        parts: list[str] = [] if target.startswith("/") else list(PurePosixPath(name).parent.parts)
        for part in PurePosixPath(target.lstrip("/")).parts:
            if part == "..":
                parts = parts[:-1]
            elif part != ".":
                parts.append(part)
        found = "/".join(parts)
        place = copy.folder / found
        if place.is_file():
            return place
        if found not in copy.links:
            return None
        name, target = found, copy.links[found]
    return None


def _cann_version(folder: Path) -> str:
    """The version of the CANN toolkit in the image, by the file that its installer writes."""
    for pattern in ("ascend_toolkit_install.info", "version.info"):
        for path in sorted((folder / "usr/local/Ascend").rglob(pattern)):
            if "toolkit" in path.as_posix():
                found = _CANN.search(path.read_text("utf-8", "replace")[:10_000])
                if found:
                    return found[1]
    return ""


def _unreadable(file: Path, why: str) -> InputError:
    return InputError(
        "this is not a container image that can be read",
        where=Location(file),
        why=why[:300],
        fix="write one with docker save IMAGE -o FILE, or podman save --format oci-archive",
    )

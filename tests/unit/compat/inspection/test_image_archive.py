"""Container images as files: the forms that engines write, and images that are not what they say."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from harness.compat.inspection.environments import installed_inventory
from harness.compat.inspection.image_archive import image_installation, is_image, read_image
from harness.compat.inspection.stated_packages import SourceKind
from harness.errors import InputError

SITE = "opt/venv/lib/python3.11/site-packages"


def tar_of(files: dict[str, bytes | tuple[str, str]]) -> bytes:
    """A tar; a pair is a link: its kind and its target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type = tarfile.SYMTYPE if content[0] == "symlink" else tarfile.LNKTYPE
                member.linkname = content[1]
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def package(name: str, version: str) -> dict[str, bytes]:
    return {
        f"{SITE}/{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n\n".encode(),
        f"{SITE}/{name}/__init__.py": b"",
    }


def docker_archive(*layers: bytes) -> bytes:
    names = [f"layer{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "Layers": names}]
    return tar_of(
        {
            **dict(zip(names, layers, strict=True)),
            "config.json": json.dumps({"architecture": "arm64"}).encode(),
            "manifest.json": json.dumps(manifest).encode(),
        }
    )


def oci_archive(*layers: bytes) -> bytes:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    config = blob(json.dumps({"architecture": "amd64"}).encode())
    stored = [blob(gzip.compress(layer)) for layer in layers]
    manifest = blob(json.dumps({"config": config, "layers": stored}).encode())
    return tar_of({**blobs, "index.json": json.dumps({"manifests": [manifest]}).encode()})


def read(tmp_path: Path, data: bytes):
    file, folder = tmp_path / "image.tar", tmp_path / "copy"
    file.write_bytes(data)
    folder.mkdir()
    assert is_image(file)
    image = read_image(file, folder)
    installation = image_installation(image, "image.tar")
    return image, installation, installed_inventory(installation, SourceKind.IMAGE)[0]


@pytest.mark.parametrize(("archive", "arch"), [(docker_archive, "aarch64"), (oci_archive, "x86_64")])
def test_upper_layers_replace_and_remove_files(tmp_path: Path, archive, arch: str) -> None:
    lower = tar_of({**package("torch", "2.7.1"), **package("old", "1.0")})
    upper = tar_of(
        {
            **package("verl", "0.6.1"),
            f"{SITE}/old-1.0.dist-info/.wh..wh..opq": b"",
            f"{SITE}/.wh.old": b"",
            "usr/local/Ascend/ascend-toolkit/8.3.RC1/ascend_toolkit_install.info": b"version=8.3.RC1\n",
        }
    )
    image, installation, inventory = read(tmp_path, archive(lower, upper))
    assert {name: one.version for name, one in inventory.packages.items()} == {
        "torch": "2.7.1",
        "verl": "0.6.1",
    }
    assert (installation.python, installation.arch, image.cann) == ("3.11", arch, "8.3.RC1")
    assert not (image.folder / SITE / "old").exists()


def test_a_file_system_without_layers(tmp_path: Path) -> None:
    data = tar_of({**package("torch", "2.7.1"), "usr/bin/x": b""})
    assert "torch" in read(tmp_path, data)[2].packages


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    hostile = {
        **package("torch", "2.7.1"),
        f"{SITE}/../../../../../../../{outside}": b"x",
        f"/{SITE}/absolute.py": b"x",
        f"{SITE}/link": ("symlink", str(tmp_path)),
        f"{SITE}/link/through.py": b"x",
        f"{SITE}/hard.py": ("hard", "/etc/passwd"),
    }
    image, _installation, _inventory = read(tmp_path, docker_archive(tar_of(hostile)))
    assert not outside.exists()
    assert not (tmp_path / "through.py").exists()
    assert not (image.folder / SITE / "hard.py").exists()
    assert not any(path.is_symlink() for path in image.folder.rglob("*"))


def test_links_inside_the_image_are_followed(tmp_path: Path) -> None:
    files = {
        **package("torch", "2.7.1"),
        "usr/lib/aarch64-linux-gnu/libx.so.1.2": b"x",
        "usr/lib/aarch64-linux-gnu/libx.so.1": ("symlink", "libx.so.1.2"),
    }
    image, _installation, _inventory = read(tmp_path, docker_archive(tar_of(files)))
    assert (image.folder / "usr/lib/aarch64-linux-gnu/libx.so.1").read_bytes() == b"x"


@pytest.mark.parametrize(
    "data",
    [
        tar_of({"readme": b""}),
        tar_of({"manifest.json": b"[]"}),
        tar_of({"manifest.json": b"{"}),
        tar_of({"manifest.json": b'[{"Config": "c", "Layers": ["none"]}]'}),
        docker_archive(b"no tar"),
        docker_archive(b"\x28\xb5\x2f\xfd" + bytes(100)),
        docker_archive(tar_of({"usr/bin/x": b""})),
    ],
)
def test_what_is_no_image_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError):
        read(tmp_path, data)

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness.sources.packages.archive as module
from harness.compat.resolve.archive_metadata import read_archive_metadata
from harness.compat.surface.api_surface import ApiSurface
from harness.errors import InputError
from harness.sources.packages.archive import open_archive
from harness.sources.packages.release_sources import archive_sources, release_requirements
from harness.sources.tree import EXECUTABLE, SYMLINK, tree_digest

MODULES = [f"verl.m{n}" for n in range(4)]
FILES = {"verl/__init__.py": b"x = 1\n", "verl/sub/caf\u00e9.py": b"y = 2\r\n", "verl/empty.py": b""}


def wheel(folder: Path, files: dict[str, bytes], name: str = "verl-1.0-py3-none-any.whl") -> Path:
    file = folder / name
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return file


def sdist(folder: Path, members: list[tuple[tarfile.TarInfo, bytes]], suffix: str = "gz") -> Path:
    file = folder / f"verl-1.0.tar.{suffix}"
    with tarfile.open(file, f"w:{suffix}") as archive:  # type: ignore[call-overload]
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


def plain(path: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(path), data


def special(path: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_wheel_and_an_sdist_of_the_same_files_are_the_same_tree(tmp_path: Path, suffix: str) -> None:
    packed = sdist(tmp_path, [plain(f"verl-1.0/{path}", data) for path, data in FILES.items()], suffix)
    trees = [open_archive(wheel(tmp_path, FILES)), open_archive(packed)]
    assert tree_digest(trees[0]) == tree_digest(trees[1])
    for tree in trees:
        assert {path: tree.read(path) for path in tree.paths()} == FILES
        assert tree.mode("verl/none.py") is None
        assert tree.is_folder("verl/sub")
        assert not tree.is_folder("verl/empty.py")
        with pytest.raises(KeyError):
            tree.read("verl/none.py")


def test_data_folders_of_a_wheel_are_where_they_would_be_installed(tmp_path: Path) -> None:
    tree = open_archive(wheel(tmp_path, {"verl-1.0.data/purelib/verl/a.py": b"a"}))
    assert list(tree.paths()) == ["verl/a.py"]


def test_modes_and_links_of_an_sdist(tmp_path: Path) -> None:
    script, data = plain("verl-1.0/run.sh", b"#!\n")
    script.mode = 0o755
    tree = open_archive(
        sdist(tmp_path, [(script, data), special("verl-1.0/link", tarfile.SYMTYPE, "run.sh")])
    )
    assert tree.mode("run.sh") == EXECUTABLE
    assert tree.mode("link") == SYMLINK
    assert tree.read("link") == b"run.sh"


@pytest.mark.parametrize(
    "path", ["../evil.py", "/etc/passwd", "a/../../b", "C:/x", "a\\..\\b", ".git/config"]
)
def test_paths_that_leave_the_tree_are_refused(tmp_path: Path, path: str) -> None:
    for file in (wheel(tmp_path, {path: b"x"}), sdist(tmp_path, [plain(path, b"x")])):
        with pytest.raises(InputError, match="not used"):
            open_archive(file)


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE])
def test_members_that_are_no_files_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(InputError, match="not a plain file"):
        open_archive(sdist(tmp_path, [special("verl-1.0/x", kind, "verl-1.0/y")]))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bomb"):
        open_archive(wheel(tmp_path, {"verl/zeros.py": bytes(32 << 20)}))


def test_a_tar_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TAR_BYTES", 1 << 20)
    with pytest.raises(InputError, match="unpacks to"):
        open_archive(sdist(tmp_path, [plain("verl-1.0/zeros", bytes(8 << 20)), plain("verl-1.0/b", b"")]))


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    for file in (
        wheel(tmp_path, FILES),
        sdist(tmp_path, [plain(path, data) for path, data in FILES.items()]),
    ):
        with pytest.raises(InputError, match="members"):
            open_archive(file)


def test_a_directory_of_a_million_members_is_refused_before_it_is_read(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + bytes(24) + (4).to_bytes(2, "little") + bytes(16) + b"a.py"
    directory = entry * 1_000_000
    end = b"PK\x05\x06" + bytes(4) + b"\xff\xff\xff\xff"
    file = tmp_path / "verl-1.0-py3-none-any.whl"
    size, offset = len(directory).to_bytes(4, "little"), bytes(4)
    file.write_bytes(directory + end + size + offset + bytes(2))
    with pytest.raises(InputError, match="its directory is 47 MiB"):
        open_archive(file)


def test_links_of_a_wheel_are_links_and_never_followed(tmp_path: Path) -> None:
    file = tmp_path / "verl-1.0-py3-none-any.whl"
    link = zipfile.ZipInfo("verl/passwd.py")
    link.create_system = 3
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    tree = open_archive(file)
    assert tree.mode("verl/passwd.py") == SYMLINK
    assert tree.read("verl/passwd.py") == b"/etc/passwd"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "verl-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("verl/a.py", b"1")
        archive.writestr("verl/a.py", b"2")
    with pytest.raises(InputError, match="two members"):
        open_archive(file)


def test_a_damaged_member_is_reported_when_it_is_read(tmp_path: Path) -> None:
    file = wheel(tmp_path, {"verl/a.py": b"abcdefghij" * 100})
    data = bytearray(file.read_bytes())
    data[45] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        open_archive(file).read("verl/a.py")


@pytest.mark.parametrize("cut", [0, 10, 60, -30])
def test_a_file_cut_short_is_reported(tmp_path: Path, cut: int) -> None:
    makers: list[Callable[[], Path]] = [
        lambda: wheel(tmp_path, FILES),
        lambda: sdist(tmp_path, [plain(path, data) for path, data in FILES.items()]),
    ]
    for make in makers:
        file = make()
        file.write_bytes(file.read_bytes()[:cut])
        assert not readable(file)


def readable(file: Path) -> bool:
    try:
        tree = open_archive(file)
        return all(isinstance(tree.read(path), bytes) for path in tree.paths())
    except InputError:
        return False


@given(data=st.binary(max_size=600))
def test_any_bytes_are_read_or_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("archive") / "x.whl"
    file.write_bytes(data)
    try:
        tree = open_archive(file)
    except InputError:
        return
    assert all(isinstance(path, str) for path in tree.paths())


def damaged(data: bytes) -> Iterator[bytes]:
    """The data with one bit flipped, and cut off, at places all over it."""
    step = max(1, len(data) // 150)
    for place in range(0, len(data), step):
        yield data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        yield data[:place]


def problem(read: Callable[[Path], object], file: Path) -> Exception | None:
    """The error of reading the file that is no InputError."""
    try:
        read(file)
    except InputError:
        return None
    except Exception as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.parametrize("suffix", ["whl", "gz", "bz2", "xz"])
def test_a_damaged_archive_is_named_or_has_other_content(tmp_path: Path, suffix: str) -> None:
    files = {f"verl/m{n}.py": random.Random(n).randbytes(300).hex().encode() for n in range(4)}
    files["verl-1.0.dist-info/METADATA"] = b"Name: verl\nRequires-Dist: torch\n"
    file = (
        wheel(tmp_path, files)
        if suffix == "whl"
        else sdist(tmp_path, [plain(f"verl-1.0/{path}", data) for path, data in files.items()], suffix)
    )
    reads: dict[str, Callable[[Path], object]] = {
        "tree": lambda path: [open_archive(path).read(name) for name in open_archive(path).paths()],
        "sources": lambda path: list(archive_sources(path)),
    }
    if suffix == "whl":
        reads["requirements"] = release_requirements
        reads["metadata"] = lambda path: read_archive_metadata("verl", "1.0", path)
        reads["surface"] = lambda path: [
            surface.source(one) for surface in [ApiSurface(path)] for one in MODULES
        ]
    failures = set()
    for data in damaged(file.read_bytes()):
        file.write_bytes(data)
        failures |= {f"{name}: {found!r}" for name, read in reads.items() if (found := problem(read, file))}
    assert not failures

"""Fetching the sources of releases: by range, as a whole, and from faulty indexes and archives."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from git_command import commit_all
from package_server import PackageServer
from wheelhouse import record_line, rewritten

from harness.compat.operators.operator_check import pinned_torch_npu
from harness.compat.resolve import resolve_check
from harness.errors import InfrastructureError, InputError
from harness.outcome import Status
from harness.sources.packages import release_fetcher as fetcher_module
from harness.sources.packages import release_sources as module
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.index_settings import IndexSettings
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.release_sources import tree_requirements
from harness.sources.packages.remote_file import NoRangesError, RemoteFile, download, open_remote
from harness.workspace.downloads import run_quietly


def big_wheel(index: Any, **files: str) -> None:
    noise = "".join(chr(33 + (n * n * 7919 + n // 3) % 90) for n in range(3_000_000))
    index.add("big", "1.0", files={"big/core.py": "def f(a): ...\n", "big/data.bin": noise, **files})


def fetched(context: Any, package: str = "big", version: str = "1.0") -> tuple[zipfile.ZipFile, Any]:
    ctx = context({})
    return zipfile.ZipFile(releases(ctx).sources(package, version).file), ctx


def releases(ctx: Any, **more: Any) -> ReleaseFetcher:
    return ReleaseFetcher(cache=ctx.cache, command=ctx.command, **more)


@pytest.fixture(autouse=True)
def small_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels of tests count as large, so that they are read in part."""
    monkeypatch.setattr(fetcher_module, "MAX_WHOLE_WHEEL_BYTES", 0)


def test_only_the_sources_of_a_large_wheel_travel(server: PackageServer, index: Any, context: Any) -> None:
    big_wheel(index)
    size = (index.folder / "big-1.0-py3-none-any.whl").stat().st_size
    archive, ctx = fetched(context)
    assert "big/core.py" in archive.namelist()
    assert "big/data.bin" not in archive.namelist()
    assert archive.read("big-1.0.dist-info/METADATA").startswith(b"Metadata-Version")
    assert 0 < server.sent < size / 2
    before = server.sent
    releases(ctx).sources("big", "1.0")
    assert server.sent == before


def test_an_index_without_ranges_gives_the_whole_file(
    server: PackageServer, index: Any, context: Any
) -> None:
    big_wheel(index)
    server.ranges = False
    assert "big/core.py" in fetched(context)[0].namelist()


def test_a_damaged_cache_is_fetched_again(index: Any, context: Any) -> None:
    big_wheel(index)
    archive, ctx = fetched(context)
    archive.close()
    Path(str(archive.filename)).write_bytes(b"torn")
    again = releases(ctx).sources("big", "1.0").file
    assert "big/core.py" in zipfile.ZipFile(again).namelist()


@pytest.mark.parametrize(("package", "version"), [("big", "2.0"), ("unknown", "1.0")])
def test_a_release_the_index_does_not_have_is_said_to_be_missing(
    index: Any, context: Any, package: str, version: str
) -> None:
    big_wheel(index)
    with pytest.raises(ReleaseNotFoundError):
        fetched(context, package, version)


def test_a_source_package_stands_in_where_there_is_no_wheel(index: Any, context: Any) -> None:
    with tarfile.open(index.folder / "big-1.0.tar.gz", "w:gz") as archive:
        for name, text in {
            "big-1.0/PKG-INFO": "Metadata-Version: 2.2\nName: big\nVersion: 1.0\n",
            "big-1.0/src/big/__init__.py": "x = 1\n",
            "big-1.0/tests/test_x.py": "",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    names = fetched(context)[0].namelist()
    assert "big/__init__.py" in names
    assert "PKG-INFO" in names, "it is beside src"
    assert "tests/test_x.py" not in names


@pytest.mark.parametrize("data", [b"no wheel at all", b"PK\x05\x06" + bytes(18) + b"x" * 50])
def test_a_broken_wheel_is_named(index: Any, context: Any, data: bytes) -> None:
    (index.folder / "big-1.0-py3-none-any.whl").write_bytes(data)
    with pytest.raises(InputError) as caught:
        fetched(context)
    assert "big" in str(caught.value)


def test_a_wheel_that_would_leave_its_folder_is_refused(index: Any, context: Any) -> None:
    big_wheel(index, **{"../../evil.py": "x = 1\n"})
    with pytest.raises(InputError, match="is not used"):
        fetched(context)


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("MAX_MEMBERS", 3, "too many files"), ("MAX_TOTAL_BYTES", 100, "larger than any known")],
)
def test_a_wheel_of_a_size_that_no_package_has_is_refused(
    index: Any, context: Any, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, said: str
) -> None:
    big_wheel(index, **{"big/long.py": "x = 1\n" * 100})
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(InputError, match=said):
        fetched(context)


def test_a_source_that_unpacks_to_more_than_any_module_is_left_out(
    index: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    big_wheel(index, **{"big/zeros.py": "#" * 20_000})
    monkeypatch.setattr(module, "MAX_MEMBER_BYTES", 10_000)
    assert "big/zeros.py" not in fetched(context)[0].namelist()


def test_a_link_in_a_wheel_is_its_text_and_leads_nowhere(
    index: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    big_wheel(index)
    link = zipfile.ZipInfo("big/passwd.py")
    link.create_system = 3
    link.external_attr = 0o120777 << 16
    wheel = index.folder / "big-1.0-py3-none-any.whl"
    rewritten(wheel, lambda record: f"{record}{record_line('big/passwd.py', b'/etc/passwd')}\n")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    monkeypatch.setattr(fetcher_module, "MAX_WHOLE_WHEEL_BYTES", 1 << 30)
    assert fetched(context)[0].read("big/passwd.py") == b"/etc/passwd"


@pytest.mark.parametrize("suffix", ["whl", "tar.gz"])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_release_cut_short_is_named(index: Any, context: Any, suffix: str, part: float) -> None:
    if suffix == "whl":
        file = index.add("big", "1.0", files={"big/core.py": "x = 1\n" * 500})
    else:
        file = index.folder / "big-1.0.tar.gz"
        text = bytes(range(256)) * 400
        with tarfile.open(file, "w:gz") as archive:
            for name, data in {"big-1.0/PKG-INFO": b"Name: big\n", "big-1.0/big/core.py": text}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises((InputError, InfrastructureError), match="big"):
        fetched(context)


def test_the_metadata_of_the_index_is_read_apart_from_the_wheel(index: Any, context: Any) -> None:
    big_wheel(index)
    (index.folder / "big-1.0-py3-none-any.whl.metadata").write_text("Name: big\nRequires-Dist: x\n")
    assert b"Requires-Dist: x" in releases(context({})).index_metadata("big", "1.0")


@pytest.mark.parametrize(
    ("index_says", "status"),
    [("Requires-Dist: base==2.0\n", Status.FAIL), ("Requires-Dist: base==1.0\n", Status.PASS)],
)
def test_an_archive_that_wants_something_else_than_its_index_says_turns_the_check_red(
    server: PackageServer, index: Any, context: Any, index_says: str, status: Status
) -> None:
    wheel = index.add("big", "1.0", "base==1.0")
    head = "Metadata-Version: 2.1\nName: big\nVersion: 1.0\n"
    wheel.with_name(f"{wheel.name}.metadata").write_text(head + index_says)
    index.folder = server.folder / "base"
    index.folder.mkdir()
    for version in ("1.0", "2.0"):
        index.add("base", version)
    pins = {"requirements": ["big==1.0"], "overrides": []}
    measured = resolve_check.run(
        context({"pins": pins, "platform": {"python": "3.11", "arch": "aarch64", "host": False}})
    )
    judgement = resolve_check.judge(measured.measurements, {})
    assert judgement.status is status
    assert any("only the archive requires base==1.0" in reason for reason in judgement.reasons) is (
        status is Status.FAIL
    )


def test_a_name_that_is_none_asks_nobody(context: Any) -> None:
    ctx = context({})
    with pytest.raises(InputError):
        releases(ctx).sources("../x", "1")


def test_reads_join_spans_and_stop_at_the_end(server: PackageServer, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    (server.folder / "file").write_bytes(data)
    file = RemoteFile(f"{server.url}/file", IndexSettings())
    assert file.size == len(data)
    file.prefetch([(0, 100), (50, 2000), (2100, 3000)])
    requests = file.requests
    file.seek(10)
    assert file.read(2000) == data[10:2010]
    assert file.requests == requests
    file.seek(-5, io.SEEK_END)
    assert file.read() == data[-5:]
    assert file.read(10) == b""


def test_a_torn_connection_is_an_error_of_the_network(server: PackageServer) -> None:
    (server.folder / "file").write_bytes(bytes(2_000_000))
    file = RemoteFile(f"{server.url}/file", IndexSettings())
    server.cut = 10
    with pytest.raises(OSError, match="ended after 10"):
        file.read(100)


def test_protocols_that_no_index_speaks_are_refused(server: PackageServer, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="protocol"):
        open_remote("ftp://127.0.0.1/x", IndexSettings())
    (tmp_path / "x").write_bytes(bytes(10))
    with pytest.raises(OSError, match="larger"):
        download((tmp_path / "x").as_uri(), IndexSettings(), 5)
    server.ranges = False
    (server.folder / "file").write_bytes(b"x")
    with pytest.raises(NoRangesError):
        open_remote(f"{server.url}/file", IndexSettings())


def test_a_commit_without_mirrors_is_not_there(tmp_path: Path) -> None:
    assert ReleaseFetcher(cache=tmp_path, command=run_quietly).commit("0" * 40) is None


def test_a_commit_s_own_requirements_say_which_torch_npu_it_is_made_for(tmp_path: Path) -> None:
    upstream = tmp_path / "mirrors/vllm-ascend"
    (upstream / "vllm_ascend").mkdir(parents=True)
    (upstream / "vllm_ascend/__init__.py").write_text("import torch_npu\n")
    (upstream / "requirements.txt").write_text("# build\n--pre\ntorch==2.7.1\ntorch-npu==2.7.1  # NPU\n")
    commit = commit_all(upstream)
    cache, mirrors = tmp_path / "cache", tmp_path / "mirrors"
    sources = ReleaseFetcher(cache=cache, command=run_quietly, mirrors=(mirrors,)).commit(commit)
    assert sources is not None
    assert tree_requirements(sources.file) == ("torch==2.7.1", "torch-npu==2.7.1")
    assert pinned_torch_npu(sources.file) == "2.7.1"


@pytest.mark.parametrize(
    "url", ["http://[::1/a.whl", "http://host:99999999/a.whl", "ftp://host/a.whl", "://a.whl"]
)
def test_an_address_that_no_index_can_mean_is_a_failed_download(url: str) -> None:
    with pytest.raises(OSError, match="not a"):
        download(url, IndexSettings(), 10)

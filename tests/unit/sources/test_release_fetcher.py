"""What is read from the cache is what the index or the lock names, whatever lies in the cache folder."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authenticated_index import AuthenticatedIndex
from package_server import PackageServer

from harness.check import Completed
from harness.digest import VerifiedContents
from harness.errors import InfrastructureError, InputError
from harness.sources.packages import release_fetcher as module
from harness.sources.packages.archive_cache import VERIFIED
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.release_archive import ReleaseArchive, TargetPlatform
from harness.sources.packages.release_fetcher import ReleaseFetcher

TRUE, FALSE = "x = 'published'\n", "x = 'swapped'\n"
# So that a swapped wheel is smaller, and can be given the size of the one that it replaces.
FILLER = f"# {''.join(hashlib.sha256(bytes([n])).hexdigest() for n in range(40))}\n"


@pytest.fixture
def published(server: PackageServer, index: Any) -> Any:
    """An index with digests and one release."""
    server.digests = True
    index.add("big", "1.0", files={"big/core.py": TRUE, "big/filler.py": FILLER})
    return index


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that forgets which files this process has verified."""
    return lambda: monkeypatch.setattr(module, "VERIFIED", VerifiedContents())


def releases(ctx: Any, **more: Any) -> ReleaseFetcher:
    return ReleaseFetcher(cache=ctx.cache, command=ctx.command, **more)


def text(fetcher: ReleaseFetcher) -> str:
    return zipfile.ZipFile(fetcher.sources("big", "1.0").file).read("big/core.py").decode()


def wheel_text(fetcher: ReleaseFetcher) -> str:
    return zipfile.ZipFile(fetcher.archive("big", "1.0")[0]).read("big/core.py").decode()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def locked(file: Path, version: str = "1.0") -> dict[str, ReleaseArchive]:
    return {"big": ReleaseArchive(package="big", version=version, file=file.name, sha256=digest(file))}


def swap(file: Path) -> None:
    """Write another wheel, valid in itself, with the size and times that the file had."""
    status = file.stat()
    with zipfile.ZipFile(file, "w") as archive:
        sha = base64.urlsafe_b64encode(hashlib.sha256(FALSE.encode()).digest()).rstrip(b"=").decode()
        archive.writestr("big/core.py", FALSE)
        archive.writestr("big/__init__.py", "")
        archive.writestr("big-1.0.dist-info/METADATA", "Name: big\nVersion: 1.0\n")
        archive.writestr("big-1.0.dist-info/RECORD", f"big/core.py,sha256={sha},{len(FALSE)}\n")
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = bytes(status.st_size - file.stat().st_size)
    assert file.stat().st_size == status.st_size
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def swap_and_vouch(file: Path) -> None:
    """Swap the file and write its digest into every place beside it that could be believed."""
    swap(file)
    manifest = {"file": file.name, "sha256": digest(file)}
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
    for other in file.parent.rglob("*.json"):
        other.write_text(json.dumps(manifest))


@pytest.mark.parametrize("tamper", [swap, cut, swap_and_vouch, Path.unlink])
@pytest.mark.parametrize("limit", [0, 1 << 30])
@pytest.mark.parametrize("same_process", [False, True])
def test_a_tampered_cache_is_fetched_again(
    published: Any,
    context: Any,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tamper: Callable[[Path], None],
    limit: int,
    same_process: bool,
) -> None:
    monkeypatch.setattr(module, "MAX_WHOLE_WHEEL_BYTES", limit)
    ctx = context({})
    assert text(releases(ctx)) == wheel_text(releases(ctx)) == TRUE
    files = [file for file in ctx.cache.rglob("*") if file.suffix in {".whl", ".zip"}]
    assert len(files) == 2
    for file in files:
        tamper(file)
    if not same_process:
        new_process()
    assert text(releases(ctx)) == wheel_text(releases(ctx)) == TRUE


def test_the_wheel_of_another_version_in_the_folder_of_this_one_is_not_read(
    published: Any, context: Any, new_process: Callable[[], None]
) -> None:
    ctx = context({})
    cached, _archive = releases(ctx).archive("big", "1.0")
    other = published.add("big", "2.0", files={"big/core.py": FALSE})
    cached.write_bytes(other.read_bytes())
    new_process()
    assert wheel_text(releases(ctx)) == TRUE


def test_another_wheel_under_the_same_name_on_the_index_is_another_archive(
    published: Any, context: Any, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context({})
    before = releases(ctx).sources("big", "1.0")
    published.add("big", "1.0", files={"big/core.py": FALSE})
    monkeypatch.setenv("UV_CACHE_DIR", str(ctx.cache / "other-uv-cache"))
    new_process()
    after = releases(ctx).sources("big", "1.0")
    assert before.archive
    assert after.archive
    assert before.archive.sha256 != after.archive.sha256
    assert zipfile.ZipFile(after.file).read("big/core.py").decode() == FALSE


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_locked_archive_that_the_index_replaced_is_never_replaced_by_the_new_one(
    published: Any,
    context: Any,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    monkeypatch.setattr(module, "MAX_WHOLE_WHEEL_BYTES", limit)
    lock = locked(published.folder / "big-1.0-py3-none-any.whl")
    published.add("big", "1.0", files={"big/core.py": FALSE})
    with pytest.raises(InfrastructureError, match="does not have the locked archive") as caught:
        releases(context({}), locked=lock).sources("big", "1.0")
    assert "--check resolve --fresh" in str(caught.value)
    with pytest.raises(InfrastructureError, match="does not have the locked archive"):
        releases(context({}), locked=lock).archive("big", "1.0")


def test_a_locked_archive_is_read_from_the_cache_without_the_index(published: Any, context: Any) -> None:
    ctx = context({})
    lock = locked(published.folder / "big-1.0-py3-none-any.whl")
    assert wheel_text(releases(ctx, locked=lock)) == TRUE

    def unreachable(argv: Any, **_options: Any) -> Completed:
        raise AssertionError(f"started {argv}")

    kept = ReleaseFetcher(cache=ctx.cache, command=unreachable, locked=lock)
    assert wheel_text(kept) == text(kept) == TRUE


def test_the_file_of_the_lock_is_read_and_not_a_file_for_another_platform(
    published: Any, context: Any
) -> None:
    for arch in ("x86_64", "aarch64"):
        tag = f"cp311-cp311-manylinux_2_28_{arch}"
        wheel = published.add("big", "2.0", tag=tag, files={"big/core.py": f"arch = {arch!r}\n"})
        target = TargetPlatform(python="3.11", arch=arch)
        for fetcher in (
            releases(context({}), target=target),
            releases(context({}), locked=locked(wheel, "2.0")),
        ):
            sources = fetcher.sources("big", "2.0")
            assert zipfile.ZipFile(sources.file).read("big/core.py").decode() == f"arch = {arch!r}\n"
            assert sources.archive
            assert sources.archive.file == wheel.name


def test_a_file_that_is_not_the_one_of_its_index_page_is_refused(
    server: PackageServer, published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    false_link = '<a href="/big/{0}#sha256={1}">{0}</a>'
    monkeypatch.setattr(server, "link", lambda file: false_link.format(file.name, "0" * 64))
    with pytest.raises(InputError, match="not the one that the index lists"):
        releases(context({})).archive("big", "1.0")


def test_a_wheel_read_in_part_is_measured_as_such_and_compared_with_its_record(
    published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WHOLE_WHEEL_BYTES", 0)
    sources = releases(context({})).sources("big", "1.0")
    assert sources.archive
    assert sources.archive.in_part
    wheel = published.folder / "big-1.0-py3-none-any.whl"
    assert sources.archive.sha256 == digest(wheel)
    members = {name: zipfile.ZipFile(wheel).read(name) for name in zipfile.ZipFile(wheel).namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, FALSE if name == "big/core.py" else data)
    monkeypatch.setenv("UV_CACHE_DIR", str(wheel.parent.parent / "other-uv-cache"))
    with pytest.raises(InputError, match="is not the file that its RECORD lists"):
        releases(context({})).sources("big", "1.0")


def test_a_verified_file_is_hashed_once(
    published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = releases(context({}), locked=locked(published.folder / "big-1.0-py3-none-any.whl"))
    path, _archive = fetcher.archive("big", "1.0")
    monkeypatch.setattr("harness.digest.digest_file", lambda _path: "")
    assert fetcher.archive("big", "1.0")[0] == path
    os.utime(path)
    assert not VERIFIED.has_digest(path, fetcher.locked["big"].sha256)


def test_an_index_without_digests_is_asked_for_the_file_every_time(
    server: PackageServer, published: Any, context: Any, new_process: Callable[[], None]
) -> None:
    server.digests = False
    ctx = context({})
    cached, archive = releases(ctx).archive("big", "1.0")
    assert archive.sha256 == digest(published.folder / archive.file)
    swap(cached)
    new_process()
    assert wheel_text(releases(ctx)) == TRUE


def test_credentials_of_the_index_are_sent_to_its_host_only(
    server: PackageServer, published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("://", "://user:secret@"))
    received: list[str | None] = []
    answer = server.answer
    monkeypatch.setattr(
        server,
        "answer",
        lambda request: (received.append(request.headers.get("Authorization")), answer(request)),
    )
    assert wheel_text(releases(context({}))) == TRUE
    assert received[-1] == f"Basic {base64.b64encode(b'user:secret').decode()}"


def test_a_release_without_a_wheel_has_no_tree_to_patch(published: Any, context: Any) -> None:
    with pytest.raises(ReleaseNotFoundError):
        releases(context({})).archive("big", "9.9")
    (published.folder / "big-3.0.tar.gz").write_bytes(b"")
    with pytest.raises((ReleaseNotFoundError, InfrastructureError)):
        releases(context({})).archive("big", "3.0")


@pytest.mark.parametrize(("package", "version"), [("../evil", "1"), ("verl", "--index-url=x"), ("", "1")])
def test_names_that_are_no_release_are_refused(context: Any, package: str, version: str) -> None:
    with pytest.raises(InputError, match="is not a valid release"):
        releases(context({})).archive(package, version)


def test_an_unreachable_index_is_an_infrastructure_error(
    server: PackageServer, published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(InfrastructureError):
        releases(context({})).archive("big", "1.0")


@pytest.mark.parametrize("refusal", [401, 403, 407])
def test_a_wrong_password_of_an_index_is_not_a_missing_release(
    published: Any, context: Any, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    with AuthenticatedIndex(published.folder, {"me:right"}, refusal=refusal) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url("me:hunter2"))
        with pytest.raises(InfrastructureError, match=index.host) as caught:
            releases(context({})).archive("big", "1.0")
    assert "hunter2" not in str(caught.value)

"""An archive that the index replaced under the same name is noticed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from package_server import PackageServer

from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_archive import ReleaseArchive, TargetPlatform
from harness.sources.packages.replaced_archives import replaced_archives

HERE = TargetPlatform(python="3.11", arch="x86_64")


def archive(file: Path, version: str = "1.0") -> ReleaseArchive:
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return ReleaseArchive(package="big", version=version, file=file.name, sha256=sha256)


def replaced(ctx: Any, *archives: ReleaseArchive) -> dict[ReleaseArchive, str]:
    index = PackageIndex(settings=index_environment(os.environ), command=ctx.command)
    return dict(replaced_archives({HERE: archives}, index).replaced)


@pytest.fixture(params=["server", "folder"])
def published(request: pytest.FixtureRequest, server: PackageServer) -> Any:
    """An index with digests, or a folder with wheels."""
    server.digests = True
    return request.getfixturevalue("index" if request.param == "server" else "wheels")


def test_another_archive_of_the_same_name_is_noticed_at_once(published: Any, context: Any) -> None:
    kept, changed = (archive(published.add("big", version), version) for version in ("1.0", "2.0"))
    assert replaced(context({}), kept, changed) == {}
    new = published.add("big", "2.0", files={"big/core.py": "x = 2\n"})
    assert replaced(context({}), kept, changed) == {changed: archive(new).sha256}


def test_a_release_that_is_gone_hides_no_other_one(published: Any, context: Any) -> None:
    changed = archive(published.add("big", "1.0"))
    gone = [replace(changed, package=name) for name in ("absent", "missing", "nowhere")]
    published.add("big", "1.0", files={"big/core.py": "x = 2\n"})
    assert set(replaced(context({}), *gone, changed, replace(gone[0], version="3.0"))) == {changed}


def test_without_a_network_nothing_is_replaced(
    published: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = archive(published.add("big", "1.0"))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    index = PackageIndex(settings=index_environment(os.environ), command=context({}).command)
    changes = replaced_archives({HERE: [known]}, index)
    assert (changes.replaced, changes.asked, changes.unreached) == ({}, 1, {known})


def test_a_file_for_another_python_and_an_index_without_digests_say_nothing(
    published: Any, context: Any, server: PackageServer
) -> None:
    other = archive(published.add("big", "1.0", tag="cp310-cp310-manylinux_2_28_x86_64"))
    published.add("big", "1.0")
    published.add("big", "1.0", tag="cp310-cp310-manylinux_2_28_x86_64", files={"big/core.py": "x = 2\n"})
    assert replaced(context({}), other) == {}
    index = PackageIndex(settings=index_environment({}), command=context({}).command)
    assert replaced_archives({}, index).asked == 0

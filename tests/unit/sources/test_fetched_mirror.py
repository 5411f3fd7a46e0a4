"""Mirrors in the cache, fetched from a real git server that fails as servers do."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from git_command import git
from git_server import GitServer, commit_files, git_server, make_repository
from small_disk import small_disk

from harness.errors import HarnessError, InputError
from harness.sources.git import absent_objects
from harness.sources.git.absent_objects import AbsentObjectError
from harness.sources.git.commit_history import commits_in
from harness.sources.git.fetched_mirror import MirrorUpdate, Upstream, check_address, is_here, update_mirror
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone
from harness.sources.git.remote_git import RemoteGit

NOBODY = "http://127.0.0.1:9/owner/project.git"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "served") as running:
        yield running


@pytest.fixture
def upstream(server: GitServer) -> Path:
    folder = server.root / "owner" / "project"
    make_repository(folder, {"setup.py": "one", "pkg/a.py": "a"})
    git(folder, "tag", "v1")
    commit_files(folder, {"setup.py": "two"})
    return folder


def head(folder: Path, revision: str = "HEAD") -> str:
    return git(folder, "rev-parse", revision)


def wanted(server: GitServer, *commits: str, before: tuple[str, ...] = ()) -> Upstream:
    return Upstream(addresses=(*before, server.url("owner/project")), commits=commits)


def update(tmp_path: Path, of: Upstream, *, if_absent: bool = False, **limits: object) -> MirrorUpdate:
    return update_mirror(tmp_path / "mirrors", of, RemoteGit(**limits), if_absent=if_absent)  # type: ignore[arg-type]


def test_a_needed_commit_is_complete_and_other_commits_have_no_files(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    found = update(tmp_path, wanted(server, head(upstream)))
    assert found.complete
    assert found.address == server.url("owner/project")
    repository = Repository(found.folder)
    assert repository.tree(head(upstream)).read("setup.py") == b"two"
    assert repository.has_tag("v1")
    assert repository.commit("HEAD") == head(upstream)
    with pytest.raises(AbsentObjectError, match="partial clone"):
        repository.tree("v1").read("setup.py")


def test_the_next_address_is_used_if_one_is_not_reachable(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    found = update(tmp_path, wanted(server, head(upstream), before=(NOBODY, server.url("owner/none"))))
    assert found.complete
    assert found.address == server.url("owner/project")
    assert "onnect" in found.failures[NOBODY]
    assert "not found" in found.failures[server.url("owner/none")]


def test_without_any_address_it_says_why(tmp_path: Path) -> None:
    found = update(tmp_path, Upstream(addresses=(NOBODY,), commits=("a" * 40,)))
    assert not found.complete
    assert NOBODY in found.missing["a" * 40]


def test_what_is_here_is_not_asked_for_again(tmp_path: Path, server: GitServer, upstream: Path) -> None:
    of = wanted(server, head(upstream))
    update(tmp_path, of)
    server.requests.clear()
    assert update(tmp_path, of, if_absent=True).complete
    assert server.requests == []


def test_on_demand_only_the_needed_commit_is_fetched_and_the_history_later(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    commit = head(upstream)
    found = update(tmp_path, wanted(server, commit), if_absent=True)
    assert found.complete
    repository = Repository(found.folder)
    assert repository.tree(commit).read("setup.py") == b"two"
    assert not repository.has(head(upstream, "v1"))
    assert find_clone([tmp_path / "mirrors"], server.url("owner/project")) is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(absent_objects.FETCHED, str(tmp_path / "mirrors"))
        assert find_clone([tmp_path / "mirrors"], server.url("owner/project")) is None
    assert update(tmp_path, wanted(server, commit)).complete
    assert Repository(found.folder).has(head(upstream, "v1"))
    assert not (found.folder / "shallow").exists()


def test_an_abbreviated_commit_on_demand_is_resolved_without_the_history(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    first = head(upstream, "v1")
    found = update(tmp_path, wanted(server, first[:10]), if_absent=True)
    assert found.complete
    repository = Repository(found.folder)
    assert repository.tree(first[:10]).read("setup.py") == b"one"
    assert repository.commit(first[:10]) == first
    assert not repository.has(head(upstream))
    assert not list(found.folder.parent.glob(".commits-*"))
    assert update(tmp_path, wanted(server, first[:10])).complete
    assert Repository(found.folder).tree("v1").read("setup.py") == b"one"


def test_an_abbreviated_commit_that_is_not_there_is_missing(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    found = update(tmp_path, wanted(server, "0123456789"), if_absent=True)
    assert list(found.missing) == ["0123456789"]


def test_a_host_that_did_not_respond_is_not_asked_again(tmp_path: Path) -> None:
    unreachable: dict[str, str] = {}
    of = Upstream(addresses=(NOBODY,), commits=("a" * 40,))
    update_mirror(tmp_path / "mirrors", of, RemoteGit(), unreachable=unreachable)
    assert list(unreachable) == ["127.0.0.1:9"]


def test_a_transfer_that_is_cut_off_leaves_nothing_wrong_and_can_be_repeated(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    for number in range(3):
        commit_files(upstream, {f"big{number}": os.urandom(40000).hex()})
    of = wanted(server, head(upstream))
    server.cut_after = 400
    found = update(tmp_path, of)
    assert not found.complete
    assert not is_here(tmp_path / "mirrors", of)
    server.cut_after = 0
    assert update(tmp_path, of).complete
    assert Repository(found.folder).tree(head(upstream)).read("big2")


def test_completed_groups_stay_after_a_failure(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.sources.git.fetched_mirror.BLOBS_AT_A_TIME", 1)
    of = wanted(server, head(upstream))
    calls = []

    def fails_later(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            server.cut_after = 60
        absent_objects.fetch_objects(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("harness.sources.git.fetched_mirror.fetch_objects", fails_later)
    assert not update(tmp_path, of).complete
    server.cut_after = 0
    calls.clear()
    assert update(tmp_path, of).complete
    assert len(calls) == 1


def test_a_server_that_stops_responding_is_given_up(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    server.stalls = True
    found = update(tmp_path, wanted(server, head(upstream)), stall_s=0.5)
    assert "sent nothing" in found.failures[server.url("owner/project")]


def test_the_commit_stays_that_object_when_a_branch_is_rewritten(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    commit = head(upstream)
    update(tmp_path, wanted(server, commit))
    git(upstream, "commit", "-q", "--amend", "-m", "other")
    git(upstream, "branch", commit[:12], "HEAD")
    found = update(tmp_path, wanted(server, commit))
    assert found.complete
    assert Repository(found.folder).commit(commit) == commit
    assert Repository(found.folder).commit("main") == head(upstream)


def test_a_commit_that_no_branch_has_is_fetched_by_its_id_and_named(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    commit = head(upstream)
    git(upstream, "commit", "-q", "--amend", "-m", "other")
    found = update(tmp_path, wanted(server, commit))
    assert found.complete
    assert "in no branch or tag" in found.notices[0]
    absent = update(tmp_path, wanted(server, "b" * 40))
    assert not absent.complete


def test_a_server_without_the_history_does_not_make_its_commits_those_of_a_fork(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    shallow = server.root / "owner" / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", upstream.as_uri(), str(shallow))
    first = head(upstream, "v1")
    git(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(shallow, "fetch", "-q", "--depth=1", "origin", first)
    git(shallow, "config", "uploadpack.allowAnySHA1InWant", "true")
    found = update(tmp_path, Upstream(addresses=(server.url("owner/shallow"),), commits=(first,)))
    assert found.complete
    assert not found.notices


def test_a_pinned_tag_that_moves_is_kept_and_named(tmp_path: Path, server: GitServer, upstream: Path) -> None:
    of = Upstream(addresses=(server.url("owner/project"),), tags=("v1",))
    first = head(upstream, "v1")
    assert update(tmp_path, of).complete
    git(upstream, "tag", "-f", "v1", "HEAD")
    found = update(tmp_path, of)
    assert Repository(found.folder).commit("refs/tags/v1") == first
    assert "moved" in found.notices[0]


def test_a_private_repository_is_read_with_a_credential_helper_that_nothing_stores(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.password = "hunter2secret"
    of = wanted(server, head(upstream))
    found = update(tmp_path, of)
    assert "could not read Username" in found.failures[server.url("owner/project")]
    config = tmp_path / "gitconfig"
    config.write_text("[credential]\n helper = \"!printf 'username=reader\\npassword=hunter2secret\\n';:\"\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    found = update(tmp_path, of)
    assert found.complete
    kept = [file for file in found.folder.rglob("*") if file.is_file()]
    assert not [file for file in kept if b"hunter2" in file.read_bytes()]


def test_credentials_of_a_rewritten_address_are_masked(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.password = "right"
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv(
        "GIT_CONFIG_KEY_0", f"url.http://reader:hunter2secret@127.0.0.1:{server.port}/.insteadOf"
    )
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/")
    found = update(
        tmp_path, Upstream(addresses=("https://example.org/owner/project",), commits=(head(upstream),))
    )
    assert not found.complete
    assert "hunter2" not in str(found)


def test_an_address_is_rewritten_by_git(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{server.url('')}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/")
    of = Upstream(addresses=("https://example.org/owner/project",), commits=(head(upstream),))
    assert update(tmp_path, of).complete


@pytest.mark.parametrize(
    "address",
    [
        "ext::sh -c 'touch /tmp/x'",
        "--upload-pack=touch",
        "https://user:password@example.org/x",
        "ftp://example.org/x",
        "ssh://-oProxyCommand=touch/x",
        "-oProxyCommand=touch@host:x",
        "--x@host:y",
        "fd::7",
        "/local/folder",
        "file:///local/folder",
        "https://example.org/x\n[core]",
        "",
    ],
)
def test_addresses_that_git_must_not_get(address: str) -> None:
    assert check_address(address, RemoteGit().protocols)


def test_a_rewrite_to_a_forbidden_protocol_is_refused(
    tmp_path: Path, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{upstream}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/project")
    of = Upstream(addresses=("https://example.org/project",), commits=(head(upstream),))
    assert "not allowed" in next(iter(update(tmp_path, of).failures.values()))
    assert update(tmp_path, of, protocols=("https", "file")).complete


def _update_in_process(mirrors: Path, of: Upstream) -> None:
    assert update_mirror(mirrors, of, RemoteGit(), if_absent=True).complete


def test_an_update_that_was_killed_at_any_request_is_completed_by_the_next_one(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    of = wanted(server, head(upstream))
    _update_in_process(tmp_path / "alone", of)
    requests = len(server.requests)
    assert requests >= 3
    context = multiprocessing.get_context("fork")
    for number in range(1, requests + 1):
        server.requests.clear()
        server.stall_from = number
        mirrors = tmp_path / f"mirrors {number}"
        process = context.Process(target=_update_in_process, args=(mirrors, of))
        process.start()
        until = time.monotonic() + 60
        while len(server.requests) < number and time.monotonic() < until:
            time.sleep(0.01)
        process.kill()
        process.join(60)
        assert not is_here(mirrors, of)
        server.stall_from = 1 << 30
        found = update_mirror(mirrors, of, RemoteGit())
        assert found.complete, (number, found)
        assert Repository(found.folder).tree(head(upstream)).read("setup.py") == b"two"


def test_two_processes_fetch_once(tmp_path: Path, server: GitServer, upstream: Path) -> None:
    of = wanted(server, head(upstream))
    _update_in_process(tmp_path / "alone", of)
    alone = len(server.requests)
    server.requests.clear()
    context = multiprocessing.get_context("fork")
    both = [
        context.Process(target=_update_in_process, args=(tmp_path / "mirrors", of)) for _number in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert len(server.requests) == alone


def test_a_repository_that_is_too_large_is_refused(tmp_path: Path, server: GitServer, upstream: Path) -> None:
    commit_files(upstream, {"huge": os.urandom(200_000).hex()})
    of = wanted(server, head(upstream))
    found = update(tmp_path, of, largest_bytes=100_000)
    assert "larger than" in found.failures[server.url("owner/project")]


def test_a_full_disk_is_an_error_of_its_own(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "git"
    program.write_text("#!/bin/sh\necho 'fatal: write error: No space left on device' >&2\nexit 128\n")
    program.chmod(0o755)
    of = wanted(server, head(upstream))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with pytest.raises(HarnessError) as caught:
        update(tmp_path, of)
    assert caught.value.disk_full


def test_a_real_full_disk_loses_nothing_and_the_next_attempt_completes(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    commit_files(upstream, {"big": os.urandom(3_000_000).hex()})
    of = wanted(server, head(upstream))
    with small_disk(tmp_path / "disk", 2) as disk:
        with pytest.raises(HarnessError) as caught:
            update_mirror(disk / "mirrors", of, RemoteGit())
        assert caught.value.disk_full
        assert not is_here(disk / "mirrors", of)
    assert update(tmp_path, of).complete


def test_a_hostile_repository_runs_nothing(tmp_path: Path, server: GitServer, upstream: Path) -> None:
    marker = tmp_path / "ran"
    hook = upstream / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    (upstream / "link").symlink_to("/etc/passwd")
    commit = commit_files(
        upstream,
        {
            ".gitattributes": "* filter=evil diff=evil\n",
            ".gitmodules": '[submodule "x"]\n path = x\n url = ext::sh -c touch% ' + str(marker) + "\n",
            ".lfsconfig": "[lfs]\n url = http://127.0.0.1:9/\n",
        },
    )
    found = update(tmp_path, wanted(server, commit))
    assert found.complete, found
    assert not marker.exists()
    assert Repository(found.folder).tree(commit).mode("link") == "120000"
    assert not (found.folder / "hooks").exists() or not list((found.folder / "hooks").iterdir())


def test_a_tree_with_a_path_that_leaves_it_is_refused(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    blob = git(upstream, "rev-parse", "HEAD:setup.py")
    tree = (upstream / ".git" / "tree").resolve()
    tree.write_bytes(b"100644 ..\0" + bytes.fromhex(blob))
    oid = git(upstream, "hash-object", "-t", "tree", "-w", "--literally", str(tree))
    commit = git(upstream, "commit-tree", "-m", "x", oid)
    git(upstream, "update-ref", "refs/heads/evil", commit)
    found = update(tmp_path, wanted(server, commit))
    assert not found.complete
    assert "fsck" in str(found.failures) or "hasDotdot" in str(found.failures)


def test_a_missing_file_is_fetched_when_it_is_read_if_that_is_permitted(
    tmp_path: Path, server: GitServer, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = update(tmp_path, wanted(server, head(upstream)))
    monkeypatch.setenv(absent_objects.FETCHED, str(tmp_path / "mirrors"))
    with pytest.raises(AbsentObjectError, match="not in this partial clone") as caught:
        Repository(found.folder).tree("v1").read("setup.py")
    assert "switched off" in str(caught.value)
    monkeypatch.setenv(absent_objects.FETCH, "true")
    repository = Repository(found.folder)
    assert repository.tree("v1").read("setup.py") == b"one"
    assert repository.blob("c" * 40) is None
    server.stalls = True


def test_a_history_that_was_not_fetched_is_no_short_history(
    tmp_path: Path, server: GitServer, upstream: Path
) -> None:
    first, last = head(upstream, "v1"), head(upstream)
    found = update(tmp_path, wanted(server, first, last), if_absent=True)
    with pytest.raises(InputError, match="is not in this repository") as caught:
        commits_in(Repository(found.folder), f"{first}..{last}")
    assert "mirrors update" in str(caught.value)
    update(tmp_path, wanted(server, first, last))
    assert len(commits_in(Repository(found.folder), f"{first}..{last}")) == 1

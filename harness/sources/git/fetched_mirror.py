"""Bare repositories in the cache, without the contents of files except those of the commits that are needed.

`update_mirror` fetches a repository from the first of its addresses that works. Everything that is complete
stays after an interruption: branches and tags are fetched in groups, files in groups of `BLOBS_AT_A_TIME`.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import filelock

from harness.errors import InfrastructureError, InputError, Location
from harness.sources.git.absent_objects import STAMP, fetch_objects
from harness.sources.git.git_repository import COMPLETE, Repository
from harness.sources.git.remote_git import RemoteGit, RemoteGitError
from harness.sources.redact import redact_url

#: A full history of vLLM without files takes a few minutes.
SECONDS_TO_WAIT = 3600.0
#: Seconds after which a server that has sent nothing is considered unreachable.
CONTACT_S = 30.0
REFS_AT_A_TIME = 100
BLOBS_AT_A_TIME = 1000
MOST_REFS = 100_000
#: The commit that was last fetched by its id.
WANTED = "refs/npu-matrix/wanted"
_UNREACHABLE = re.compile(
    r"could not resolve|failed to connect|unable to connect|connection (refused|timed out)|no route to host"
    r"|network is unreachable|sent nothing for|name or service not known|operation timed out",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"not our ref|unadvertised object|couldn't find remote ref|does not support shallow")
_NO_DEPTH = re.compile(r"does not support shallow|does not support --depth")
#: The depth with which git fetches the whole history.
_WHOLE = (1 << 31) - 1
_REF = re.compile(r"refs/(?:heads|tags)/[A-Za-z0-9_][\w.+/@=#%-]*", re.ASCII)
_LINE = re.compile(r"(?:ref: (?P<target>\S+)|(?P<id>[0-9a-f]{40}))\t(?P<name>\S+)")
_FULL_ID = re.compile(r"[0-9a-f]{40}")
_ADDRESS = re.compile(
    r"(?:https?|ssh|git|file)://(?!-)[^\s\x00-\x1f]+|\w[\w.-]*@\w[\w.-]*:[^\s\x00-\x1f:][^\s\x00-\x1f]*|/\S+"
)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """A repository and what is needed of it.

    addresses: in the order in which they are tried. commits: full or abbreviated ids. tags: names of tags
    that versions are pinned to.
    """

    addresses: tuple[str, ...]
    commits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its folder in the cache: owner and name, and a digest of its first address."""
        words = [word for word in re.split(r"[/:]", self.addresses[0].removesuffix("/")) if word][-2:]
        readable = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(words).removesuffix(".git")).lstrip(".")
        return f"{readable[-100:]}-{hashlib.sha256(self.addresses[0].encode()).hexdigest()[:12]}.git"


@dataclass(frozen=True, kw_only=True)
class MirrorUpdate:
    """What an update did.

    address: where it was fetched from, "" if nothing was fetched. missing: commits and tags that are not
    here afterwards -> why. notices: what the user should know, for example that a tag was moved.
    failures: address -> why it could not be used.
    """

    upstream: Upstream
    folder: Path
    address: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether everything that is needed is here."""
        return not self.missing


def check_address(address: str, protocols: Sequence[str]) -> str:
    """Why git must not be given this address, or ""."""
    if not _ADDRESS.fullmatch(address):
        return "it has none of the forms https://HOST/PATH, ssh://HOST/PATH, git://HOST/PATH, USER@HOST:PATH"
    if address.startswith(("/", "file:")):
        return (
            "" if "file" in protocols else "addresses of local folders are used only if the user permits them"
        )
    if "://" not in address:
        return ""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return str(error)
    if parts.password or (parts.username and parts.scheme.startswith("http")):
        return "it contains credentials; use a credential helper of git"
    return "" if parts.scheme in protocols else f"the protocol {parts.scheme} is not permitted"


def is_here(mirrors: Path, upstream: Upstream) -> bool:
    """Whether the cache has all commits and tags that are needed, with all files."""
    return not absent_names(mirrors, upstream)


def absent_names(mirrors: Path, upstream: Upstream) -> list[str]:
    """The needed commits and tags of which not all files are in the cache."""
    return _absent(mirrors / upstream.folder, upstream)


def update_mirror(
    mirrors: Path,
    upstream: Upstream,
    git: RemoteGit,
    *,
    if_absent: bool = False,
    unreachable: dict[str, str] | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> MirrorUpdate:
    """Fetch branches, tags and the files of the needed commits into the cache, under a lock.

    if_absent: fetch nothing if everything that is needed is here, and otherwise only that, without history
    where possible. unreachable: host -> why it did not respond; such hosts are added, and not asked again.
    InfrastructureError if the cache cannot be written or its disk is full; other failures are in the result.
    """
    folder = mirrors / upstream.folder
    if if_absent and is_here(mirrors, upstream):
        return MirrorUpdate(upstream=upstream, folder=folder)
    started = time.time()
    try:
        mirrors.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(mirrors / f".{upstream.folder}.lock", timeout=SECONDS_TO_WAIT):
            # Another process may have done it while this one waited.
            if (if_absent or _updated_since(folder, started)) and is_here(mirrors, upstream):
                return MirrorUpdate(upstream=upstream, folder=folder)
            fetch = _Fetch(folder, upstream, git, progress, history=not if_absent)
            return _update(fetch, {} if unreachable is None else unreachable)
    except filelock.Timeout as error:
        raise InfrastructureError(
            "another process has been updating this mirror for an hour", where=Location(folder)
        ) from error
    except OSError as error:
        raise InfrastructureError(
            "this mirror cannot be written", where=Location(folder), why=error.strerror or str(error)
        ) from error


def _updated_since(folder: Path, started: float) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and stamp.stat().st_mtime >= started


def _update(fetch: _Fetch, unreachable: dict[str, str]) -> MirrorUpdate:
    folder, upstream, git = fetch.folder, fetch.upstream, fetch.git
    update = MirrorUpdate(upstream=upstream, folder=folder)
    for number, address in enumerate(upstream.addresses):
        shown, host = redact_url(address), ""
        why = check_address(address, git.protocols)
        if not why:
            try:
                _create(folder, upstream, git)
                # After the user's `insteadOf` rewrites, which need no network.
                host = _host(git.run(folder, "ls-remote", "--get-url", _remote(number)).strip())
                if host in unreachable:
                    update.failures[shown] = unreachable[host]
                    continue
                fetch.progress(f"fetching {shown}")
                missing = fetch.run(_remote(number))
                update = replace(update, missing=missing, notices=tuple(fetch.notices))
            except RemoteGitError as error:
                if error.disk_full:
                    raise
                why = error.why
                if host and _UNREACHABLE.search(why):
                    unreachable[host] = f"{host} did not respond before"
        if not why and update.complete:
            if fetch.history:
                (folder / STAMP).touch()
            return replace(update, address=shown)
        update.failures[shown] = why or f"it has no {', '.join(update.missing)}"
    reasons = "; ".join(f"{address}: {why}" for address, why in update.failures.items())
    return replace(update, missing=dict.fromkeys(_absent(folder, upstream), reasons or "it has no address"))


def _host(address: str) -> str:
    """The host of an address, or the folder."""
    if "://" in address:
        return address.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return address.partition(":")[0].rpartition("@")[2]


def _create(folder: Path, upstream: Upstream, git: RemoteGit) -> None:
    folder.mkdir(exist_ok=True)
    if not (folder / "HEAD").is_file():
        git.run(folder, "init", "-q", "--bare", "--template=", "--initial-branch=main")
    for number, address in enumerate(upstream.addresses):
        if not check_address(address, git.protocols):
            name = f"remote.{_remote(number)}"
            git.run(folder, "config", f"{name}.url", address)
            git.run(folder, "config", f"{name}.promisor", "true")
            git.run(folder, "config", f"{name}.partialclonefilter", "blob:none")


def _remote(number: int) -> str:
    return "origin" if number == 0 else f"alternative-{number}"


@dataclass
class _Fetch:
    """One attempt to fetch from one address."""

    folder: Path
    upstream: Upstream
    git: RemoteGit
    progress: Callable[[str], None]
    history: bool
    remote: str = ""
    notices: list[str] = field(default_factory=list)

    def run(self, remote: str) -> dict[str, str]:
        """Fetch everything; returns the needed commits and tags that this address does not have."""
        self.remote, self.notices = remote, []
        # A mirror with its history must not become shallow.
        with_history = self.history or (self.folder / STAMP).is_file()
        if with_history or not self._fetch_without_history():
            self._fetch_history()
        missing = {}
        for name in (*self.upstream.commits, *self.upstream.tags):
            commit = self._commit(name)
            if not commit:
                missing[name] = f"{self.remote} does not have it"
                continue
            self._complete(commit)
            # A server that has only a part of the history does not show which branch a commit is in.
            is_whole = self.history and not (self.folder / "shallow").exists()
            if is_whole and not self._has_branch_with(commit):
                self.notices.append(
                    f"commit {name[:12]} is in no branch or tag of its repository: it may be of a fork, or a "
                    "rewritten branch had it"
                )
            self.git.run(self.folder, "update-ref", f"{COMPLETE}{commit}", commit)
        return missing

    def _contact(self, *arguments: str) -> str:
        """What `git ls-remote` prints; a server that does not begin to respond is given up soon."""
        limited = replace(self.git, stall_s=min(self.git.stall_s, CONTACT_S))
        return limited.run(self.folder, "ls-remote", *arguments)

    def _fetch_without_history(self) -> bool:
        """Fetch the needed commits alone; False if that is not possible with this server."""
        names = [*self.upstream.commits, *(f"refs/tags/{name}" for name in self.upstream.tags)]
        absent = [name for name in names if not _resolve(self.folder, name)]
        if absent:
            self._contact(self.remote, "HEAD")
        try:
            absent = self._in_full(absent)
            for name in absent:
                target = name if name.startswith("refs/tags/") else WANTED
                self._fetch([f"+{name}:{target}"], depth=1)
        except RemoteGitError as error:
            if _REFUSED.search(error.why):
                return False
            raise
        return True

    def _in_full(self, names: Sequence[str]) -> list[str]:
        """The names with full ids instead of abbreviated ones; RemoteGitError for one that is not there.

        The server resolves no abbreviation, so all commits are fetched without their files and folders, into
        a folder of their own: in the mirror, git would assume that it has what belongs to them.
        """
        shortened = [name for name in names if not name.startswith("refs/") and not _FULL_ID.fullmatch(name)]
        if not shortened:
            return list(names)
        address = self.git.run(self.folder, "config", f"remote.{self.remote}.url").strip()
        with tempfile.TemporaryDirectory(prefix=".commits-", dir=self.folder.parent) as place:
            commits = Path(place)
            self.git.run(commits, "init", "-q", "--bare", "--template=")
            for key, value in {"url": address, "promisor": "true", "partialclonefilter": "tree:0"}.items():
                self.git.run(commits, "config", f"remote.origin.{key}", value)
            self.progress(f"looking up {', '.join(shortened)} among all commits")
            self.git.run(
                commits,
                *("fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--filter=tree:0", "origin"),
                *("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"),
            )
            known = Repository(commits)
            found = {name: known.commit(name) for name in shortened if known.has(name)}
        if len(found) < len(shortened):
            raise RemoteGitError("a commit is not there", where=Location(address), why="not our ref")
        return [found.get(name, name) for name in names]

    def _fetch_history(self) -> None:
        """Fetch all branches and tags."""
        theirs = self._list_remote()
        ours = self._list_local()
        kept = self._moved_tags(theirs, ours)
        wanted = [name for name, oid in theirs.items() if ours.get(name) != oid and name not in kept]
        gone = [name for name in ours if name.startswith("refs/heads/") and name not in theirs]
        self._remove(gone)
        if (self.folder / "shallow").exists():
            wanted = [name for name in theirs if name not in kept]
        groups = list(_groups(sorted(wanted, key=_natural), REFS_AT_A_TIME))
        for number, group in enumerate(groups, start=1):
            self.progress(f"branches and tags of {self.upstream.folder}: group {number} of {len(groups)}")
            self._fetch([f"+{name}:{name}" for name in group])

    def _list_remote(self) -> dict[str, str]:
        """Branches and tags of the remote; its default branch becomes HEAD."""
        text = self._contact("--symref", self.remote, "HEAD", "refs/heads/*", "refs/tags/*")
        found: dict[str, str] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match and match["target"] and _is_ref(match["target"]):
                self.git.run(self.folder, "symbolic-ref", "HEAD", match["target"])
            elif match and match["id"] and _is_ref(match["name"]):
                found[match["name"]] = match["id"]
        if len(found) > MOST_REFS:
            raise RemoteGitError(
                "this repository cannot be fetched",
                where=Location(self.folder),
                why=f"it has {len(found)} branches and tags, more than {MOST_REFS}",
            )
        return found

    def _list_local(self) -> dict[str, str]:
        text = self.git.run(
            self.folder, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"
        )
        return {name: oid for oid, _space, name in (line.partition(" ") for line in text.splitlines())}

    def _moved_tags(self, theirs: dict[str, str], ours: dict[str, str]) -> set[str]:
        """The tags that versions are pinned to and that now name something else; they stay as they are."""
        moved = {
            name
            for tag in self.upstream.tags
            if (name := f"refs/tags/{tag}") in ours and theirs.get(name) != ours[name]
        }
        self.notices += [
            f"the tag {name.removeprefix('refs/tags/')} was "
            + (f"moved to {theirs[name][:12]}" if name in theirs else "removed")
            + f" by its repository; {ours[name][:12]}, which was fetched before, is kept: pin the commit"
            for name in sorted(moved)
        ]
        return moved

    def _remove(self, names: Sequence[str]) -> None:
        if names:
            self.git.run(
                self.folder, "update-ref", "--stdin", sent="".join(f"delete {name}\n" for name in names)
            )

    def _fetch(self, refspecs: Sequence[str], depth: int = _WHOLE) -> None:
        """Fetch refs with their history, up to this number of commits.

        Without a depth, git 2.39 does not accept that a server lacks a part of the history: it looks for the
        absent parents with another `git fetch` in each `git fetch`, without an end.
        """
        options = ("--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        command = ("fetch", *options, "--filter=blob:none", "--stdin")
        sent = "".join(f"{refspec}\n" for refspec in refspecs)
        try:
            self.git.run(self.folder, *command, f"--depth={depth}", self.remote, sent=sent)
        except RemoteGitError as error:
            if depth != _WHOLE or not _NO_DEPTH.search(error.why):
                raise
            self.git.run(self.folder, *command, self.remote, sent=sent)

    def _commit(self, name: str) -> str:
        """The full id of a needed commit or tag, fetched if no branch has it; "" if this remote lacks it."""
        if name in self.upstream.tags:
            return _resolve(self.folder, f"refs/tags/{name}")
        repository = Repository(self.folder)
        if not repository.has(name) and _FULL_ID.fullmatch(name):
            try:
                self._fetch([f"+{name}:{WANTED}"])
            except RemoteGitError as error:
                if _REFUSED.search(error.why):
                    return ""
                raise
        return repository.commit(name) if Repository(self.folder).has(name) else ""

    def _has_branch_with(self, commit: str) -> bool:
        found = ("for-each-ref", f"--contains={commit}", "--count=1", "refs/heads", "refs/tags")
        return bool(self.git.run(self.folder, *found).strip())

    def _complete(self, commit: str) -> None:
        """Fetch the files of a commit that are not here."""
        absent = _absent_blobs(self.folder, commit)
        for number, group in enumerate(_groups(absent, BLOBS_AT_A_TIME)):
            done = number * BLOBS_AT_A_TIME
            self.progress(f"files of {commit[:12]}: {done} of {len(absent)}")
            fetch_objects(self.folder, group, self.git, self.remote)


def _absent(folder: Path, upstream: Upstream) -> list[str]:
    """The needed commits and tags of which not all files are here."""
    absent = []
    for name in (*upstream.commits, *upstream.tags):
        commit = _resolve(folder, f"refs/tags/{name}" if name in upstream.tags else name)
        if not commit or not Repository(folder).has_ref(f"{COMPLETE}{commit}"):
            absent.append(name)
    return absent


def _resolve(folder: Path, name: str) -> str:
    """The full id of the commit, or ""."""
    if not (folder / "HEAD").is_file():
        return ""
    try:
        return Repository(folder).commit(name)
    except InputError:
        return ""


def _absent_blobs(folder: Path, commit: str) -> list[str]:
    """The ids of the files of a commit that are not in the repository."""
    repository = Repository(folder)
    objects = repository.objects
    return sorted({oid for oid in repository.tree(commit).blob_ids() if oid not in objects})


def _is_ref(name: str) -> bool:
    return (
        bool(_REF.fullmatch(name))
        and ".." not in name
        and "//" not in name
        and not name.endswith((".", "/", ".lock"))
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts v0.9 before v0.10, so that a group of tags has neighbouring commits; branches come last."""
    parts = re.split(r"([0-9]+)", name)
    head = (0, "") if name.startswith("refs/tags/") else (1, "")
    return [head, *((int(part), "") if part.isdecimal() and len(part) < 18 else (0, part) for part in parts)]


def _groups(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

"""Patch survival over 2,000 commits and 20 patches, against a checkout and `git apply --check` for every
pair.

The history is synthetic. The rival's time for all pairs is computed from a random sample of 60 pairs. Work is
the processor time over (distinct pairs x the mean of one in-memory apply), with and without what listing the
commits and finding the files in them takes, which no method is spared.
"""

from __future__ import annotations

import importlib
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, peak_mb, timed
from harness.patchstack.apply.patch_apply import apply_patch
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.history.survival import survival_of_commits
from harness.patchstack.stacks.patch_selection import collect_patches
from harness.sources.git.commit_history import PathFinder, commits_in
from harness.sources.git.git_repository import Repository

SAMPLE = 60
COMMITS, PATCHES, FILES, LINES = 2_000, 20, 40, 600


def git(*argv: str, cwd: Path, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    return subprocess.run(
        ["git", *argv], cwd=cwd, input=data, capture_output=True, env=environment, check=False
    )


def synthetic(folder: Path, seed: int) -> tuple[Path, str, Path]:
    """A linear history in which every commit edits one file, and patches made from random commits of it."""
    rng = random.Random(seed)
    repository, patches = folder / "repo", folder / "patches"
    repository.mkdir()
    patches.mkdir()
    git("init", "-q", "-b", "main", cwd=repository)
    names = [f"pkg/sub{number % 8}/mod{number}.py" for number in range(FILES)]
    files = {name: [f"def f{line}(): return {rng.random()}" for line in range(LINES)] for name in names}
    kept: list[dict[str, list[str]]] = []
    stream = []
    for commit in range(COMMITS + 1):
        changed = names if commit == 0 else [rng.choice(names)]
        for name in changed if commit else []:
            at = rng.randrange(len(files[name]))
            files[name] = [*files[name]]
            files[name][at : at + rng.randint(0, 2)] = [f"x{rng.random()}" for _ in range(rng.randint(1, 3))]
        message = f"commit {commit}".encode()
        stream.append(b"commit refs/heads/main\ncommitter a <a@b> %d +0000\n" % (1_700_000_000 + commit))
        stream.append(b"data %d\n%s\n" % (len(message), message))
        for name in changed:
            body = ("\n".join(files[name]) + "\n").encode()
            stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(body), body))
        if commit % (COMMITS // PATCHES) == 50:
            kept.append(dict(files))
    git("fast-import", "--quiet", cwd=repository, data=b"".join(stream))
    for number, snapshot in enumerate(kept):
        write_patch(patches / f"p{number:02}.patch", snapshot, rng.sample(names, rng.choice([1, 1, 2])), rng)
    return repository, "main~2000..main", patches


def write_patch(file: Path, snapshot: dict[str, list[str]], names: list[str], rng: random.Random) -> None:
    changes = {}
    for name in names:
        old = snapshot[name]
        new = [*old]
        new[rng.randrange(len(new))] = "patched = True"
        changes[name] = (("\n".join(old) + "\n").encode(), ("\n".join(new) + "\n").encode())
    file.write_bytes(diff_files(changes))


def obvious_way(
    repository: Path, pairs: list[tuple[str, Path]], folder: Path
) -> tuple[list[float], list[bool]]:
    """Seconds and result of a checkout and `git apply --check`, for each pair."""
    tree = folder / "tree"
    git("clone", "-q", "--shared", "--no-checkout", str(repository), str(tree), cwd=folder)
    seconds, answers = [], []
    for commit, patch in pairs:
        start = time.perf_counter()
        git("checkout", "-q", "-f", "--detach", commit, cwd=tree)
        answers.append(git("apply", "--check", str(patch), cwd=tree).returncode == 0)
        seconds.append(time.perf_counter() - start)
    return seconds, answers


def read_history(repository: Path, revisions: str, loaded_patches: Any) -> float:
    """CPU seconds to list the commits of a range and to find every patched file in each."""
    cpu, store = time.process_time(), Repository(repository)
    paths = {path for loaded in loaded_patches if loaded.patch for path in loaded.patch.paths}
    finder = PathFinder(store, sorted(paths))
    for commit in commits_in(store, revisions):
        finder.find(commit.tree)
    return time.process_time() - cpu


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        yield from survival(*synthetic(Path(name), 1), Path(name))


def survival(repository: Path, revisions: str, patches: Path, folder: Path) -> Iterator[Figure]:
    # Loading the library is part of the time, not of the work for each pair.
    with timed() as load:
        importlib.import_module("pygit2")
    with timed() as took:
        loaded_patches = collect_patches(patches)
        found = survival_of_commits(Repository(repository), revisions, loaded_patches)
    peak = peak_mb()
    history = read_history(repository, revisions, loaded_patches)
    rng = random.Random(0)
    chosen = [(rng.randrange(len(found.commits)), rng.randrange(len(loaded_patches))) for _ in range(SAMPLE)]
    pairs = [(found.commits[at].id, patches / loaded_patches[number].name) for at, number in chosen]
    seconds, answers = obvious_way(repository, pairs, folder)
    ours = [found.patches[number].verdicts[at].accepted_by_git for at, number in chosen]
    yield Figure(
        claim=f"patch survival, {found.pairs} pairs of commit and patch",
        measured=load.seconds + took.seconds,
        unit="s",
        limit=statistics.mean(seconds) * found.pairs / 100,
        rival=statistics.mean(seconds) * found.pairs,
        rival_name="checkout and git apply --check",
    )
    disagreements = sum(mine != theirs for mine, theirs in zip(ours, answers, strict=True))
    yield Figure(claim=f"of {SAMPLE} pairs, those git judges otherwise", measured=disagreements, limit=0)
    store, one = Repository(repository), []
    for _ in range(200):
        loaded, commit = rng.choice(loaded_patches), rng.choice(found.commits)
        if loaded.patch:
            with timed() as apply:
                apply_patch(loaded.patch, store.tree(commit.id))
            one.append(apply.cpu)
    least = found.distinct * statistics.mean(one)
    yield Figure(
        claim="processor time of a distinct pair over one apply, reading the history left out",
        measured=(took.cpu - history) / least,
        unit="x",
        limit=2,
        rival=took.cpu / least,
        rival_name="with reading the history",
    )
    yield Figure(claim="patch survival, peak memory", measured=peak, unit="MB", limit=500)

"""Patch survival against the obvious way, a checkout and `git apply --check` for every pair, in the same run.

    python benchmarks/patch_survival/bench.py [--repo PATH --range A..B --patches DIR] [--json FILE]

Without --repo a synthetic history of 2,000 commits and 20 patches is made. Reported are ratios and counts:
- speedup: time of the obvious way for all pairs (from a random sample of them) over the time taken here;
- work: CPU time taken over (distinct pairs x the mean CPU time of one in-memory apply to a commit), and
  the same without what listing the commits and finding the files in them takes, which no method is spared;
- agreement: sampled pairs on which strict git says the same (must be all of them);
- memory: peak resident MB.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    from harness.patchstack.format.diff_writer import diff_files

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
    """Seconds and answer of a checkout and `git apply --check`, for each pair."""
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
    from harness.sources.git.commit_history import PathFinder, commits_in
    from harness.sources.git.git_repository import Repository

    cpu, store = time.process_time(), Repository(repository)
    paths = {path for loaded in loaded_patches if loaded.patch for path in loaded.patch.paths}
    finder = PathFinder(store, sorted(paths))
    for commit in commits_in(store, revisions):
        finder.find(commit.tree)
    return time.process_time() - cpu


def run(repository: Path, revisions: str, patches: Path, sample: int, folder: Path) -> dict[str, Any]:
    from harness.patchstack.apply.patch_apply import apply_patch
    from harness.patchstack.history.survival import survival_of_commits
    from harness.patchstack.stacks.patch_selection import collect_patches
    from harness.sources.git.git_repository import Repository

    start = time.perf_counter()
    importlib.import_module("pygit2")  # Loading a library is part of the time, not of the work per pair.
    cpu = time.process_time()
    loaded_patches = collect_patches(patches)
    found = survival_of_commits(Repository(repository), revisions, loaded_patches)
    taken = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = time.process_time() - cpu
    history = read_history(repository, revisions, loaded_patches)
    rng = random.Random(0)
    store, one = Repository(repository), []
    for _ in range(200):
        loaded, commit = rng.choice(loaded_patches), rng.choice(found.commits)
        if loaded.patch:
            begin = time.process_time()
            apply_patch(loaded.patch, store.tree(commit.id))
            one.append(time.process_time() - begin)
    chosen = [(rng.randrange(len(found.commits)), rng.randrange(len(loaded_patches))) for _ in range(sample)]
    seconds, answers = obvious_way(
        repository,
        [(found.commits[at].id, patches / loaded_patches[number].name) for at, number in chosen],
        folder,
    )
    ours = [found.patches[number].verdicts[at].accepted_by_git for at, number in chosen]
    return {
        "commits": len(found.commits),
        "patches": len(loaded_patches),
        "pairs": found.pairs,
        "distinct": found.distinct,
        "seconds": round(taken, 3),
        "speedup": round(statistics.mean(seconds) * found.pairs / taken),
        "cpu_seconds": round(cpu, 3),
        "history_cpu_seconds": round(history, 3),
        "work": round(cpu / (found.distinct * statistics.mean(one)), 2),
        "work_without_history": round((cpu - history) / (found.distinct * statistics.mean(one)), 2),
        "one_apply_us": round(statistics.mean(one) * 1e6),
        "agreement": f"{sum(a == b for a, b in zip(ours, answers, strict=True))}/{sample}",
        "memory_mb": round(memory),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--range")
    parser.add_argument("--patches", type=Path)
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.repo:
            inputs = (asked.repo.absolute(), asked.range, asked.patches.absolute())
        else:
            inputs = synthetic(folder, asked.seed)
        figures = run(*inputs, asked.sample, folder)
    print(json.dumps(figures, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(figures), encoding="utf-8")
    agreed, asked_for = figures["agreement"].split("/")
    return 0 if agreed == asked_for else 1


if __name__ == "__main__":
    sys.exit(main())

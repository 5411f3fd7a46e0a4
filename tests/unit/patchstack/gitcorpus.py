"""Random (file, patch) pairs, and what git does with them."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pygit2
from memory_tree import MemoryTree
from missing_programs import required_program

from harness.sources.tree import TreeFile

NAME = "pkg/mod.py"
#: Few distinct lines: hunks then have several possible places, which is where appliers differ.
WORDS = ["a = 1", "b = 2", "", "    return a", "def f():", "def g(x):", "    pass", "x = é"]


def git_environment() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": "/",
        "LC_ALL": "C",
    }


def git(*argv: str, cwd: Path, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *argv], cwd=cwd, input=data, capture_output=True, env=git_environment(), check=False
    )


@dataclass(frozen=True)
class GitSays:
    accepts: bool
    files: dict[str, bytes]
    message: str


class GitBox:
    """A folder in which `git apply` is run."""

    def __init__(self, folder: Path) -> None:
        required_program("git", "git")
        self.folder = folder
        self.count = 0

    def apply(self, tree: MemoryTree, patch: bytes) -> GitSays:
        self.count += 1
        here = self.folder / str(self.count)
        here.mkdir(parents=True)
        for path, file in tree.files.items():
            target = here / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o755 if file.mode == "100755" else 0o644)
        done = git("apply", "-p1", "--whitespace=nowarn", "-", cwd=here, data=patch)
        files = {
            found.relative_to(here).as_posix(): found.read_bytes()
            for found in here.rglob("*")
            if found.is_file() and not found.is_symlink()
        }
        return GitSays(done.returncode == 0, files, done.stderr.decode("utf-8", "replace"))


def random_lines(rng: random.Random, count: int, *, alike: bool) -> list[str]:
    if alike:
        return [rng.choice(WORDS) for _ in range(count)]
    return [
        f"line {rng.randrange(10_000)}" if rng.random() < 0.8 else rng.choice(WORDS) for _ in range(count)
    ]


def edited(rng: random.Random, lines: list[str], edits: int) -> list[str]:
    lines = list(lines)
    for _ in range(edits):
        at = rng.randrange(len(lines) + 1)
        kind = rng.random()
        if kind < 0.4:
            lines[at:at] = [f"new {rng.randrange(100)}" for _ in range(rng.randint(1, 3))]
        elif kind < 0.7:
            del lines[at : at + rng.randint(1, 3)]
        elif at < len(lines):
            lines[at] = f"changed {rng.randrange(100)}"
    return lines


def content(rng: random.Random, lines: list[str], *, newline: str) -> bytes:
    text = newline.join(lines) + (newline if lines and rng.random() < 0.85 else "")
    return text.encode()


def made_by_git(old: bytes, new: bytes, context: int) -> bytes:
    """git's diff, computed by its library: a process per pair would take most of the test's time."""
    text = pygit2.enums.DiffOption.FORCE_TEXT
    made = pygit2.Patch.create_from(
        old, new, old_as_path=NAME, new_as_path=NAME, flag=text, context_lines=context
    )
    return bytes(made.data)


@dataclass(frozen=True)
class Pair:
    tree: MemoryTree
    patch: bytes
    seed: int


def random_pair(seed: int) -> Pair | None:
    """A patch made by git from one random edit, and a target with other edits of the same file."""
    rng = random.Random(seed)
    newline = "\r\n" if rng.random() < 0.15 else "\n"
    lines = random_lines(rng, rng.randint(0, 40), alike=rng.random() < 0.5)
    old = content(rng, lines, newline=newline)
    new = content(rng, edited(rng, lines, rng.randint(1, 4)), newline=newline)
    context = rng.choice([1, 2, 3, 3, 3, 5])
    patch = made_by_git(old, new, context)
    if not patch:
        return None
    target_newline = newline if rng.random() < 0.9 else "\r\n"
    kind = rng.random()
    if kind < 0.15:
        target = old
    elif kind < 0.25:
        target = new
    else:
        base = edited(rng, lines, rng.randint(0, 3)) if kind < 0.8 else lines + lines
        target = content(rng, base, newline=target_newline)
    return Pair(MemoryTree(files={NAME: TreeFile(data=target)}), patch, seed)


def mutated(rng: random.Random, patch: bytes) -> bytes:
    """The patch with one line or number damaged, moved or duplicated."""
    lines = patch.splitlines(keepends=True)
    kind = rng.randrange(9)
    at = rng.randrange(len(lines))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif kind == 2:
        return patch[: rng.randrange(len(patch) + 1)]
    elif kind == 3:
        data = bytearray(patch)
        data[rng.randrange(len(data))] = rng.choice(b"+-@ \n\\0123456789ab/")
        return bytes(data)
    elif kind == 4:
        lines[at : at + 2] = lines[at : at + 2][::-1]
    elif kind == 5:
        hunks = [number for number, line in enumerate(lines) if line.startswith(b"@@")]
        number = rng.choice(hunks)
        lines[number] = (
            lines[number].replace(b",", b",1", 1)
            if rng.random() < 0.5
            else lines[number].replace(b"-", b"-1", 1)
        )
    elif kind == 6:
        return patch + patch
    elif kind == 7:
        return b"Subject: something\n\n" + patch + b"-- \n2.39\n"
    else:
        return patch.replace(b"\n", b"\r\n")
    return b"".join(lines)

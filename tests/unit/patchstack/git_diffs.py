"""Random trees with every kind of entry, git's diffs between them, and what `git apply` does with these."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pygit2
from gitcorpus import git
from memory_tree import MemoryTree
from missing_programs import required_program

from harness.sources.tree import EXECUTABLE, REGULAR, SYMLINK, DirectoryTree, TreeFile

SUBMODULE = "160000"
NAMES = [
    "a.py",
    "pkg/b.py",
    "sp ace.txt",
    'quo"te',
    "tab\tname",
    "ümläut",
    "back\\slash",
    "data.bin",
    "new\nline",
    "pkg",
    "a.py/inner.py",
]
WORDS = ["a = 1", "b = 2", "", "    return a", "def f():", "class G:", "    pass", "x = é"]
OPTIONS = [
    *(["-U0"], ["-U1"], ["-U3"], ["--binary"], ["--binary", "-U0"], ["--full-index"], ["--text"]),
    *(
        ["-M"],
        ["-M", "--binary"],
        ["-C", "--find-copies-harder"],
        ["--no-renames"],
        ["-D"],
        ["--no-color-moved"],
    ),
    *(
        ["--submodule=log"],
        ["--submodule=diff"],
        ["-W"],
        ["--ita-invisible-in-index"],
        ["--summary", "--patch"],
    ),
    *(["--inter-hunk-context=5"], ["--break-rewrites"], ["--function-context", "-U0"]),
]
Files = Mapping[str, TreeFile]


def random_content(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return b""
    if kind < 0.25:
        return rng.randbytes(rng.randint(1, 300)) + b"\0"
    ending = "\r\n" if kind < 0.4 else "\n"
    words = [rng.choice(WORDS) for _line in range(rng.randint(1, 25))]
    if kind > 0.6:
        words = [f"{word}  # {rng.randrange(1000)}" for word in words]
    return (ending.join(words) + (ending if rng.random() < 0.8 else "")).encode()


def edited(rng: random.Random, file: TreeFile) -> TreeFile:
    return TreeFile(data=_edited(rng, file), mode=file.mode)


def _edited(rng: random.Random, file: TreeFile) -> bytes:
    data = file.data
    if file.mode == SYMLINK:
        return data + b"x"
    if b"\0" in data:
        return data + rng.randbytes(3)
    if rng.random() < 0.1:
        return data.replace(b"\r\n", b"\n") if b"\r" in data else data.replace(b"\n", b"\r\n")
    if rng.random() < 0.1:
        return data.removesuffix(b"\n") if data.endswith(b"\n") else data + b"\n"
    lines = data.splitlines(keepends=True)
    for _edit in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines) + 1)
        if rng.random() < 0.5:
            lines[at:at] = [f"new {rng.randrange(100)} of these lines\n".encode()]
        else:
            del lines[at : at + rng.randint(1, 2)]
    return b"".join(lines)


def with_file(files: Files, name: str, file: TreeFile) -> dict[str, TreeFile]:
    """The files with another one, without those that exclude it: a file cannot also be a folder."""
    kept = {
        other: there
        for other, there in files.items()
        if not name.startswith(f"{other}/") and not other.startswith(f"{name}/")
    }
    return {**kept, name: file}


def random_tree(rng: random.Random) -> dict[str, TreeFile]:
    files: dict[str, TreeFile] = {}
    for name in rng.sample(NAMES, rng.randint(1, 5)):
        kind = rng.random()
        if kind < 0.12:
            file = TreeFile(data=rng.choice([b"a.py", b"../out", b"no where"]), mode=SYMLINK)
        else:
            mode = EXECUTABLE if kind < 0.25 else REGULAR
            file = TreeFile(data=random_content(rng), mode=mode)
        files = with_file(files, name, file)
    return files


def changed_tree(rng: random.Random, files: Files) -> dict[str, TreeFile]:
    new = dict(files)
    for _change in range(rng.randint(1, 3)):
        free = [name for name in NAMES if name not in new]
        name, target = rng.choice(sorted(new) or NAMES), rng.choice(free or NAMES)
        file = new.get(name, TreeFile(data=random_content(rng)))
        match rng.randrange(9):
            case 0 | 1 | 2:
                new = with_file(new, name, edited(rng, file))
            case 3:
                flipped = REGULAR if file.mode == EXECUTABLE else EXECUTABLE
                mode = flipped if file.mode != SYMLINK else SYMLINK
                new = with_file(new, name, TreeFile(data=file.data, mode=mode))
            case 4:
                new.pop(name, None)
            case 5:
                added = TreeFile(data=random_content(rng), mode=rng.choice([REGULAR, EXECUTABLE]))
                new = with_file(new, target, added)
            case 6:
                new.pop(name, None)
                new = with_file(new, target, file if rng.random() < 0.5 else edited(rng, file))
            case 7:
                new = with_file(new, target, file)
            case 8:
                data, mode = rng.choice(
                    [
                        (b"a.py", SYMLINK),
                        (b"b.py", SYMLINK),
                        (file.data or b"text\n", REGULAR),
                        (bytes(40), SUBMODULE),
                    ]
                )
                new = with_file(new, name, TreeFile(data=data, mode=mode))
    return new


@dataclass(frozen=True)
class GitDiff:
    """A diff that git made from one tree to another, and the tree to which it is to be applied."""

    patch: bytes
    target: MemoryTree
    options: list[str]


class GitDiffs:
    """A repository that makes diffs, and folders in which `git apply` is run."""

    def __init__(self, folder: Path) -> None:
        required_program("git", "git")
        self.folder = folder
        self.repository = pygit2.init_repository(str(folder / "repository"), bare=True)
        self.count = 0

    def random(self, seed: int) -> GitDiff | None:
        """None if git's diff is empty."""
        rng = random.Random(seed)
        old = random_tree(rng)
        new = changed_tree(rng, old)
        options = rng.choice(OPTIONS)
        patch = self.between(old, new, options)
        if not patch:
            return None
        target = rng.choice([old, old, new, changed_tree(rng, old), changed_tree(rng, new), {}])
        plain = {name: file for name, file in target.items() if file.mode != SUBMODULE}
        return GitDiff(patch, MemoryTree(files=plain), options)

    def between(self, old: Files, new: Files, options: list[str]) -> bytes:
        made = git("diff", *options, self._tree(old), self._tree(new), cwd=self.folder / "repository")
        assert made.returncode == 0, made.stderr
        return made.stdout

    def series(self, seed: int) -> GitDiff | None:
        """Two or three diffs in one patch, as of `git format-patch --stdout`; None if it is empty."""
        rng = random.Random(seed)
        trees = [random_tree(rng)]
        patch = b""
        for _commit in range(rng.randint(2, 3)):
            trees.append(changed_tree(rng, trees[-1]))
            patch += self.between(trees[-2], trees[-1], options := rng.choice(OPTIONS))
        if not patch:
            return None
        target = rng.choice([trees[0], trees[0], trees[0], trees[-1], changed_tree(rng, trees[0])])
        plain = {name: file for name, file in target.items() if file.mode != SUBMODULE}
        return GitDiff(patch, MemoryTree(files=plain), options)

    def accepts(self, diff: GitDiff, *options: str) -> tuple[bool, str]:
        """Whether `git apply --check` accepts the diff, and its message."""
        here = self._folder(diff)
        done = git("apply", "--check", "--whitespace=nowarn", *options, "-", cwd=here, data=diff.patch)
        shutil.rmtree(here)
        return done.returncode == 0, done.stderr.decode("utf-8", "replace")

    def applied(self, diff: GitDiff) -> dict[str, TreeFile] | None:
        """The files after `git apply`; None if it refuses the diff."""
        here = self._folder(diff)
        done = git("apply", "--whitespace=nowarn", "-", cwd=here, data=diff.patch)
        tree = DirectoryTree(root=here)
        files = {path: TreeFile(data=tree.read(path), mode=tree.mode(path) or "") for path in tree.paths()}
        shutil.rmtree(here)
        return files if done.returncode == 0 else None

    def _folder(self, diff: GitDiff) -> Path:
        self.count += 1
        here = self.folder / str(self.count)
        here.mkdir()
        for path, file in diff.target.files.items():
            place = here / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.mode == SYMLINK:
                place.symlink_to(file.data.decode())
            else:
                place.write_bytes(file.data)
                place.chmod(0o755 if file.mode == EXECUTABLE else 0o644)
        return here

    def _tree(self, files: Files) -> str:
        index = pygit2.Index()
        for name, file in files.items():
            if file.mode == SUBMODULE:
                entry = pygit2.IndexEntry(name, pygit2.Oid(hex="1" * 40), pygit2.enums.FileMode.COMMIT)
            else:
                blob = self.repository.create_blob(file.data)
                entry = pygit2.IndexEntry(name, blob, pygit2.enums.FileMode(int(file.mode, 8)))
            index.add(entry)
        return str(index.write_tree(self.repository))

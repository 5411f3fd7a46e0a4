"""A small upstream repository made with git itself, and a checkout with patches for it."""

from __future__ import annotations

from pathlib import Path

from git_command import git

BASE = "".join(f"def f{number}():\n    return {number}\n\n\n" for number in range(20))
FIXED = BASE.replace("return 7\n", "return 70\n")
BROKEN = BASE.replace("return 7\n", "return 'upstream'\n")
HEADER = """\
Subject: seven is seventy
Why: it has to be
Owner: us
Upstream-Status: Pending
Upstream-Url: none (made up)
Applies-To: >=1.0,<3
Guarded-By: loss
Review-By: 2999-01-01
Body: 1.patch >=1.0,<3
"""


class Git:
    """A repository of the files `verl/mod.py` and the version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self("init", "-q", "-b", "main")
        self("config", "core.autocrlf", "false")

    def __call__(self, *argv: str) -> str:
        return git(self.folder, *argv)

    def commit(self, version: str, module: str, subject: str) -> str:
        for name, text in {"version/version": version, "mod.py": module}.items():
            file = self.folder / "verl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self("add", ".")
        self("commit", "-q", "--allow-empty", "-m", subject)
        return self("rev-parse", "HEAD")


def made(git: Git) -> str:
    """The patch, as git writes it."""
    file = git.folder / "verl" / "mod.py"
    git("checkout", "-q", "v1.0")
    file.write_text(FIXED)
    text = git("diff", "--full-index") + "\n"
    git("checkout", "-q", "-f", "main")
    return text


def eight(git: Git) -> str:
    """A patch that applies only after `seven`."""
    file = git.folder / "verl" / "mod.py"
    git("checkout", "-q", "v1.0")
    file.write_text(FIXED)
    git("add", ".")
    file.write_text(FIXED.replace("return 70\n", "return 700\n"))
    text = git("diff", "--full-index") + "\n"
    git("checkout", "-q", "-f", "main")
    return text


MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, repository: "https://x", source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  row:
    title: a row
    source: made up
    axes: {verl: 1.0.dev0@COMMIT, device: sim}
profiles:
  default:
    title: all
    select:
      - stacks: all
"""


def upstream_with_break(folder: Path) -> Git:
    """Release 1.0, the same with a line more, and release 2.0, which changes the lines of the patches."""
    git = Git(folder)
    git.commit("1.0", BASE, "release 1.0")
    git("tag", "v1.0")
    git.commit("1.1", "import os\n" + BASE, "shift the lines")
    git.commit("2.0", BROKEN, "break it")
    git("tag", "v2.0")
    return git


def checkout_with_patches(folder: Path, upstream: Git) -> Path:
    """A checkout with a matrix and the patches `seven` and `eight`."""
    for name, text in {"seven": made(upstream), "eight": eight(upstream)}.items():
        patch = folder / "patches" / "verl" / name
        patch.mkdir(parents=True)
        (patch / "PATCH").write_text(HEADER.replace(">=1.0,<3", ">=0,<2.1").replace("loss", "patches"))
        (patch / "1.patch").write_text(text)
    (folder / "patches" / "verl" / "series").write_text("seven\neight\n")
    (folder / "matrix.yaml").write_text(MATRIX.replace("COMMIT", upstream("rev-parse", "v1.0")))
    return folder

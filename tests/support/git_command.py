"""The git command, with an author for commits and submodules from folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

OPTIONS = ("user.name=t", "user.email=t@example.org", "commit.gpgsign=false", "protocol.file.allow=always")


def git(folder: Path, *words: str) -> str:
    """What git prints for a command in this folder."""
    options = [word for option in OPTIONS for word in ("-c", option)]
    done = subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(folder: Path) -> str:
    """Commit all files of a folder, which is made a repository if it is none; the commit."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")

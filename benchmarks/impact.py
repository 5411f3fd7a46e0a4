"""Which tasks a patch PR affects: how long the plan takes, and whether it names exactly the right tasks.

Works on a clone of this checkout at HEAD. After each edit `plan --changed-since HEAD` runs there, and its
tasks are compared with the keys of two whole plans, before and after. The rival is what CI files do with path
globs: any change below patches/, harness/ or in matrix.yaml runs every task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, timed

PATCH = "one patch body"


def append(file: str, text: str) -> Callable[[Path], None]:
    def edit(clone: Path) -> None:
        with (clone / file).open("a", encoding="utf-8") as stream:
            stream.write(text)

    return edit


def replace(file: str, before: str, after: str) -> Callable[[Path], None]:
    def edit(clone: Path) -> None:
        path = clone / file
        text = path.read_text(encoding="utf-8")
        if before not in text:
            raise ValueError(f"{before!r} is not in {file}")
        path.write_text(text.replace(before, after, 1), encoding="utf-8")

    return edit


def edits() -> dict[str, Callable[[Path], None]]:
    """Name -> a function that edits the clone."""
    body = next((ROOT / "patches" / "verl").glob("grpo-equal-rewards/*.patch")).relative_to(ROOT).as_posix()
    return {
        "nothing": lambda _clone: None,
        PATCH: append(body, "\n"),
        "a comment in matrix.yaml": append("matrix.yaml", "# a word\n"),
        "a version in matrix.yaml": replace("matrix.yaml", "verl: [0.6.1, 0.9.1]", "verl: [0.6.1, 0.9.0]"),
        "code of one check": append("harness/numerics/loss/judge_case.py", "\n# a word\n"),
        "the planner's own code": append("harness/plan/keys/facets.py", "\n# a word\n"),
        "the README": append("README.md", "\na word\n"),
    }


def command(clone: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that a command prints in the clone."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *arguments, "--json"],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        check=True,
        capture_output=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(edit: Callable[[Path], None], rounds: int) -> tuple[set[str], set[str], int, float]:
    """One edit on a fresh clone: tasks named, tasks affected, all tasks, and the shortest of the rounds."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(
            ["git", "clone", "-q", "-c", "advice.detachedHead=false", str(ROOT), str(clone)], check=True
        )
        before = {task["key"] for task in command(clone, "plan")["tasks"]}
        edit(clone)
        after = {task["key"] for task in command(clone, "plan")["tasks"]}
        seconds = []
        for _ in range(rounds):
            with timed() as took:
                answer = command(clone, "plan", "--changed-since", "HEAD")
            seconds.append(took.cpu)
    named = {task["key"] for task in answer["tasks"] if task["effect"] != "unchanged"}
    return named, after - before, len(after), min(seconds)


def figures() -> Iterator[Figure]:
    missed = superfluous = 0
    for name, edit in edits().items():
        is_patch = name == PATCH
        named, affected, every, seconds = measure(edit, 5 if is_patch else 1)
        missed += len(affected - named)
        superfluous += len(named - affected)
        if is_patch:
            yield Figure(claim="plan of a one-file patch PR", measured=seconds, unit="s of CPU", limit=1)
            yield Figure(
                claim="tasks that a one-file patch PR runs",
                measured=len(named),
                limit=len(affected),
                rival=every,
                rival_name="path globs",
            )
    yield Figure(claim=f"affected tasks missed, {len(edits())} kinds of edits", measured=missed, limit=0)
    yield Figure(claim="tasks named that the edit does not affect", measured=superfluous, limit=0)

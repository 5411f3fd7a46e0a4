"""What a patch PR touches: how long it takes to say so, and whether it is said of exactly the right tasks.

    PYTHONPATH=. python benchmarks/plan/impact.py [--rounds 5] [--out figures.json]

Works on a clone of this checkout at HEAD. Each edit is made there, `plan --changed-since HEAD` is asked by
the program of the clone, and the answer is held against the keys of two whole plans, before and after. The
rival is what CI files do with path globs: any change below patches/ runs every cell. Figure to reach: a
one-file patch PR on the shipped matrix is planned in under 1 s (wall time of the command, the best of the
rounds: other work on the machine only adds).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GLOBBED = ("patches/", "matrix.yaml", "harness/")
ROOT = Path(__file__).resolve().parents[2]


def command(clone: Path, *arguments: str) -> tuple[dict[str, Any], float, float]:
    """The JSON of a command of the clone, its seconds, and those of them it computed."""
    start, cpu = time.perf_counter(), cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *arguments, "--json"],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout), time.perf_counter() - start, cpu_seconds() - cpu


def cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


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
    """Name -> an edit of the clone."""
    body = next((ROOT / "patches" / "verl").glob("grpo-equal-rewards/*.patch")).relative_to(ROOT).as_posix()
    return {
        "nothing": lambda _clone: None,
        "one patch body": append(body, "\n"),
        "a comment in matrix.yaml": append("matrix.yaml", "# a word\n"),
        "a version in matrix.yaml": replace("matrix.yaml", "verl: [0.6.1, 0.9.1]", "verl: [0.6.1, 0.9.0]"),
        "code of one check": append("harness/numerics/loss/judge_case.py", "\n# a word\n"),
        "the planner's own code": append("harness/plan/keys/facets.py", "\n# a word\n"),
        "the README": append("README.md", "\na word\n"),
    }


def measure(edit: Callable[[Path], None], rounds: int) -> dict[str, Any]:
    """One edit on a fresh clone."""
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        before, *_ = command(clone, "plan")
        edit(clone)
        named = subprocess.run(
            ["git", "-C", str(clone), "diff", "--name-only"], check=True, capture_output=True, text=True
        ).stdout.split()
        after, *_ = command(clone, "plan")
        answers = [command(clone, "plan", "--changed-since", "HEAD") for _ in range(rounds)]
    told = {task["key"] for task in answers[0][0]["tasks"] if task["effect"] != "unchanged"}
    true = {task["key"] for task in after["tasks"]} - {task["key"] for task in before["tasks"]}
    return {
        "tasks": len(after["tasks"]),
        "touched": len(told),
        "missed": len(true - told),
        "said_wrongly": len(told - true),
        "best_s": round(min(seconds for _, seconds, _ in answers), 2),
        "best_cpu_s": round(min(cpu for *_, cpu in answers), 2),
        "path_globs_touch": len(after["tasks"]) if any(name.startswith(GLOBBED) for name in named) else 0,
    }


def main() -> int:
    """Run, print and optionally store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = {name: measure(edit, options.rounds) for name, edit in edits().items()}
    for name, line in figures.items():
        print(f"{name:<26} {line}")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

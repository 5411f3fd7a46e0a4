"""Whether `lint` reads random bash scripts as bash runs them.

bash runs each script in a sandbox whose programs are stubs. The scripts take nothing from outside, and are
made of numbers (`random_scripts.py`): nobody chose them. A program that bash starts must be one of those that
`lint` reads: with the same words, or with words that `lint` says it does not know, or in a script of which
`lint` says that it did not read a part.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.lint_agreement import word_pattern
from benchmarks.random_scripts import random_script
from benchmarks.recorded_runs import RecordedRun, Sandbox, python_run, sandbox
from harness.compat.lint.shell.evaluator import Evaluator
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError

SCRIPTS, FIRST = 300, 50_000
NAME = "script.sh"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A program in a script as `lint` reads it."""

    entry: str
    words: tuple[ScriptValue, ...]

    def is_run(self, run: RecordedRun) -> bool:
        """Whether this is a program that bash started, with all words known."""
        words = tuple(word.text for word in self.words)
        return not any(word.unknown for word in self.words) and (self.entry, words) == (run.entry, run.words)

    def can_be(self, run: RecordedRun) -> bool:
        """Whether this is a program that bash started, if its unknown words are taken for anything."""
        if self.entry != run.entry or any(word.whole for word in self.words):
            return self.entry == run.entry
        pairs = zip(self.words, run.words, strict=False)
        return len(self.words) == len(run.words) and all(
            word_pattern(one).fullmatch(two) for one, two in pairs
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How `lint` reads one script.

    runs: the programs that bash starts. wrong: those that `lint` does not have. open: those with unknowns.
    """

    runs: int
    wrong: tuple[RecordedRun, ...] = ()
    open: int = 0
    refused: str = ""


def readings(text: str) -> tuple[list[Reading], bool]:
    """The programs that `lint` reads in a script, and whether it says that it did not read a part."""
    evaluator = Evaluator(NAME, None)
    evaluator.read(text)
    found = []
    for command in evaluator.commands:
        run = python_run([word.text for word in command.arguments])
        if run is not None:
            words = command.arguments[len(command.arguments) - len(run.words) :]
            found.append(Reading(entry=run.entry, words=tuple(words)))
    return found, any(note.unread for note in evaluator.notes)


def compare(statements: Sequence[str], bash: Sandbox, folder: Path) -> Comparison:
    """Run a script and read it."""
    text = "\n".join(statements) + "\n"
    for file in folder.iterdir():
        file.unlink()
    (folder / NAME).write_text(text, "utf-8")
    runs = list(dict.fromkeys(bash.runs_without_arguments(NAME, {"LC_ALL": "C.UTF-8"})))
    try:
        found, is_told = readings(text)
    except InputError as error:
        return Comparison(runs=len(runs), wrong=tuple(runs), refused=str(error))
    unequal = [run for run in runs if not any(one.is_run(run) for one in found)]
    wrong = [run for run in unequal if not is_told and not any(one.can_be(run) for one in found)]
    return Comparison(runs=len(runs), wrong=tuple(wrong), open=len(unequal) - len(wrong))


def comparisons(first: int, count: int) -> Iterator[tuple[int, Comparison]]:
    """Compare scripts, each with its number."""
    with tempfile.TemporaryDirectory(prefix="npu-matrix-random-") as name:
        folder = Path(name, "scripts")
        folder.mkdir()
        for made in (folder.parent, folder):
            made.chmod(0o777)
        with sandbox(folder) as bash:
            for seed in range(first, first + count):
                head, body = random_script(seed)
                yield seed, compare([*head, *body], bash, folder)


def figures() -> Iterator[Figure]:
    """Compare with fresh scripts."""
    every = list(comparisons(FIRST, SCRIPTS))
    for seed, one in every:
        if one.wrong:
            logging.getLogger(__name__).warning("script %d: %s %s", seed, one.refused, one.wrong)
    runs = sum(one.runs for _seed, one in every)
    for claim, count, limit in (
        ("those that lint reads otherwise and does not say so", sum(len(one.wrong) for _, one in every), 3),
        ("those that lint says it does not know completely", sum(one.open for _, one in every), 5),
    ):
        yield Figure(
            claim=f"of {runs} programs that {SCRIPTS} random scripts start, {claim}",
            measured=round(100 * count / max(1, runs), 1),
            unit="%",
            limit=limit,
        )

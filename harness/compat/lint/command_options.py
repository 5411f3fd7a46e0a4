"""Options that `ray start`, `ray job submit` and `torchrun` refuse (`rules/commands.yaml`)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from harness.compat.lint.lint_measurements import ScriptNote
from harness.compat.lint.python_program import torchrun_words
from harness.compat.lint.ruleset import CommandEntry, load_ruleset
from harness.compat.lint.shell.evaluator import Command
from harness.compat.lint.shell.values import ScriptValue


def refused_options(commands: Sequence[Command]) -> Iterator[ScriptNote]:
    """Notes about options that a command does not have, and about values that are no JSON or no path."""
    for command in commands:
        for entry in load_ruleset().commands:
            words = _own_words(command.arguments, entry)
            for problem in _problems(words, entry):
                yield ScriptNote(line=command.where.line, text=problem, unread=True)


def _own_words(words: Sequence[ScriptValue], entry: CommandEntry) -> Sequence[ScriptValue]:
    """The words after a command; none if it is not started."""
    if entry.command == ("torchrun",):
        return torchrun_words(words)
    texts = [word.text for word in words]
    size = len(entry.command)
    for start in range(len(texts)):
        named = [PurePosixPath(texts[start]).name, *texts[start + 1 : start + size]]
        if named == list(entry.command):
            return words[start + size :]
    return ()


def _problems(words: Sequence[ScriptValue], entry: CommandEntry) -> Iterator[str]:
    name = " ".join(entry.command)
    position = 0
    while position < len(words) and words[position].text.startswith("-") and words[position].text != "--":
        given, equals, value = words[position].text.partition("=")
        position += 1
        if not given.startswith("--"):
            if given == "-m" and entry.shortens:
                return
            # A short option and its value, or several flags: what follows is read as before.
            position += position < len(words) and not words[position].text.startswith("-")
            continue
        known = [one for one in entry.options if _stands_for(given, one, entry)]
        if not known:
            if not words[position - 1].unknown or (equals and "$" not in given):
                yield f"`{name}` has no option `{given}`, and stops at it{_meant(given, entry)}"
            return
        if known[0] in entry.flags:
            continue
        is_known = not words[position - 1].unknown
        if not equals and position < len(words):
            value, is_known = words[position].text, not words[position].unknown
            if is_known and value.startswith("--"):
                # Such as an empty variable without quotes, which bash drops.
                yield f"`{name}` gets no value for `{given}`, because `{value[:60]}` follows it"
                continue
            position += 1
        elif entry.shortens and equals and not value and is_known:
            yield f"`{name}` gets an empty value for `{given}`: set the variable or remove the option"
        if known[0] in entry.json_options and is_known and not _is_json(value):
            text = f"`{name}` reads the value of `{given}` as JSON, and gets {value[:60]}"
            yield f"{text}: write it in single quotes, and names in it in double quotes"
        if known[0] in entry.file_options and is_known and value.lstrip().startswith("{"):
            near = f": is `{given}-json` meant?" if f"{known[0]}-json" in entry.json_options else ""
            yield f"`{name}` reads the file that `{given}` names, and gets {value[:60]}{near}"


def _stands_for(given: str, option: str, entry: CommandEntry) -> bool:
    if not entry.shortens:
        return given == option
    # Each option has two names, with dashes or with underscores between the words, and none with both.
    return option.startswith(given) or f"--{option[2:].replace('-', '_')}".startswith(given)


def _meant(given: str, entry: CommandEntry) -> str:
    near = difflib.get_close_matches(given.replace("_", "-"), entry.options, n=1, cutoff=0.75)
    return f": is `{near[0]}` meant?" if near else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

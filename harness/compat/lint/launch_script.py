"""Read the training jobs from a launch script: bash that runs a Python module with `key=value` overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.compat.lint.job_settings import JobSettings, ScriptValue
from harness.compat.lint.lint_measurements import ScriptNote
from harness.compat.lint.shell_words import (
    ASSIGNMENT,
    MAX_SCRIPT_BYTES,
    ShellReader,
    ShellWord,
    expand,
)
from harness.errors import InputError, Location

OVERRIDE = re.compile(r"(?P<prefix>\+{0,2}|~)(?P<key>[A-Za-z_][\w./@-]*)(?P<equals>=)?")
OVERRIDE_START = re.compile(r"(?:\+{0,2}[\w./@-]+=|~)")
PYTHON = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun)")
OWN_ARGUMENTS = ("$@", "${@}", "$*", "${*}")
BLOCK_WORDS = ("if", "elif", "while", "until", "for", "case", "select")
BLOCK_MARKS = ("then", "else", "do", "fi", "done", "esac", "{", "}", "!")
COMMAND_PREFIXES = ("time", "exec", "nohup", "sudo", "env")
DECLARATIONS = ("export", "declare", "readonly", "local", "typeset")


@dataclass(frozen=True, kw_only=True)
class LaunchScript:
    """The jobs that a script starts, and the parts of it that were not understood."""

    jobs: tuple[JobSettings, ...]
    notes: tuple[ScriptNote, ...]


@dataclass(kw_only=True)
class _ScriptState:
    """The variables that the script has set up to the current line, and what was found so far."""

    file: str
    variables: dict[str, ScriptValue] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    jobs: list[JobSettings] = field(default_factory=list)
    notes: list[ScriptNote] = field(default_factory=list)


def read_script(path: Path) -> LaunchScript:
    """Read a launch script; InputError when it is not text, too large, or starts no Python with overrides."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise InputError(
            "this script cannot be read",
            where=Location(path),
            why=error.strerror or str(error),
            fix="pass a launch script that exists and is readable",
        ) from error
    if len(data) > MAX_SCRIPT_BYTES or b"\0" in data:
        raise InputError(
            "this is not a launch script",
            where=Location(path),
            why="it is not a text file, or larger than 1 MiB",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("this script is not UTF-8", where=Location(path, line), why=str(error)) from error
    script = parse_script(text, str(path))
    if not script.jobs:
        raise InputError(
            "this script starts no training job",
            where=Location(path),
            why="no command runs a Python module or file with `key=value` overrides",
            fix="pass the script that contains the `python -m verl...` command",
        )
    return script


def parse_script(text: str, file: str = "script") -> LaunchScript:
    """Read a script's text. Each job gets the values that are set at its line."""
    state = _ScriptState(file=file)
    reader = ShellReader(text)
    for words in reader.commands():
        _read_command(state, words)
    notes = sorted([*state.notes, *reader.notes], key=lambda note: note.line)
    return LaunchScript(jobs=tuple(state.jobs), notes=tuple(dict.fromkeys(notes)))


def _read_command(state: _ScriptState, words: list[ShellWord]) -> None:
    first = words[0].raw
    if first in BLOCK_WORDS and not words[0].quoted:
        state.notes.append(
            ScriptNote(line=words[0].line, text=f"the body of `{first}` is read as if it were executed")
        )
        return
    while words and words[0].raw in (*BLOCK_MARKS, *COMMAND_PREFIXES):
        words = words[1:]
    exporting = bool(words) and words[0].raw in DECLARATIONS
    exports = exporting and words[0].raw == "export"
    if exporting:
        words = words[1:]
    assigned: dict[str, ScriptValue] = {}
    while words and (match := ASSIGNMENT.match(words[0].raw)):
        assigned[match["name"]] = _assign(state, words[0], match)
        words = words[1:]
    if exporting or not words:
        state.exported |= set(assigned) if exports else set()
        state.exported |= {word.raw for word in words} if exports else set()
        return
    _read_launch(state, words, assigned)


def _assign(state: _ScriptState, word: ShellWord, match: re.Match[str]) -> ScriptValue:
    name = match["name"]
    value = _value(state, word, match.end())
    if match["append"] and name in state.variables:
        before = state.variables[name]
        value = replace(value, text=before.text + value.text, unknown=before.unknown or value.unknown)
    state.variables[name] = value
    return value


def _value(state: _ScriptState, word: ShellWord, start: int) -> ScriptValue:
    """The expanded text of `word` after its first `start` characters."""
    value = expand(_without_prefix(word, start), state.variables)
    where = Location(state.file, word.line, word.column)
    return ScriptValue(text=value.text, where=where, unknown=value.unknown)


def _without_prefix(word: ShellWord, count: int) -> ShellWord:
    """`word` without its first `count` characters."""
    parts = []
    for text, expanded in word.parts:
        if count >= len(text):
            count -= len(text)
            continue
        parts.append((text[count:], expanded))
        count = 0
    return ShellWord(parts=tuple(parts), line=word.line, column=word.column, quoted=word.quoted)


def _read_launch(state: _ScriptState, words: Sequence[ShellWord], prefixed: dict[str, ScriptValue]) -> None:
    entry, rest = _python_entry(words)
    if not entry:
        return
    overrides: dict[str, ScriptValue] = {}
    added: set[str] = set()
    removed: set[str] = set()
    missing_values: dict[str, ScriptValue] = {}
    config = ""
    unread = [word for word in rest if _is_unread(word)]
    for position, word in enumerate(rest):
        raw = word.raw
        if raw.startswith("--config-name"):
            following = rest[position + 1] if "=" not in raw and position + 1 < len(rest) else word
            config = expand(following, state.variables).text.removeprefix("--config-name=")
        match = OVERRIDE.match(raw)
        if not match or word.parts[0][0].startswith("-"):
            continue
        key = match["key"]
        if match["prefix"] == "~":
            removed.add(key)
        elif match["equals"]:
            overrides[key] = _value(state, word, match.end())
            added |= {key} if match["prefix"] else set()
            if raw == match[0] and _is_bare_word(rest[position + 1 : position + 2]):
                missing_values[key] = overrides[key]
    state.notes += [
        ScriptNote(line=word.line, text=f"the overrides in {word.raw} are not read", unread=True)
        for word in unread
    ]
    if overrides or unread:
        job = _job_settings(state, words[0], entry, config, overrides, prefixed)
        state.jobs.append(
            replace(
                job,
                added=frozenset(added),
                removed=frozenset(removed),
                has_unread_arguments=bool(unread),
                missing_values=missing_values,
            )
        )


def _is_unread(word: ShellWord) -> bool:
    """Whether a word may expand to overrides: an expansion other than the script's own arguments."""
    return (
        bool(word.parts)
        and word.parts[0][1]
        and word.raw.startswith(("$", "`"))
        and word.raw not in OWN_ARGUMENTS
    )


def _is_bare_word(words: Sequence[ShellWord]) -> bool:
    """Whether the next word is neither an override nor an option, so it belongs to the word before it."""
    return bool(words) and not words[0].raw.startswith(("-", "$@")) and not OVERRIDE_START.match(words[0].raw)


def _python_entry(words: Sequence[ShellWord]) -> tuple[str, Sequence[ShellWord]]:
    """The Python module or file that a command starts, and the words after it."""
    for position, word in enumerate(words):
        if not PYTHON.fullmatch(word.raw):
            continue
        rest = words[position + 1 :]
        for index, option in enumerate(rest):
            if option.raw == "-m" and index + 1 < len(rest):
                return rest[index + 1].raw, rest[index + 2 :]
            if option.raw.endswith(".py"):
                return option.raw, rest[index + 1 :]
    return "", ()


def _job_settings(
    state: _ScriptState,
    start: ShellWord,
    entry: str,
    config: str,
    overrides: dict[str, ScriptValue],
    prefixed: dict[str, ScriptValue],
) -> JobSettings:
    exported = {name: state.variables[name] for name in sorted(state.exported) if name in state.variables}
    device = overrides["trainer.device"].text if "trainer.device" in overrides else "npu"
    model = overrides.get("actor_rollout_ref.model.path")
    return JobSettings(
        name=Path(state.file).name,
        where=Location(state.file, start.line, start.column),
        overrides=overrides,
        env={**exported, **prefixed},
        entry=entry,
        device=device,
        nodes=_count(overrides.get("trainer.nnodes")),
        cards=_count(overrides.get("trainer.n_gpus_per_node")),
        config=config,
        model=model.text if model else "",
    )


def _count(value: ScriptValue | None) -> int:
    plain = value.parsed() if value else 0
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else 0

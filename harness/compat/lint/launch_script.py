"""Read the training jobs from a launch script: bash that runs a Python module with `key=value` overrides."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

from harness.compat.lint.command_options import refused_options
from harness.compat.lint.job_settings import JobSettings, parsed_value
from harness.compat.lint.lint_measurements import ScriptNote
from harness.compat.lint.python_program import (
    CONFIG_OPTIONS,
    is_module,
    option,
    option_word,
    override_words,
    python_program,
    runtime_variables,
    torchrun_processes,
    unknown_options,
    words_from_outside,
)
from harness.compat.lint.script_facts import script_facts, stated_hosts
from harness.compat.lint.serving.server_command import ServerCommand, server_commands
from harness.compat.lint.setting_changes import nearest_word
from harness.compat.lint.shell.evaluator import Command, Evaluator
from harness.compat.lint.shell.launchers import is_python
from harness.compat.lint.shell.syntax_tree import MAX_SCRIPT_BYTES
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError, Location

OVERRIDE = re.compile(r"(?P<prefix>\+{0,2}|~)(?P<key>[A-Za-z_][\w./@-]*)(?P<equals>=)?")
#: A script with so many of them was written to start a job.
OVERRIDES, MIN_OVERRIDES = re.compile(r"^\s*[\"']?\+{0,2}[a-z_]+(?:\.\w+)+=", re.MULTILINE), 3
OVERRIDE_START = re.compile(r"(?:\+{0,2}[\w./@-]+=|~)")

#: Each job costs one composition of its configuration, and following verl with it.
MAX_JOBS = 16
MAX_SCRIPTS = 2_000
#: Shorter names of variables are not compared.
MISSPELT_LETTERS = 5
MAX_MISSPELT = 10
#: A command whose first word is an override: the line before it does not go on.
CUT_OFF = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.[\w@/-]+)+=.*|\+{1,2}[A-Za-z_][\w.@/-]*=.*", re.DOTALL)
#: Variables that a shell, a scheduler or a launcher sets for a script.
GIVEN_NAMES = re.compile(
    r"HOME|PATH|PWD|OLDPWD|USER|UID|EUID|LOGNAME|HOSTNAME|SHELL|TERM|LANG|TMPDIR|RANDOM|SECONDS|LINENO|EPOCH\w*"
    r"|BASH\w*|FUNCNAME|PPID|IFS|OPTARG|OPTIND|REPLY|PIPESTATUS|\w*_PATH|PYTHONPATH|VIRTUAL_ENV|_|COLUMNS|LINES"
    r"|(?:SLURM|PBS|LSB|ARNOLD|VC|MA|PAI|KUBERNETES|POD|OMPI|PMI|CONDA|CUDA|NCCL|RAY|ASCEND|MLP|DLC|K8S|GITHUB)_\w+"
    r"|(?:NODE_|LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|PET_\w+|NNODES|NODE_COUNT"
)
#: Where the path of the model is: of a policy, and of SFT.
MODEL_KEYS = ("actor_rollout_ref.model.path", "model.partial_pretrain", "model.path")
RAY_SUBMIT = ["ray", "job", "submit"]
#: An assignment of a first argument that has no default. It is no function's, because it is not indented.
FIRST_ARGUMENT = re.compile(r"^(?:export )?(?P<name>[A-Za-z_]\w*)=\"?\$(?:1\b|\{1(?:\}|:?\?))", re.MULTILINE)
ALL_ARGUMENTS = re.compile(r"(?<=\s)\"?(?:\$@|\$\{@\}|\$\*)\"?(?=\s|\Z)")
MOVED_ARGUMENTS = re.compile(r"^\s*(?:shift|set\s+--)|[;&]\s*shift", re.MULTILINE)
#: `${!name}` and `eval` use variables whose names are not written out.
HIDDEN_USES = re.compile(r"\$\{!|\beval\b|\bsource\b")
#: Variables that every shell has.
SHELL_NAMES = ("HOME", "PWD", "USER")
_REFERENCE = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*)(?![\w.:])\}?")
WINDOWS_LINE_ENDS = (
    "the lines end as on Windows, and bash takes the carriage returns as a part of the words: convert them, "
    "for example with `dos2unix`"
)

#: The script of a recipe of another kind is none of those that are no launch scripts.
NO_TRAINING = "this script starts no training job, and the rules are only about training"


class NoJobError(InputError):
    """A script that starts no training job."""


@dataclass(frozen=True, kw_only=True)
class LaunchScript:
    """The jobs that a script starts, and the parts of it that were not understood.

    servers: its commands that start vLLM's server themselves. stopped: the note about the rest of the script,
    if reading it was given up. ended_at: where one with overrides, and without a job, ends with an error.
    """

    jobs: tuple[JobSettings, ...]
    notes: tuple[ScriptNote, ...]
    servers: tuple[ServerCommand, ...] = ()
    stopped: ScriptNote | None = None
    ended_at: Location | None = None


def read_script(path: Path) -> LaunchScript:
    """Read a launch script; InputError when it is not text, too large, or starts no Python with overrides."""
    return script_of(script_bytes(path), path)


def script_bytes(path: Path) -> bytes:
    """The bytes of a script; InputError when it cannot be read or is too large."""
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_SCRIPT_BYTES + 1) if is_file else b""
    except (OSError, ValueError) as error:
        raise InputError(
            "this script cannot be read",
            where=Location(path),
            why=getattr(error, "strerror", None) or str(error),
            fix="pass a launch script that exists and is readable",
        ) from error
    if not is_file:
        raise InputError(
            "this is not a launch script",
            where=Location(path),
            why="it is a pipe, a device or a socket",
            fix="save the script to a file, and pass this file",
        )
    if len(data) > MAX_SCRIPT_BYTES or b"\0" in data:
        raise InputError(
            "this is not a launch script",
            where=Location(path),
            why="it is not a text file, or larger than 64 KiB",
        )
    return data


def script_of(data: bytes, path: Path) -> LaunchScript:
    """The launch script with these bytes, at `path`; InputError as for `read_script`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("this script is not UTF-8", where=Location(path, line), why=str(error)) from error
    script = parse_script(text, str(path), path.parent)
    if not script.jobs and script.stopped is not None:
        raise InputError(
            "this script starts no training job, as far as it was read",
            where=Location(path, script.stopped.line),
            why=script.stopped.text,
            fix="pass a script that starts the job itself, without what could not be read",
        )
    if not script.jobs and script.ended_at is not None:
        raise InputError(
            "this script ends with an error before it starts a training job",
            where=Location(path, script.ended_at.line),
            why="with the values in it, bash comes to this `exit`",
            fix="correct the value that the condition around the `exit` refuses",
        )
    if script.servers:
        return script
    if not script.jobs and stated_hosts(text):
        return replace(script, notes=(*script.notes, ScriptNote(line=1, text=NO_TRAINING)))
    if not script.jobs:
        raise NoJobError(
            "this script starts no training job",
            where=Location(path),
            why="no command runs a Python module or file with `key=value` overrides",
            fix="pass the script that contains the `python -m verl...` command",
        )
    return script


def parse_script(text: str, file: str = "script", folder: Path | None = None) -> LaunchScript:
    """Read a script's text; InputError if bash would not accept it.

    folder: the folder whose scripts it may source, None for none.
    """
    evaluator = Evaluator(file, folder)
    evaluator.read(text)
    notes = list(evaluator.notes)
    notes += [*_torn_assignments(evaluator.commands), *_misspelt_variables(evaluator)]
    notes += [*_longer_names(evaluator), *_lonely_nodes(evaluator)]
    notes += [*_taken_by_ray(evaluator), *_not_shifted(evaluator)]
    notes += [
        *_unpassed_arrays(evaluator),
        *_unused_texts(evaluator),
        *_missing_arrays(evaluator),
        *_replaced_arrays(evaluator),
        *_misplaced_overrides(evaluator),
        *_refused_names(evaluator),
        *_redirected_tests(evaluator),
        *_first_elements(evaluator),
        *_arithmetic_commands(evaluator),
        *_numbered_files(evaluator),
        *(ScriptNote(line=where.line, text=text, unread=True) for text, where in evaluator.slips),
        *refused_options(evaluator.commands),
    ]
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        notes.append(ScriptNote(line=line, text=WINDOWS_LINE_ENDS, unread=True))
    jobs: list[JobSettings] = []
    for index, command in enumerate(evaluator.commands):
        cut_off = _cut_off(evaluator.commands[index + 1 :])
        job = _read_launch(command, evaluator, notes, cut_off)
        if job is not None and job not in jobs:
            jobs.append(job)
        if len(jobs) > MAX_JOBS:
            where = jobs.pop().where
            text = f"it starts more than {MAX_JOBS} different jobs, of which the first are compared"
            notes.append(ScriptNote(line=where.line, text=text, unread=True))
            break
    return LaunchScript(
        jobs=tuple(jobs),
        notes=tuple(dict.fromkeys(sorted(notes, key=lambda note: note.line))),
        servers=tuple(islice(server_commands(evaluator.commands, text), MAX_JOBS)),
        stopped=evaluator.stopped,
        ended_at=evaluator.ended_at if not jobs and len(OVERRIDES.findall(text)) >= MIN_OVERRIDES else None,
    )


def _torn_assignments(commands: Sequence[Command]) -> Iterator[ScriptNote]:
    """`NAME = value`, which bash runs as a program."""
    for command in commands:
        words = [word.text for word in command.arguments[:2]]
        if len(words) == 2 and words[0].isidentifier() and words[1][:1] == "=" and words[1][:2] != "==":
            text = f"`{words[0]} {words[1]}` sets no variable: bash runs {words[0]} as a program"
            yield ScriptNote(line=command.where.line, text=f"{text}; remove the spaces", unread=True)


def _misspelt_variables(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Variables that nothing sets, spelt almost like one that the script sets."""
    words = [word for command in evaluator.commands for word in command.arguments]
    given = {word.unknown: word for word in words if word.unknown.isidentifier()}
    for name, word in list(given.items())[:MAX_MISSPELT]:
        near = nearest_word(name, evaluator.assigned_names) if name not in evaluator.assigned_names else ""
        # Such as MODEL_PATH and MODEL_PATHS, NNODES and NODES: both can be meant.
        is_swapped = near and sorted(near) == sorted(name)
        if near and len(name) >= MISSPELT_LETTERS and (is_swapped or near not in evaluator.used_names):
            text = f"`{name}` is set nowhere in this script, and `{near}` is: is it misspelt?"
            yield ScriptNote(line=word.where.line, text=text, unread=True)


def _longer_names(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Variables that nothing sets, whose name begins with one that the script sets: `$name_rest`."""
    words = [word for command in evaluator.commands for word in command.arguments]
    given = {word.unknown: word for word in words if word.unknown.isidentifier()}
    for name, word in given.items():
        starts = [one for one in evaluator.assigned_names if name.startswith(f"{one}_")]
        # DATA_ROOT is a name of the environment also in a script that sets DATA.
        if name in evaluator.assigned_names or not starts or name.isupper():
            continue
        if f"${name}" not in evaluator.text:
            continue
        start = max(starts, key=len)
        rest = name.removeprefix(start)
        text = f"bash reads `${name}` as one name, which nothing sets: is `${{{start}}}{rest}` meant?"
        yield ScriptNote(line=word.where.line, text=text, unread=True)


def _lonely_nodes(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Several nodes for `torchrun --standalone`, which is for one."""
    for command in evaluator.commands:
        words = command.arguments
        nodes = option(words, "--nnodes")
        if any(word.text == "--standalone" for word in words) and nodes.isdigit() and int(nodes) > 1:
            text = f"`torchrun --standalone` starts one node, and waits for {nodes} for ever"
            yield ScriptNote(line=command.where.line, text=f"{text}: give --rdzv-endpoint", unread=True)


def _taken_by_ray(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Options of a program that `ray job submit` takes for its own, because no `--` is before the program."""
    for command in evaluator.commands:
        texts = [word.text for word in command.arguments]
        start = next((place for place in range(len(texts)) if texts[place : place + 3] == RAY_SUBMIT), None)
        program = next((place for place in range(len(texts)) if is_python(command.arguments, place)), 0)
        if start is None or program < start or "--" in texts[start:program]:
            continue
        taken = next((text for text in texts[program:] if re.match(r"--?[A-Za-z]", text)), "")
        if taken:
            text = f"`ray job submit` takes `{taken}` for an option of its own, and stops at it"
            yield ScriptNote(
                line=command.where.line, text=f"{text}: write `--` before the program", unread=True
            )


def _not_shifted(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Arguments that the script uses by their number, and that it passes to the program in `$@`, too."""
    found, passed = FIRST_ARGUMENT.search(evaluator.text), ALL_ARGUMENTS.search(evaluator.text)
    if found is None or passed is None or MOVED_ARGUMENTS.search(evaluator.text):
        return
    if any(python_program(command.arguments)[0] for command in evaluator.commands):
        line = evaluator.text.count("\n", 0, passed.start()) + 1
        text = f"`$@` passes on `$1`, too, which the script takes for {found['name']}: is `shift` missing?"
        yield ScriptNote(line=line, text=text, unread=True)


def _missing_arrays(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Arrays that nothing sets: bash passes nothing in their place, and no environment can have them."""
    names = [name for name in evaluator.used_arrays if name not in evaluator.assigned_names]
    for name in names if not any(note.unread for note in evaluator.notes) else ():
        near = nearest_word(name, evaluator.assigned_names)
        text = f"the array `{name}` is set nowhere in this script, so that bash passes nothing in its place"
        line = evaluator.used_arrays[name].line
        yield ScriptNote(line=line, text=f"{text}: is `{near}` meant?" if near else text, unread=bool(near))


def _unpassed_arrays(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Arrays of overrides that no command gets."""
    hidden = HIDDEN_USES.search(evaluator.text)
    missing = [name for name in evaluator.used_arrays if name not in evaluator.assigned_names]
    for name, where in evaluator.unpassed_arrays.items() if not hidden else ():
        if nearest_word(name, missing):
            # Its name is misspelt where it is used.
            continue
        text = f"no command gets the overrides in the array `{name}`"
        yield ScriptNote(line=where.line, text=f'{text}: is `"${{{name}[@]}}"` missing?', unread=True)


def _unused_texts(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Variables with overrides, as `ARGS="a.b=1 c.d=2"`, that no command gets."""
    hidden = HIDDEN_USES.search(evaluator.text)
    for name, where in evaluator.unused_texts.items() if not hidden else ():
        if name not in evaluator.exported_names:
            text = f"no command gets the overrides in the variable `{name}`"
            yield ScriptNote(line=where.line, text=f"{text}: is `${name}` missing?", unread=True)


def _replaced_arrays(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Variables of which a second assignment drops the value before anything uses it."""
    for name, where in evaluator.replaced_arrays.items():
        text = f"the elements of the array `{name}` are replaced before anything uses them"
        yield ScriptNote(line=where.line, text=f"{text}: is `{name}+=(...)` meant?", unread=True)
    for name, where in evaluator.replaced_texts.items():
        text = f"the value of `{name}` is replaced below before anything uses it"
        yield ScriptNote(line=where.line, text=f"{text}: remove one of the two", unread=True)


def _misplaced_overrides(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Overrides behind the pipe to `tee`, which takes them for names of files."""
    for command, override, where in evaluator.misplaced_overrides[:1]:
        text = f"`{command}` gets `{override}`, and not the program: write it before the pipe"
        yield ScriptNote(line=where.line, text=text, unread=True)


def _refused_names(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Words after `export` that are no names, such as the rest of a list with spaces."""
    for text, where in evaluator.refused_names:
        problem = f"`export` refuses `{text}`, which is no name of a variable"
        yield ScriptNote(line=where.line, text=f"{problem}: quote values with spaces", unread=True)


def _redirected_tests(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """`[ $a > 1 ]`, which is always true and writes a file with the name 1."""
    for operator, file, where in evaluator.redirected_tests:
        text = f"`{operator} {file}` in `[ ... ]` compares nothing: it is a redirection to or from a file"
        other = "-gt" if operator == ">" else "-lt"
        yield ScriptNote(line=where.line, text=f"{text}; write {other}, or use `[[ ... ]]`", unread=True)


def _first_elements(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """`"$ARRAY"`, which is its first element."""
    for name, where in evaluator.first_elements.items():
        text = f"`${name}` is only the first element of the array `{name}`"
        yield ScriptNote(line=where.line, text=f'{text}: is `"${{{name}[@]}}"` meant?', unread=True)


def _arithmetic_commands(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """`$(1024 * 8)`, for which bash starts a program with the name 1024."""
    for raw, where in evaluator.arithmetic_commands:
        text = f"`{raw}` starts a program and computes nothing: is `$({raw[1:]})` meant?"
        yield ScriptNote(line=where.line, text=text, unread=True)


def _numbered_files(evaluator: Evaluator) -> Iterator[ScriptNote]:
    """`2>1`, which writes a file with the name 1."""
    for text, where in evaluator.numbered_files:
        meant = text.replace(">", ">&")
        problem = f"`{text}` writes to a file with the name {text.rpartition('>')[2]}"
        yield ScriptNote(line=where.line, text=f"{problem}: is `{meant}` meant?", unread=True)


def _cut_off(commands: Sequence[Command]) -> tuple[ScriptValue, ...]:
    """The overrides in the command after a program, which were meant for the program.

    They are its first word if a line does not go on; an `&` in a value leaves the rest of the value before.
    """
    following = commands[0].arguments if commands else ()
    if any(is_python(following, position) for position in range(len(following))):
        return ()
    start = next((place for place, word in enumerate(following[:2]) if CUT_OFF.fullmatch(word.text)), None)
    return () if start is None else following[start:]


def _read_launch(
    command: Command, evaluator: Evaluator, notes: list[ScriptNote], cut_off: tuple[ScriptValue, ...]
) -> JobSettings | None:
    """The job that a command starts; None if it starts no Python program with overrides."""
    entry, rest = python_program(command.arguments)
    if not entry:
        return None
    overrides: dict[str, ScriptValue] = {}
    added: set[str] = set()
    removed: set[str] = set()
    missing_values: dict[str, ScriptValue] = {}
    unread = words_from_outside(rest)
    words = tuple(_at_its_line(word, evaluator) for word in override_words(rest))
    for word in words:
        match = OVERRIDE.match(word.text)
        if not match:
            continue
        key = match["key"]
        if match["prefix"] == "~":
            removed.add(key)
        elif match["equals"]:
            overrides[key] = ScriptValue(
                text=word.text[match.end() :], unknown=word.unknown, where=word.where
            )
            added |= {key} if match["prefix"] else set()
            if word.text == match[0] and _is_bare_word(rest, word):
                missing_values[key] = overrides[key]
    if not (overrides or removed or unread or cut_off):
        return None
    runtime = runtime_variables(command.arguments, evaluator.file_text)
    if runtime.problem:
        notes.append(ScriptNote(line=command.where.line, text=runtime.problem))
    device = overrides["trainer.device"].text if "trainer.device" in overrides else "npu"
    model = next((overrides[key] for key in MODEL_KEYS if key in overrides), None)
    hosts = stated_hosts(evaluator.text)
    job = JobSettings(
        name=Path(evaluator.path).name,
        where=Location(evaluator.path, command.where.line, command.where.column),
        overrides=overrides,
        env={**command.environment, **runtime.values},
        entry=entry,
        started_as="module" if is_module(command.arguments, entry) else "file",
        arguments=words,
        options={name: value for name in CONFIG_OPTIONS if (value := option(rest, name))},
        named_at=_named_at(command.arguments, entry, evaluator.path),
        device=device,
        nodes=hosts[0] if hosts else _count(overrides.get("trainer.nnodes")),
        states_hosts=hosts is not None,
        cards=hosts[1] if hosts else _count(overrides.get("trainer.n_gpus_per_node")),
        config=option(rest, "--config-name"),
        model=model.text if model else "",
        added=frozenset(added),
        removed=frozenset(removed),
        has_unread_arguments=any(
            not (word.unknown.isidentifier() or word.unknown.isdigit()) for word in unread
        ),
        missing_values=missing_values,
        cut_off=cut_off,
        unpassed=_unpassed(command, evaluator),
        used_variables=evaluator.used_names,
        unset_variables=_unset_variables(evaluator, notes),
        processes=torchrun_processes(command.arguments),
        facts=script_facts(evaluator.text, evaluator.commands),
        unknown_options=unknown_options(rest),
    )
    if job.is_verl:
        notes += [*_unread_notes(unread), *_quoted_variables(job, evaluator)]
    return job


def _named_at(words: Sequence[ScriptValue], entry: str, path: str) -> dict[str, Location]:
    """Where a command of this file names its program and the options of Hydra."""
    every = {name: option_word(words, name) for name in CONFIG_OPTIONS}
    every["entry"] = next((word for word in words if word.text.removeprefix("-m") == entry), None)
    return {name: word.where for name, word in every.items() if word is not None and word.where.file == path}


def _at_its_line(word: ScriptValue, evaluator: Evaluator) -> ScriptValue:
    """An override with its own line, if it comes from a text of several lines, whose place it has."""
    match = OVERRIDE.match(word.text)
    end = evaluator.long_texts.get((word.where.line, word.where.column))
    if match is None or not match["equals"] or end is None or word.where.file != evaluator.path:
        return word
    for line in range(word.where.line, end + 1):
        text = evaluator.lines[line - 1]
        found = re.search(rf"(?<![\w.@/+~-]){re.escape(match[0])}", text)
        if found is not None:
            return replace(word, where=Location(word.where.file, line, found.start() + 1))
    return word


def _unset_variables(evaluator: Evaluator, notes: Sequence[ScriptNote]) -> dict[str, ScriptValue]:
    """Variables that the script uses and never sets, unless a note says so.

    There are none if a part of the script that can set them is not read.
    """
    told = {name for note in notes if note.unread for name in re.findall(r"`\$?(\w+)`", note.text)}
    if any("is not read" in note.text for note in evaluator.notes):
        return {}
    return {
        name: ScriptValue(text=f"${name}", unknown=name, where=where)
        for name, where in evaluator.unset_variables.items()
        if not GIVEN_NAMES.fullmatch(name) and name not in told
    }


def _unpassed(command: Command, evaluator: Evaluator) -> dict[str, ScriptValue]:
    """Variables that a script sets, and that neither the program gets nor the script uses."""
    others = {name for one in evaluator.commands for name in one.environment}
    return {
        name: value
        for name, value in evaluator.set_variables.items()
        if name not in others
        and name not in evaluator.used_names
        and (name not in evaluator.exported_names or value.where.line > command.where.line)
    }


def _quoted_variables(job: JobSettings, evaluator: Evaluator) -> Iterator[ScriptNote]:
    """Variables that single quotes keep from being expanded."""
    for key, value in job.overrides.items():
        found = None if value.unknown else _REFERENCE.search(value.text)
        if found is not None and (found["name"] in evaluator.assigned_names or found["name"] in SHELL_NAMES):
            text = f"{key} gets the text {found[0]}, and not the value of this variable"
            text += ": bash expands nothing in single quotes"
            yield ScriptNote(line=value.where.line, text=text, unread=True)


def _unread_notes(words: Sequence[ScriptValue]) -> Iterator[ScriptNote]:
    """Words of a job that can be any override."""
    for word in words:
        outside = word.unknown.isidentifier() or word.unknown.isdigit()
        text = "given from outside" if outside else "not read"
        yield ScriptNote(
            line=word.where.line, text=f"the overrides in {word.text} are {text}", unread=not outside
        )


def _is_bare_word(words: Sequence[ScriptValue], before: ScriptValue) -> bool:
    """Whether the next word is neither an override nor an option, so it belongs to the word before it."""
    following = [word for one, word in pairwise(words) if one is before][:1]
    return bool(
        following and not following[0].text.startswith("-") and not OVERRIDE_START.match(following[0].text)
    )


def _count(value: ScriptValue | None) -> int:
    plain = parsed_value(value) if value else 0
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else 0

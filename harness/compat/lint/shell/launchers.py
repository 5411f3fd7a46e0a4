"""Programs that start other programs: shells, `ssh`, `xargs`, `env` and the like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.compat.lint.shell.values import Expansion, ScriptValue

#: Builtins and programs that run the rest of their words as a command.
PYTHON = re.compile(r"(?:(?:.*/)?|.*[})`])(?:python[\d.]*|torchrun|accelerate|deepspeed)", re.DOTALL)
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
PREFIXES = ("exec", "command", "builtin", "time", "nohup", "sudo")
#: How many lines of an input `xargs` is read with.
MAX_LINES = 50
_NPU_IMPORT = re.compile(r"\s*import torch(?:_npu)?(?:\s*[,;]\s*(?:import )?torch_npu)?\s*")
_UV = re.compile(r"(?:.*/)?uv")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_OPTION = re.compile(r"--?[\w-]+=")
_PYTHON = re.compile(r"\b(?:python[\d.]*|torchrun)\s")
_PROGRAM = re.compile(r"\s-m\s*[A-Za-z_]|\.py\b")
#: Programs that look for texts or print them, and start nothing.
_READERS = re.compile(
    r"(?:.*/)?(?:[efp]?grep|pkill|killall|g?awk|sed|logger|git|find|test|tee|curl|wandb|python[\d.]*)"
)


def is_python(words: Sequence[ScriptValue], position: int) -> bool:
    """Whether the word at a position starts Python: by its name, as `uv run`, or as `$NAME -m MODULE`."""
    word, following = words[position], words[position + 1 : position + 3]
    if PYTHON.fullmatch(word.text):
        return True
    if word.text == "run" and position:
        return bool(_UV.fullmatch(words[position - 1].text))
    is_module = len(following) == 2 and following[0].text == "-m" and _MODULE.fullmatch(following[1].text)
    return bool(word.unknown and not position and is_module)


def is_npu_probe(arguments: Sequence[ScriptValue]) -> bool:
    """Whether a command only looks for the software of NPUs, which the machines have that lint judges for."""
    words = [word.text for word in arguments]
    if words[:2] in (["command", "-v"], ["type", "-P"], ["type", "-p"]) or words[:1] == ["which"]:
        return words[-1] == "npu-smi"
    imports = Path(words[0]).name.startswith("python") and words[1:2] == ["-c"] and len(words) == 3
    return bool(imports and _NPU_IMPORT.fullmatch(words[2]))


def looked_up(arguments: Sequence[ScriptValue]) -> ScriptValue | None:
    """The program whose path `which NAME` or `command -v NAME` prints; None for other commands."""
    texts = [argument.text for argument in arguments]
    if (len(texts) == 2 and texts[0] == "which") or (len(texts) == 3 and texts[:2] == ["command", "-v"]):
        return arguments[-1]
    return arguments[-1] if len(texts) == 3 and texts[0] == "type" and texts[1] in ("-P", "-p") else None


def shell_script(arguments: Sequence[ScriptValue]) -> tuple[str, int] | None:
    """Where a command gives a shell its script.

    ("-c", the index of the string), ("file", that of the path), ("input", that of the script's arguments), or
    None if it starts no shell.
    """
    for position, argument in enumerate(arguments):
        if PYTHON.fullmatch(argument.text):
            return None
        if argument.unknown or not _SHELLS.fullmatch(argument.text):
            continue
        for index in range(position + 1, len(arguments)):
            text = arguments[index].text
            if text == "-s":
                after = index + 1
                return "input", after + (after < len(arguments) and arguments[after].text in ("--", "-"))
            if re.fullmatch(r"-[a-z]*c", text) and index + 1 < len(arguments):
                return "-c", index + 1
            if not text.startswith("-"):
                return "file", index
        return "input", len(arguments)
    return None


def command_lines(arguments: Sequence[ScriptValue]) -> Iterator[ScriptValue]:
    """The words of a program that are command lines which start Python, as of `ssh HOST "python ..."`."""
    if _READERS.fullmatch(arguments[0].text):
        return
    for argument in arguments[1:]:
        python = _PYTHON.search(argument.text)
        if python and _PROGRAM.search(argument.text, python.end() - 1):
            option = _OPTION.match(argument.text)
            text = argument.text[option.end() if option else 0 :]
            yield ScriptValue(text=text, unknown=argument.unknown, where=argument.where)


def xargs_commands(arguments: Sequence[ScriptValue], text: Expansion | None) -> list[list[ScriptValue]]:
    """The commands that `xargs` runs for its input, which is None if it is not known."""
    position, mark, count = 1, "", 0
    while position < len(arguments) and arguments[position].text.startswith("-"):
        option = arguments[position].text
        position += 1
        value = option[2:] or (arguments[position].text if position < len(arguments) else "")
        if option[:2] == "-n" and value.isdigit():
            count = int(value)
        if option[:2] in ("-I", "-n", "-P", "-d", "-L") and len(option) == 2:
            mark = arguments[position].text if option == "-I" and position < len(arguments) else mark
            position += 1
        elif option.startswith("-I"):
            mark = option[2:]
    command = list(arguments[position:])
    if not command:
        return []
    unknown = ScriptValue(text="$(xargs)", unknown="xargs", whole=True, where=arguments[0].where)
    if text is None or text.unknown:
        if not mark:
            return [[*command, unknown]]
        return [[_with(word, mark, "$(xargs)", "xargs") for word in command]]
    if not mark:
        words = [ScriptValue(text=word, where=unknown.where) for word in _input_words(text.text)]
        together = max(count or len(words), 1)
        starts = range(0, max(len(words), 1), together)[:MAX_LINES]
        return [[*command, *words[start : start + together]] for start in starts]
    lines = [line.strip() for line in text.text.splitlines() if line.strip()]
    return [[_with(word, mark, line, "") for word in command] for line in lines[:MAX_LINES]]


def _input_words(text: str) -> list[str]:
    """The words that `xargs` reads: quotes and backslashes keep what is between them together."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _with(word: ScriptValue, mark: str, text: str, unknown: str) -> ScriptValue:
    if mark not in word.text:
        return word
    return ScriptValue(
        text=word.text.replace(mark, text),
        unknown=word.unknown or unknown,
        whole=word.whole,
        where=word.where,
    )

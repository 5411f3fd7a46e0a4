"""Builtin commands of bash that set variables or arguments, print a text, or leave a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.compat.lint.shell.conditions import Truth
from harness.compat.lint.shell.escapes import decoded
from harness.compat.lint.shell.outcomes import Outcomes
from harness.compat.lint.shell.printf_format import printed
from harness.compat.lint.shell.values import Expansion, ScriptValue, joined, placed
from harness.compat.lint.shell.word_splitting import split_fields
from harness.compat.lint.shell.world import World
from harness.errors import Location

_ELEMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\[(?P<index>.+)\]", re.DOTALL)
#: Options of `read` and `mapfile` that have a value.
_VALUED = {"read": "adeiNnptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}


def set_arguments(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`set -- ARGUMENTS`, and options such as `set -eu -o pipefail`."""
    texts = [argument.text for argument in arguments]
    for text in texts[1:]:
        if not re.fullmatch(r"[-+][A-Za-z]+", text):
            break
        letters = frozenset(text[1:])
        world.options = world.options | letters if text.startswith("-") else world.options - letters
    if "--" in texts:
        world.arguments = tuple(arguments[texts.index("--") + 1 :])
    elif len(arguments) > 1 and not arguments[1].whole and not texts[1].startswith(("-", "+")):
        world.arguments = tuple(arguments[1:])
    return [(world, Truth.YES)]


def shift(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`shift [COUNT]`."""
    count = arguments[1].text if len(arguments) > 1 else "1"
    world.shift(int(count) if count.isdigit() else 1)
    return [(world, Truth.YES)]


def unset(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`unset NAMES`, also of one element of an array."""
    for argument in arguments[1:]:
        found = _ELEMENT.fullmatch(argument.text)
        if found:
            world.remove_element(found["name"], found["index"].strip("'\""))
        elif arguments[1].text == "-f":
            world.functions.pop(argument.text, None)
        elif argument.text.isidentifier():
            world.forget(argument.text)
            world.functions.pop(argument.text, None)
    return [(world, Truth.YES)]


def leave_loop(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`break [COUNT]` and `continue [COUNT]`."""
    count = arguments[1].text if len(arguments) > 1 else "1"
    after = world.copy()
    after.left_loops = int(count) if count.isdigit() and int(count) else 1
    after.continued = arguments[0].text == "continue"
    return [(after, Truth.YES)]


def getopts(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`getopts LETTERS NAME [ARGUMENTS]`: the next option of the arguments."""
    given = tuple(arguments[3:]) or world.arguments
    index = world.text("OPTIND") or Expansion(text="1")
    if len(arguments) < 3 or given is None or not index.text.isdigit() or any(one.unknown for one in given):
        return read_unknown(arguments[:1] + arguments[2:3], world, where)
    position, letters, name = int(index.text) - 1, arguments[1].text, arguments[2].text
    word = given[position].text if position < len(given) else ""
    if not word.startswith("-") or word in ("-", "--"):
        world.assign("OPTIND", Expansion(text=str(position + 1 + (word == "--"))), where)
        world.assign(name, Expansion(text="?"), where)
        return [(world, Truth.NO)]
    place = world.option_place or 1
    letter, rest = word[place], word[place + 1 :]
    is_known = letter in letters.replace(":", "")
    takes_value = is_known and letters[letters.index(letter) + 1 :][:1] == ":"
    world.forget("OPTARG")
    if takes_value:
        value = rest or (given[position + 1].text if position + 1 < len(given) else None)
        position, rest = position + (1 if rest else 2), ""
        if value is not None:
            world.assign("OPTARG", Expansion(text=value), where)
    else:
        position += not rest
    world.option_place = place + 1 if rest else 0
    world.assign("OPTIND", Expansion(text=str(position + 1)), where)
    world.assign(name, Expansion(text=letter if is_known else "?"), where)
    return [(world, Truth.YES)]


def read_unknown(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`getopts`, and `read` and `mapfile` of an input that is not known: the variables get unknown values."""
    for argument in arguments[1:]:
        name = argument.text
        if name.isidentifier():
            world.assign(
                name, Expansion(text=f"${{{name}}}", unknown=f"{name} (from {arguments[0].text})"), where
            )
    return [(world, Truth.OPEN)]


def read(arguments: list[ScriptValue], world: World, where: Location, own: World) -> Outcomes:
    """`read` sets variables to the words of a line of the input. own: the world with the command's IFS."""
    given, names = _options(arguments)
    document = world.input
    if document is not None and "d" in given and len(names) == 1 and "a" not in given:
        text, found, rest = document.text.partition(given["d"][:1] or "\0")
        text = text.strip(own.separators) if own.separators else text
        world.assign(names[0], Expansion(text=text, unknown=document.unknown), where)
        world.input = Expansion(text=rest, unknown=document.unknown if found else "")
        # At the end of the input, `read -d ''` fails with the variable set.
        return [(world, Truth.of(bool(found)))]
    if document is None or document.unknown or set(given) - set("radpst"):
        return read_unknown(arguments, world, where)
    line, found, rest = document.text.partition(given.get("d", "\n")[:1] or "\0")
    if "r" not in given and "\\" in line:
        return read_unknown(arguments, world, where)
    world.input = Expansion(text=rest)
    words = split_fields(line, own.separators, 0 if "a" in given else len(names))
    if "a" in given:
        world.assign(given["a"], tuple(placed(Expansion(text=word), where) for word in words), where)
    elif not names:
        world.assign("REPLY", Expansion(text=line), where)
    for index, name in enumerate(names if "a" not in given else ()):
        world.assign(name, Expansion(text=words[index] if index < len(words) else ""), where)
    return [(world, Truth.YES if found or "d" in given else Truth.NO)]


def mapfile(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`mapfile` and `readarray` set an array to the lines of the input."""
    given, names = _options(arguments)
    if world.input is None or world.input.unknown or set(given) - {"t"} or len(names) > 1:
        return read_unknown(arguments, world, where)
    lines = world.input.text.splitlines(keepends="t" not in given)
    world.input = Expansion(text="")
    name = names[0] if names else "MAPFILE"
    world.assign(name, tuple(placed(Expansion(text=line), where) for line in lines), where)
    return [(world, Truth.YES)]


def printf(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`printf` prints a text; with `-v NAME` it sets a variable to the text."""
    texts = [argument.text for argument in arguments]
    if texts[1:2] == ["-v"] and len(arguments) > 3:
        text = printed(arguments[3:])
        if text is None:
            return read_unknown([arguments[0], arguments[2]], world, where)
        world.assign(texts[2], text, where)
        return [(world, Truth.YES)]
    words = arguments[2:] if texts[1:2] == ["--"] else arguments[1:]
    text = printed(words)
    world.write(text if text is not None else Expansion(text="$(printf)", unknown="$(printf)"))
    return [(world, Truth.RAN)]


def echo(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`echo` prints its arguments."""
    words, end, decodes = list(arguments[1:]), "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0].text):
        option = words.pop(0).text
        end = "" if "n" in option else end
        decodes = decodes or "e" in option
    text = joined(words, " ")
    world.write((replace(text, text=decoded(text.text)) if decodes else text) + Expansion(text=end))
    return [(world, Truth.YES)]


def _options(arguments: Sequence[ScriptValue]) -> tuple[dict[str, str], list[str]]:
    """The options of `read` or `mapfile` with their values, and the variables that are set."""
    found: dict[str, str] = {}
    valued = _VALUED[arguments[0].text]
    texts = [argument.text for argument in arguments[1:]]
    while texts and texts[0].startswith("-"):
        letters = texts.pop(0)[1:]
        for index, letter in enumerate(letters):
            found[letter] = ""
            if letter in valued:
                found[letter] = letters[index + 1 :] or (texts.pop(0) if texts else "")
                break
    return found, texts

"""Parses the words of a server's command with the options of its release, as vLLM's parser does.

The options are given to `argparse`, on which vLLM's parser rests. Before it, vLLM's own parser writes names
with dashes, and joins `--option.key value` to JSON. What only a run knows is a value of every option.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.compat.lint.python_program import is_from_outside
from harness.compat.lint.serving.json_types import Classes, json_problem, limit_problem
from harness.compat.lint.serving.option_source import ServerOption, ServerOptions
from harness.compat.lint.setting_changes import nearest_word
from harness.compat.lint.shell.values import ScriptValue

MAX_PROBLEMS = 10
NO_ARGUMENT = "whether there is an argument"
_NUMBER = re.compile(r"\s*[-+]?\d[\d_]*(?:\.\d+)?[kKmMgGtT]?\s*|\s*auto\s*", re.IGNORECASE)
_SIZE = re.compile(r"(?<![\w\"'.])(\d+(?:\.\d+)?)[kKmMgGtT]\b")
_NAME = re.compile(r"(?<=--)[^.=]*")
_BRACES = re.compile(r"\s*\{.*\}\s*", re.DOTALL)
_LEVEL = "--optimization-level"


@dataclass(frozen=True, kw_only=True)
class ArgumentProblem:
    """What vLLM's parser refuses. option: its name as written, "" for a word that belongs to none.

    near: the option or value that is meant; "" if none is near. is_unknown: whether there is no such option.
    """

    word: ScriptValue
    option: str
    problem: str
    near: str = ""
    is_unknown: bool = False


@dataclass(frozen=True, kw_only=True)
class ParsedCommand:
    """The values of the options that a command gives, with the words that give them, by their name.

    open: what could not be decided of the words, because the options are not known well enough.
    """

    values: Mapping[str, object]
    words: Mapping[str, ScriptValue]
    problems: tuple[ArgumentProblem, ...]
    open: tuple[str, ...] = ()


class _Word(str):
    """A text with the word of the script that it comes from."""

    source: ScriptValue
    __slots__ = ("source",)

    @classmethod
    def of(cls, text: str, source: ScriptValue) -> _Word:
        word = cls(text)
        word.source = source
        return word


class _RefusedError(Exception):
    """A command that the parser refuses as a whole."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise _RefusedError(message)


@dataclass(frozen=True)
class UnknownText:
    """A value that only a run knows."""

    source: str


def parse_command(words: Sequence[ScriptValue], known: ServerOptions) -> ParsedCommand:
    """Parse the words after `vllm serve`. Each option with a wrong value is reported, and then left open."""
    options = list(known.options)
    given = list(_written_by_vllm(_model_first(words, known)))
    problems: list[ArgumentProblem] = []
    while True:
        parser = _parser(options, known.classes)
        try:
            namespace, rest = parser.parse_known_args(given, argparse.Namespace())
            break
        except argparse.ArgumentError as error:
            place = next((at for at, one in enumerate(options) if _is_named(one, error.argument_name)), None)
            if place is None or len(problems) >= MAX_PROBLEMS or options[place].form == "open":
                return _stopped(problems, str(error))
            problems.append(_refused(options[place], str(error.message), given))
            options[place] = replace(options[place], form="open", choices=())
        except _RefusedError as error:
            return _stopped([*problems, *_ambiguous(str(error), given)], str(error))
    unrecognised = list(_unrecognised(rest, given, options))
    values = {name: one for name, one in vars(namespace).items() if one is not argparse.SUPPRESS}
    places = dict(_words_of(values, options, given))
    unread = [] if known.complete else [f"{NO_ARGUMENT} {one.word.text}" for one in unrecognised]
    return ParsedCommand(
        values=values,
        words=places,
        problems=(*problems, *(unrecognised if known.complete else ())),
        open=(*unread, *_of_unknown_type(known, places)),
    )


def _stopped(problems: Sequence[ArgumentProblem], why: str) -> ParsedCommand:
    """A command that could not be read to its end."""
    unread = () if problems else (f"the arguments of the command, which argparse refuses: {why}",)
    return ParsedCommand(values={}, words={}, problems=tuple(problems), open=unread)


def _ambiguous(refusal: str, given: Sequence[_Word]) -> Iterator[ArgumentProblem]:
    """A shortened option that is the beginning of several."""
    found = re.match(r"ambiguous option: (?P<option>\S+) could match", refusal)
    word = next((one for one in given if found and one == found["option"]), None)
    if word is not None:
        yield ArgumentProblem(word=word.source, option=word.partition("=")[0], problem=refusal)


def _of_unknown_type(known: ServerOptions, words: Mapping[str, ScriptValue]) -> Iterator[str]:
    """The options of a command whose values are not compared."""
    for option in known.options:
        word = words.get(option.dest)
        if word is not None and not word.unknown and (option.form == "open" or option.unread):
            name = next(iter(option.flags), option.dest)
            yield f"{option.unread} of {name}" if option.unread else f"the type of {name}"


def _model_first(words: Sequence[ScriptValue], known: ServerOptions) -> Sequence[ScriptValue]:
    """The words with the model of `--model` in front, whatever follows it, as `vllm serve` puts it there."""
    if not any(one.dest == "model_tag" for one in known.options):
        return words
    place = next((at for at, one in enumerate(words) if re.match(r"--model(?:=.|\Z)", one.text)), -1)
    if place < 0 or (words[place].text == "--model" and place + 1 == len(words)):
        return words
    text = words[place].text.partition("=")[2]
    model = [replace(words[place], text=text)] if text else [words[place + 1]]
    return [*model, *words[:place], *words[place + (1 if text else 2) :]]


def _written_by_vllm(words: Sequence[ScriptValue]) -> Iterator[_Word]:
    """The words as vLLM's parser hands them to argparse."""
    joined: dict[str, tuple[dict[str, object], ScriptValue]] = {}
    pending = ""
    for word in words:
        text = word.text
        if pending:
            _join(joined, pending, text, word)
            pending = ""
        elif text.startswith("-O") and text != "-O":
            yield _Word.of(_LEVEL, word)
            yield _Word.of(text[3:] if text[2] == "=" else text[2:], word)
        elif not re.match(r"--?[A-Za-z]", text) or word.whole:
            yield _Word.of(text, word)
        else:
            name, equals, value = text.partition("=")
            name = _NAME.sub(lambda found: found[0].replace("_", "-"), name, count=1)
            if "." not in name:
                yield _Word.of(f"{name}{equals}{value}", word)
            elif equals:
                _join(joined, name, value, word)
            else:
                pending = name
    for option, (entries, word) in joined.items():
        yield _Word.of(option, word)
        yield _Word.of(json.dumps(entries), word)


def _join(
    joined: dict[str, tuple[dict[str, object], ScriptValue]], name: str, text: str, word: ScriptValue
) -> None:
    """Add `--option.key value` to the JSON of its option."""
    first, *keys = name.rstrip("+").split(".")
    inner = joined.setdefault(first, ({}, word))[0]
    for key in keys[:-1]:
        found = inner.setdefault(key, {})
        if not isinstance(found, dict):
            return
        inner = found
    try:
        inner[keys[-1]] = json.loads(text)
    except ValueError:
        inner[keys[-1]] = text


def _parser(options: Sequence[ServerOption], classes: Classes) -> _Parser:
    parser = _Parser(add_help=False, exit_on_error=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("-h", "--help", action="store_true")
    for one in options:
        names = one.flags or (one.dest,)
        reads = _reader(one, classes)
        if one.form == "switch":
            parser.add_argument(*names, dest=one.dest, action="store_true")
        elif one.form == "pair":
            parser.add_argument(*names, dest=one.dest, action=argparse.BooleanOptionalAction)
        elif not one.flags:
            parser.add_argument(one.dest, nargs=one.nargs or "?", type=reads)
        else:
            nargs = int(one.nargs) if one.nargs.isdigit() else one.nargs or None
            action = "append" if one.appends else "store"
            parser.add_argument(*names, dest=one.dest, nargs=nargs, type=reads, action=action)
    return parser


def refused_value(text: str, option: ServerOption, classes: Classes) -> str:
    """Why an option does not take a value; "" if it does."""
    try:
        _reader(option, classes)(text)
    except argparse.ArgumentTypeError as error:
        return str(error)
    return ""


def _reader(option: ServerOption, classes: Classes) -> Callable[[str], object]:
    """How the values of an option are read. ArgumentTypeError with what it takes."""

    def read(text: str) -> object:
        word = text.source if isinstance(text, _Word) else None
        if word is not None and (word.unknown or word.whole):
            return UnknownText(word.unknown)
        if option.is_optional and text in ("", "None"):
            return None
        if option.choices:
            if text not in option.choices:
                raise argparse.ArgumentTypeError(f"it takes {', '.join(option.choices)}")
            return int(text) if option.form == "int" else text
        value = _READERS[option.form](text, option)
        problem = json_problem(value, option.takes, classes) or limit_problem(value, option.limits)
        if problem:
            raise argparse.ArgumentTypeError(problem)
        return value

    return read


def _integer(text: str, _option: ServerOption) -> object:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("it takes a whole number") from None


def _float(text: str, _option: ServerOption) -> object:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("it takes a number") from None


def _sized(text: str, _option: ServerOption) -> object:
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError("it takes a whole number, such as 4096 or 4k")
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else UnknownText("")


def _json(text: str, _option: ServerOption) -> object:
    try:
        # vLLM takes sizes such as 80m in some of these options.
        return json.loads(_SIZE.sub(r"\1", text))
    except ValueError:
        raise argparse.ArgumentTypeError("it takes JSON, and this is none") from None


_READERS: Mapping[str, Callable[[str, ServerOption], object]] = {
    "int": _integer,
    "float": _float,
    "number": _sized,
    "json": _json,
    "object": _json,
    "mapping": lambda text, option: _json(text, option) if _BRACES.fullmatch(text) else str(text),
    "text": lambda text, _option: str(text),
    "open": lambda text, _option: str(text),
}


def _is_named(option: ServerOption, name: str | None) -> bool:
    """Whether an error of argparse is about this option: it names all its flags, or its destination."""
    flags = set((name or "").split("/"))
    return bool(flags & {*option.flags, option.dest, *(f"--no-{one[2:]}" for one in option.flags)})


def _refused(option: ServerOption, problem: str, given: Sequence[_Word]) -> ArgumentProblem:
    at = next((place for place, one in enumerate(given) if _gives(one, option)), 0)
    written = str(given[at]).partition("=")[0] if given else ""
    following = given[at + 1] if at + 1 < len(given) and "=" not in given[at] else given[at]
    text = str(following).partition("=")[2] if following is given[at] else str(following)
    return ArgumentProblem(
        word=replace(following.source, text=text),
        option=written,
        problem=problem,
        near=nearest_word(text, option.choices) if option.choices else "",
    )


def _gives(word: str, option: ServerOption) -> bool:
    name = word.partition("=")[0]
    return name in option.flags or (len(name) > 3 and any(one.startswith(name) for one in option.flags))


def _unrecognised(
    rest: Sequence[str], given: Sequence[_Word], options: Sequence[ServerOption]
) -> Iterator[ArgumentProblem]:
    """The words that belong to no option: options that the release lacks, and texts without an option."""
    flags = [flag for one in options for flag in one.flags if flag.startswith("--")]
    unknown_before = False
    for one in rest:
        word = next((each for each in given if each is one), None)
        if word is None or is_from_outside(word.source) or (word.source.unknown and not one.startswith("--")):
            unknown_before = False
        elif re.match(r"--?[A-Za-z]", one):
            name = one.partition("=")[0]
            near = nearest_word(name, flags)
            unknown_before = True
            yield ArgumentProblem(word=word.source, option=name, problem="", near=near, is_unknown=True)
        elif not unknown_before:
            yield ArgumentProblem(word=word.source, option="", problem=str(one))
        else:
            # The value of an option that is not known.
            unknown_before = False


def _words_of(
    values: Mapping[str, object], options: Sequence[ServerOption], given: Sequence[_Word]
) -> Iterator[tuple[str, ScriptValue]]:
    """The word of the script that gives each option; that of the value if it is a word of its own."""
    for option in options:
        if option.dest not in values:
            continue
        for place, one in enumerate(given):
            if _gives(str(one).replace("--no-", "--", 1), option):
                following = given[place + 1 : place + 2]
                own = not following or "=" in one or option.form in ("switch", "pair")
                source = one.source if own else following[0].source
                yield option.dest, replace(source, text=str(one if own else following[0]))

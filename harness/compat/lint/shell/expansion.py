"""Expansion of words: parameters, arrays, arithmetic, quotes and word splitting, as bash does it.

File name patterns are not expanded, and nothing is executed: what only a run can know is an unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.compat.lint.shell.arithmetic import Arithmetic, UnknownNumberError
from harness.compat.lint.shell.braces import expand_braces
from harness.compat.lint.shell.escapes import decoded
from harness.compat.lint.shell.escapes import quoted as shell_quoted
from harness.compat.lint.shell.glob_pattern import GlobPattern, TooMuchWorkError, parse_glob
from harness.compat.lint.shell.regular_expression import match_groups
from harness.compat.lint.shell.syntax_tree import SyntaxNode, parse_bash
from harness.compat.lint.shell.values import (
    MAX_TEXT,
    Expansion,
    ScriptValue,
    Sparse,
    TooLargeError,
    Variable,
    joined,
    placed,
)
from harness.compat.lint.shell.word_splitting import DEFAULT_IFS, split_fields, words_around_sources
from harness.compat.lint.shell.world import World
from harness.errors import InputError, Location

_ESCAPE = re.compile(r"\\(\r?\n|.|\Z)", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_BASED = re.compile(r"(?P<base>\d{1,2})#(?P<digits>[0-9a-zA-Z]+)")
_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")
# The words of a text with parts that are not known: these are written as in the script, `$(...)` with spaces.
_REFERENCE = re.compile(r"[$`]|=~|^~")
_ALONE = re.compile(r"\$\w+|\$\W|\$\{.*\}|\$\(.*\)|`[^`]*`", re.DOTALL)
_NAMED = re.compile(r"\$\{?(\w+)")
_NAME = re.compile(r"[A-Za-z_]\w*")
ALL_ELEMENTS = ("@", "*")
#: What `${name@U}` and the like do, by the operator that does the same.
_TRANSFORMATIONS = {"U": "^^", "u": "^", "L": ",,", "Q": "@Q"}
#: Variables that bash or every login sets, and that have a value.
SET_BY_BASH = frozenset(
    ("BASH_VERSION", "EUID", "HOME", "HOSTNAME", "LINENO", "OSTYPE", "PATH", "PPID", "PWD", "RANDOM")
) | {"SECONDS", "UID"}
#: Words of a command or elements of an array.
MAX_FIELDS = 20_000
MAX_NESTING = 60
#: Texts that are parsed as arithmetic, each by a process.
MAX_EXPRESSIONS = 20
#: Matches of regular expressions.
MAX_MATCHES = 100


class UnusableExpansionError(Exception):
    """An expansion with which bash does not execute the command: `${!name}` of a variable without a value."""


class UnsetVariableError(UnusableExpansionError):
    """A variable without a value, with which bash ends the script: `${name:?}`, or any with `set -u`."""


Fields = tuple[ScriptValue, ...]


class Expander:
    """Expands the words of a script.

    substitute: the output of a command substitution, if it can be known without executing it. expressions:
    counts the texts that were parsed as arithmetic.
    """

    def __init__(
        self,
        substitute: Callable[[SyntaxNode, World], Expansion | None],
        expressions: Iterator[int],
    ) -> None:
        self._substitute = substitute
        self._expressions = expressions
        self._depth = 0
        self._matches = 0

    def text(self, word: SyntaxNode | None, world: World) -> Expansion:
        """The value of a word that is not split, as in an assignment. Only a run knows what `~` means."""
        if word is None:
            return Expansion(text="")
        value = joined(self._part_text(part, world) for part in word.children("Parts"))
        parts = word.children("Parts")
        if parts and parts[0].kind == "Lit" and parts[0].text().startswith("~") and not value.unknown:
            return replace(value, unknown="HOME")
        return value

    def fields(self, word: SyntaxNode, world: World) -> Fields:
        """The words that a word becomes: none, one or several."""
        parts = word.children("Parts")
        if any("{" in part.text() for part in parts if part.kind == "Lit"):
            every = [part.text() if part.kind == "Lit" else part for part in parts]
            return tuple(
                field
                for choice in expand_braces(every)
                for field in self._word_fields([_part_of(word, one) for one in choice], word.location, world)
            )
        return self._word_fields(parts, word.location, world)

    def _word_fields(self, parts: Sequence[SyntaxNode], where: Location, world: World) -> Fields:
        """The words that the parts of one become, without braces to expand."""
        fields: list[ScriptValue] = []
        current: Expansion | None = None
        for part in parts:
            pieces = self._part_fields(part, world)
            if pieces is None and part.kind == "Lit" and not _unescaped(part.text(), quoted=False):
                continue
            if pieces is None:
                current = (current or Expansion(text="")) + self._part_text(part, world)
                continue
            for index, piece in enumerate(pieces):
                if index:
                    if current is not None:
                        fields.append(placed(current, where))
                    current = None
                if piece is not None:
                    current = piece if current is None else current + piece
        if current is not None:
            fields.append(placed(current, where))
        return tuple(fields)

    def all_fields(self, words: Sequence[SyntaxNode], world: World) -> list[ScriptValue]:
        """The words that several words become; TooLargeError if they are too many."""
        found: list[ScriptValue] = []
        for word in words:
            found += self.fields(word, world)
            if len(found) > MAX_FIELDS:
                raise TooLargeError(f"a command or an array has more than {MAX_FIELDS:,} words")
        return found

    def number(self, node: SyntaxNode | None, world: World) -> int:
        """The value of an arithmetic expression; UnknownNumberError if it is not known."""
        if node is None:
            raise UnknownNumberError("an expression that is not understood")
        arithmetic = Arithmetic(
            lambda word: self.number_in(self.text(word, world), world),
            lambda name, number: world.assign(
                name,
                Expansion(text=f"${{{name}}}", unknown=name)
                if number is None
                else Expansion(text=str(number)),
                node.location,
            ),
        )
        return arithmetic.value(node)

    def matches(self, pattern: SyntaxNode | None, value: Expansion, world: World) -> bool | None:
        """Whether a value matches the pattern in a word; None if it is not known."""
        parsed, _ = self._pattern(pattern, world)
        if parsed is not None and parsed.matches_all:
            return True
        if parsed is None or value.unknown:
            return None
        try:
            return parsed.matches(value.text)
        except TooMuchWorkError:
            return None

    def matches_expression(self, pattern: SyntaxNode | None, value: Expansion, world: World) -> bool | None:
        """Whether a regular expression matches; None if it is not known. `$BASH_REMATCH` has its groups."""
        pieces, unknown = self._pieces(pattern, world)
        self._matches += 1
        is_open = unknown or value.unknown or self._matches > MAX_MATCHES
        found = None if is_open else match_groups(pieces, value.text)
        where = pattern.location if pattern is not None else Location("")
        name = "BASH_REMATCH"
        if isinstance(found, tuple):
            world.assign(name, tuple(ScriptValue(text=text, where=where) for text in found), where)
            return True
        if found is False:
            world.assign(name, (), where)
        else:
            world.assign(name, Expansion(text=f"${{{name}[@]}}", unknown=name), where)
        return found

    def _anchor(self, replacement: SyntaxNode) -> str:
        """The `#` or `%` of `${name/#pattern/text}`, which matches at the start or end only; or ""."""
        word = replacement.child("Orig")
        first = word.children("Parts")[:1] if word is not None else []
        found = first[0].text()[:1] if first and first[0].kind == "Lit" else ""
        return found if found in ("#", "%") and not replacement.flag("All") else ""

    def _pattern(
        self, word: SyntaxNode | None, world: World, *, skip: int = 0
    ) -> tuple[GlobPattern | None, str]:
        """The pattern in a word; None, and what in it is unknown, if it is not known.

        skip: characters at its start that are not a part of the pattern.
        """
        pieces, unknown = self._pieces(word, world, skip=skip)
        return (None, unknown) if unknown else (parse_glob(pieces), "")

    def _pieces(
        self, word: SyntaxNode | None, world: World, *, skip: int = 0
    ) -> tuple[list[tuple[str, bool]], str]:
        """The texts of a pattern, each with whether it is quoted; and what of them is unknown, or ""."""
        pieces: list[tuple[str, bool]] = []
        for part in word.children("Parts") if word is not None else ():
            is_quoted = part.kind in ("SglQuoted", "DblQuoted")
            value = Expansion(text=part.text()) if part.kind == "Lit" else self._part_text(part, world)
            if value.unknown:
                return [], value.unknown
            pieces.append((value.text if pieces else value.text[skip:], is_quoted))
        return pieces, ""

    def number_in(self, value: Expansion, world: World, depth: int = 0) -> int:
        """The number in a text, which can be the name of a variable or an expression; UnknownNumberError."""
        text = value.text.strip()
        if value.unknown or depth > MAX_NESTING:
            raise UnknownNumberError(value.unknown or "a variable that refers to itself")
        if not text:
            return 0
        if _NUMBER.fullmatch(text):
            return int(text, 0) if "x" in text.lower() else _decimal_or_octal(text)
        based = _BASED.fullmatch(text)
        if based is not None:
            return _number_of_base(based["digits"], int(based["base"]))
        if _NAME.fullmatch(text):
            found = world.text(text)
            if found is None and not world.is_absent(text):
                raise UnknownNumberError(text)
            return self.number_in(found or Expansion(text=""), world, depth + 1)
        if next(self._expressions) >= MAX_EXPRESSIONS:
            raise UnknownNumberError(text)
        try:
            tree = parse_bash(f"(({text}))", "")
        except InputError as error:
            raise UnknownNumberError(text) from error
        command = next(iter(tree.children("Stmts"))).child("Cmd")
        if command is None or command.kind != "ArithmCmd":
            raise UnknownNumberError(text)
        return self.number(command.child("X"), world)

    def _part_text(self, part: SyntaxNode, world: World, *, quoted: bool = False) -> Expansion:
        match part.kind:
            case "Lit":
                return Expansion(text=_unescaped(part.text(), quoted=quoted))
            case "SglQuoted":
                text = part.text()
                return Expansion(text=decoded(text) if part.flag("Dollar") else text)
            case "DblQuoted":
                return joined(self._part_text(one, world, quoted=True) for one in part.children("Parts"))
            case "ArithmExp":
                try:
                    return Expansion(text=str(self.number(part.child("X"), world)))
                except UnknownNumberError as error:
                    return Expansion(text=part.raw, unknown=str(error) or part.raw)
            case "ParamExp":
                found = self._parameter(part, world, quoted=quoted)
                return found if isinstance(found, Expansion) else joined(found, " ")
            case "ProcSubst":
                # Its value is the name of a pipe; the command may start a program.
                self._substitute(part, world)
            case "CmdSubst":
                return self._substitute(part, world) or self._unknown(part)
        return self._unknown(part)

    def _part_fields(self, part: SyntaxNode, world: World) -> Sequence[Expansion | None] | None:
        """The fields of an unquoted expansion or of a quoted array; None for text that is not split.

        The first field continues the word before it, the last one is continued by the word after it. A field
        that is None stands for white space there, which ends the word.
        """
        if part.kind == "DblQuoted":
            inner = part.children("Parts")
            is_list = len(inner) == 1 and inner[0].kind == "ParamExp"
            if is_list and (is_every_element(inner[0]) or inner[0].text("Names") == "@"):
                found = self._parameter(inner[0], world)
                if not isinstance(found, Expansion):
                    return found
                # Quotes do not keep an array that is not known from being any number of words.
                return [replace(found, whole=bool(found.unknown))]
            return None
        if part.kind not in ("ParamExp", "CmdSubst", "ArithmExp"):
            return None
        chosen = self._chosen_word(part, world) if part.kind == "ParamExp" else None
        if chosen is not None:
            return self._fields_in_word(chosen, world)
        found = self._parameter(part, world) if part.kind == "ParamExp" else self._part_text(part, world)
        if isinstance(found, Expansion):
            return self._split(found, world.separators, whole=part.kind != "ArithmExp")
        # An element without words still ends the word before it.
        split = [self._split(element, world.separators, whole=True) or [None] for element in found]
        return [piece for pieces in split for piece in pieces]

    def _chosen_word(self, node: SyntaxNode, world: World) -> SyntaxNode | None:
        """The word with quotes that takes the place of a parameter, as in `${name:+"$name"}`."""
        operation, name_node = node.child("Exp"), node.child("Param")
        word = operation.child("Word") if operation is not None else None
        if operation is None or word is None or name_node is None or node.flag("Excl"):
            return None
        operator, name = operation.text("Op"), name_node.text()
        if operator not in (":-", "-", ":+", "+") or not any(
            part.kind in ("SglQuoted", "DblQuoted") for part in word.children("Parts")
        ):
            return None
        if name in ALL_ELEMENTS:
            missing = not world.arguments
        elif is_every_element(node):
            variable = world.variable(name)
            missing = variable is None or not variable.elements
        else:
            value = self._scalar(node, name, world)
            is_empty = value is not None and not value.text and operator.startswith(":")
            missing = (value is None and name not in SET_BY_BASH) or is_empty
        return word if missing == operator.endswith("-") else None

    def _fields_in_word(self, word: SyntaxNode, world: World) -> list[Expansion | None]:
        """The fields of a word in an unquoted expansion: what it does not quote is split."""
        found: list[Expansion | None] = []
        for part in word.children("Parts"):
            pieces = self._part_fields(part, world)
            if pieces is None and part.kind == "Lit":
                pieces = self._split(self._part_text(part, world), world.separators, whole=False)
            elif pieces is None:
                pieces = [self._part_text(part, world)]
            last, first = found[-1] if found else None, pieces[0] if pieces else None
            if last is not None and first is not None:
                found[-1:] = [last + first]
                pieces = pieces[1:]
            found += pieces
        return found

    def _split(self, value: Expansion, separators: str, *, whole: bool) -> list[Expansion | None]:
        if separators != DEFAULT_IFS and not value.unknown:
            return [replace(value, text=text) for text in split_fields(value.text, separators)]
        words = words_around_sources(value.text) if value.unknown else value.text.split()
        if value.unknown and (len(words) < 2 or not whole):
            return [replace(value, whole=whole and bool(_ALONE.fullmatch(value.text)))]
        found: list[Expansion | None] = [_word(value, word) for word in words]
        if value.text[:1].isspace():
            found.insert(0, None)
        if value.text[-1:].isspace():
            found.append(None)
        return found

    def _unknown(self, node: SyntaxNode, name: str = "") -> Expansion:
        raw = node.raw
        return Expansion(text=raw, unknown=name or raw)

    def _parameter(self, node: SyntaxNode, world: World, *, quoted: bool = False) -> Expansion | Fields:
        self._depth += 1
        try:
            if self._depth > MAX_NESTING:
                raise TooLargeError("expansions are nested too deeply")
            return self._expanded(node, world, quoted=quoted)
        finally:
            self._depth -= 1

    def _expanded(self, node: SyntaxNode, world: World, *, quoted: bool) -> Expansion | Fields:
        name_node = node.child("Param")
        name = name_node.text() if name_node is not None else ""
        if node.flag("Excl"):
            pointed = world.text(name)
            variable = world.variable(name)
            if is_every_element(node) and variable is not None:
                return tuple(ScriptValue(text=key, where=variable.where) for key in variable.keys)
            if node.text("Names"):
                found = sorted(one for one in world.variables if one.startswith(name))
                return tuple(ScriptValue(text=one, where=node.location) for one in found)
            if pointed is None and world.is_absent(name):
                raise UnusableExpansionError(name)
            if pointed is None or pointed.unknown or node.child("Index") is not None:
                return self._unknown(node, name)
            name = pointed.text
        if name in ALL_ELEMENTS or is_every_element(node):
            return self._elements(node, name, world)
        value = self._scalar(node, name, world)
        if node.flag("Length"):
            if value is None and world.is_absent(name):
                return self._nothing(name, world, "0")
            if value is None or value.unknown:
                return self._unknown(node, name)
            return Expansion(text=str(len(value.text)))
        operation = node.child("Exp")
        if operation is not None:
            return self._operation(node, operation, name, value, world, quoted=quoted)
        if value is None and world.is_absent(name):
            return self._nothing(name, world)
        if value is None:
            return self._unknown(node, name)
        if node.child("Slice") is not None or node.child("Repl") is not None:
            return self._cut(node, value, world)
        return value

    def _nothing(self, name: str, world: World, text: str = "") -> Expansion:
        """What a variable that has no value expands to; with `set -u`, bash ends the script instead."""
        if "u" in world.options:
            raise UnsetVariableError(name)
        return Expansion(text=text)

    def _scalar(self, node: SyntaxNode, name: str, world: World) -> Expansion | None:
        index = node.child("Index")
        if index is None:
            absent = name.isdigit() and world.arguments is not None and int(name) > len(world.arguments)
            return None if absent and node.child("Exp") is not None else world.text(name)
        variable = world.variable(name)
        if variable is None:
            return world.text(name) if name == "BASH_SOURCE" else None
        place = self._index(index, variable, world)
        if place.unknown:
            return self._unknown(node, place.unknown)
        element = variable.element(place.text)
        if element is None and node.child("Exp") is None:
            return self._nothing(f"{name}[{place.text}]", world)
        return element

    def _index(self, index: SyntaxNode, variable: Variable, world: World) -> Expansion:
        if not isinstance(variable.value, (tuple, Expansion, Sparse)):
            return self.text(index, world)
        if isinstance(variable.value, Expansion) and variable.value.unknown:
            return variable.value
        try:
            return Expansion(text=str(self.number(index, world)))
        except UnknownNumberError as error:
            return self._unknown(index, str(error))

    def _elements(self, node: SyntaxNode, name: str, world: World) -> Expansion | Fields:
        if name in ALL_ELEMENTS:
            # The script's own arguments: as it stands, it gets none.
            elements = world.arguments or ()
            if node.child("Slice") is not None:
                # `${@:0}` begins with the name of the script.
                elements = (ScriptValue(text=world.script, where=node.location), *elements)
        else:
            variable = world.variable(name)
            if variable is not None and isinstance(variable.value, Expansion) and variable.value.unknown:
                return self._unknown(node, variable.value.unknown)
            elements = variable.elements if variable is not None else ()
        if node.flag("Length"):
            return Expansion(text=str(len(elements)))
        cut = node.child("Slice")
        if cut is not None:
            try:
                start, length = self._bounds(cut, world)
            except UnknownNumberError as error:
                return self._unknown(node, str(error))
            offset = len(elements) + start if start < 0 else start
            is_possible = offset >= 0 and (length is None or length >= 0)
            elements = elements[offset:][:length] if is_possible else ()
        changed = self._changed_elements(node, name, elements, world)
        return joined(changed, world.separators[:1]) if _quoted_star(node, name) else changed

    def _changed_elements(self, node: SyntaxNode, name: str, elements: Fields, world: World) -> Fields:
        """The elements of `${name[@]...}` after its operation."""
        operation = node.child("Exp")
        if operation is not None:
            if operation.text("Op") in (":-", "-", ":+", "+"):
                use = bool(elements) != (operation.text("Op") in (":-", "-"))
                if operation.text("Op") in (":+", "+"):
                    return (placed(self.text(operation.child("Word"), world), node.location),) if use else ()
                return elements or (placed(self.text(operation.child("Word"), world), node.location),)
            changed = (self._operation(node, operation, name, element, world) for element in elements)
            return tuple(placed(one, node.location) for one in changed)
        if node.child("Repl") is not None:
            return tuple(placed(self._cut(node, element, world), element.where) for element in elements)
        return elements

    def _operation(
        self,
        node: SyntaxNode,
        operation: SyntaxNode,
        name: str,
        value: Expansion | None,
        world: World,
        *,
        quoted: bool = False,
    ) -> Expansion:
        operator = operation.text("Op")
        if value is None and name in SET_BY_BASH:
            value = self._unknown(node, name)
        missing = value is None or (operator.startswith(":") and not value.text and not value.unknown)
        is_absent = value is None and world.is_absent(name)
        match operator.lstrip(":"):
            case "-" | "=" | "?":
                if not missing and value is not None:
                    return value
                if operator.endswith("?") and (is_absent or value is not None):
                    raise UnsetVariableError(name)
                if operator.endswith("?"):
                    return self._unknown(node, name)
                default = self._replacement(operation.child("Word"), world, quoted=quoted)
                if operator.endswith("="):
                    world.assign(name, default, node.location)
                return default
            case "+":
                if value is None:
                    return Expansion(text="")
                if missing:
                    return Expansion(text="")
                return self._replacement(operation.child("Word"), world, quoted=quoted)
        if is_absent:
            return self._nothing(name, world)
        if value is None or value.unknown:
            return self._unknown(node, name)
        if operator in ("#", "##", "%", "%%"):
            pattern, unknown = self._pattern(operation.child("Word"), world)
            try:
                text = _without(value.text, pattern, operator) if pattern is not None else None
            except TooMuchWorkError:
                text = None
            return replace(value, text=text) if text is not None else self._unknown(node, unknown)
        cases: dict[str, Callable[[str], str]] = {
            "^^": str.upper,
            ",,": str.lower,
            "^": lambda text: text[:1].upper() + text[1:],
            ",": lambda text: text[:1].lower() + text[1:],
        }
        word = operation.child("Word")
        if operator == "@":
            operator, word = _TRANSFORMATIONS.get(self.text(word, world).text, ""), None
        if operator == "@Q":
            return replace(value, text=shell_quoted(value.text))
        if operator in cases and (word is None or not word.children("Parts")):
            return replace(value, text=cases[operator](value.text))
        pattern, _ = self._pattern(word, world)
        if operator in cases and pattern is not None:
            return replace(value, text=_changed_letters(value.text, pattern, cases[operator], operator))
        return self._unknown(node, name)

    def _replacement(self, word: SyntaxNode | None, world: World, *, quoted: bool) -> Expansion:
        """The word of `${name:-word}`; single quotes are ordinary characters inside of double quotes."""
        if not quoted or word is None:
            return self.text(word, world)
        parts = word.children("Parts")
        if any(part.kind == "SglQuoted" and re.search(r"[$`\\\\]", part.text()) for part in parts):
            return Expansion(text=word.raw, unknown=word.raw)
        return joined(
            Expansion(text=part.raw)
            if part.kind == "SglQuoted"
            else self._part_text(part, world, quoted=part.kind == "Lit")
            for part in parts
        )

    def _cut(self, node: SyntaxNode, value: Expansion, world: World) -> Expansion:
        """`${name:offset:length}` or `${name/pattern/text}`."""
        if value.unknown:
            return self._unknown(node, value.unknown)
        cut, replacement = node.child("Slice"), node.child("Repl")
        if cut is not None:
            try:
                start, length = self._bounds(cut, world)
            except UnknownNumberError as error:
                return self._unknown(node, str(error))
            text = value.text[start:] if start >= 0 or -start <= len(value.text) else ""
            if length is not None and length < 0 and -length > len(text):
                return self._unknown(node)
            return replace(value, text=text if length is None else text[:length])
        assert replacement is not None
        anchor = self._anchor(replacement)
        pattern, unknown = self._pattern(replacement.child("Orig"), world, skip=len(anchor))
        new = self.text(replacement.child("With"), world)
        if pattern is None or new.unknown:
            return self._unknown(node, unknown or new.unknown)
        try:
            if anchor:
                replaced = pattern.replaced_start if anchor == "#" else pattern.replaced_end
                text = replaced(value.text, new.text)
            else:
                text = pattern.replaced(value.text, new.text, every=replacement.flag("All"))
        except TooMuchWorkError:
            return self._unknown(node)
        if len(text) > MAX_TEXT:
            raise TooLargeError(f"a value has more than {MAX_TEXT >> 10} KiB")
        return replace(value, text=text)

    def _bounds(self, cut: SyntaxNode, world: World) -> tuple[int, int | None]:
        length = cut.child("Length")
        offset = cut.child("Offset")
        return (
            self.number(offset, world) if offset is not None else 0,
            self.number(length, world) if length is not None else None,
        )


def _part_of(word: SyntaxNode, part: str | SyntaxNode) -> SyntaxNode:
    """A part of the word, which braces were expanded in."""
    return word.literal(part) if isinstance(part, str) else part


def _changed_letters(text: str, pattern: GlobPattern, change: Callable[[str], str], operator: str) -> str:
    """`${name^^pattern}`: the letters that match are changed; the first one only for `^` and `,`."""
    count = len(text) if len(operator) == 2 else 1
    return "".join(change(one) if pattern.matches(one) else one for one in text[:count]) + text[count:]


def is_every_element(node: SyntaxNode) -> bool:
    """Whether an expansion is one of all elements or arguments: `${name[@]}`, `$@`."""
    index = node.child("Index")
    name = node.child("Param")
    if name is not None and name.text() in ALL_ELEMENTS:
        return True
    parts = index.children("Parts") if index is not None else []
    return len(parts) == 1 and parts[0].kind == "Lit" and parts[0].text() in ALL_ELEMENTS


def _quoted_star(node: SyntaxNode, name: str) -> bool:
    """Whether this is `${name[*]}` or `$*`, which quotes make one word. Unquoted, it is split again."""
    index = node.child("Index")
    parts = index.children("Parts") if index is not None else []
    return name == "*" or (bool(parts) and parts[0].text() == "*")


def _unescaped(text: str, *, quoted: bool) -> str:
    pattern = _ESCAPE_IN_QUOTES if quoted else _ESCAPE
    return pattern.sub(lambda found: found[1].strip("\r\n"), text)


def _word(value: Expansion, word: str) -> Expansion:
    """One word of a value that is split; it is unknown if it has one of the value's unknown parts."""
    unknown = value.unknown and bool(_REFERENCE.search(word))
    named = _NAMED.search(word)
    name = (named[1] if named else value.unknown) if unknown else ""
    return replace(value, text=word, unknown=name, whole=bool(unknown and _ALONE.fullmatch(word)))


def _decimal_or_octal(text: str) -> int:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0"):
        try:
            return int(text, 8)
        except ValueError as error:
            raise UnknownNumberError(text) from error
    if len(digits) > 20:
        raise UnknownNumberError("a number that is too large")
    return int(text)


def _number_of_base(digits: str, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError as error:
        raise UnknownNumberError(f"{base}#{digits}") from error


def _without(text: str, pattern: GlobPattern, operator: str) -> str:
    """The text without the shortest (`#`, `%`) or longest (`##`, `%%`) match at its start or end."""
    cut = pattern.without_start if operator.startswith("#") else pattern.without_end
    return cut(text, longest=len(operator) == 2)

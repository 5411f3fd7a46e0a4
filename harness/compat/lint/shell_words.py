"""Parse the part of bash that launch scripts use: words, quotes, continuations, variables, arithmetic.

Nothing is executed. Text that is not understood is kept unchanged and reported as a `ScriptNote` with its
line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.compat.lint.lint_measurements import ScriptNote

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=")
PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[0-9@*#?$!-])(?:(?P<operator>:?[-=])(?P<default>.*))?", re.DOTALL
)
SEPARATORS = ";&|\n"
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(?P<word>\w+)\1")
VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<plain>[A-Za-z_]\w*))")
MAX_SCRIPT_BYTES = 1 << 20
MAX_DEPTH = 40


@dataclass(frozen=True, kw_only=True)
class ShellWord:
    """A word of a command. `line` and `column` count from 1.

    parts: pieces of the word, each with a flag that says whether variables in it are expanded.
    """

    parts: tuple[tuple[str, bool], ...]
    line: int
    column: int
    quoted: bool = False

    @property
    def raw(self) -> str:
        """The word as written, without quotes."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """The value of a word. `unknown`: the first variable in the word that has no known value, or ""."""

    text: str
    unknown: str = ""


class ShellReader:
    """Splits a script into commands, and commands into words."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._line_start = 0
        self.notes: list[ScriptNote] = []

    def commands(self) -> Iterator[list[ShellWord]]:
        """The commands in order, without separators and redirections."""
        command: list[ShellWord] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\r":
                self._at += 1
            elif self._text.startswith("\\\n", self._at) or self._text.startswith("\\\r\n", self._at):
                self._skip_line()
            elif character == "#":
                self._at = self._end_of_line()
            elif character in SEPARATORS:
                if command:
                    yield command
                command = []
                self._advance()
            elif character in "<>":
                if self._redirection() and command:
                    yield command
                    command = []
            elif character in "()":
                self._at += 1
            else:
                command.append(self._word())
        if command:
            yield command

    def _advance(self) -> None:
        if self._text[self._at] == "\n":
            self._line += 1
            self._line_start = self._at + 1
        self._at += 1

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _skip_line(self) -> None:
        self._at = self._end_of_line()
        if self._at < len(self._text):
            self._advance()

    def _redirection(self) -> bool:
        """Skip a redirection; True when it also ends the command."""
        here = HEREDOC.match(self._text, self._at)
        if here:
            self.notes.append(ScriptNote(line=self._line, text="the content of a here-document is ignored"))
            self._skip_line()
            while self._at < len(self._text):
                line = self._text[self._at : self._end_of_line()].strip()
                self._skip_line()
                if line == here["word"]:
                    break
            return True
        while self._at < len(self._text) and self._text[self._at] in "<>&|0123456789":
            self._at += 1
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        if self._at < len(self._text) and self._text[self._at] not in SEPARATORS:
            self._word()
        return False

    def _word(self) -> ShellWord:
        line, column = self._line, self._at - self._line_start + 1
        parts: list[tuple[str, bool]] = []
        quoted = False
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\r\n;&|<>()":
                break
            if character == "\\":
                self._at += 1
                if self._text[self._at : self._at + 1] == "\n":
                    self._advance()
                elif self._at < len(self._text):
                    parts.append((self._text[self._at], False))
                    self._advance()
            elif character == "'":
                quoted = True
                parts.append((self._single_quoted(), False))
            elif character == '"':
                quoted = True
                parts.extend(self._double_quoted())
            elif character in "$`":
                parts.append((self._substitution(), True))
            else:
                start = self._at
                while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|<>()\\'\"$`":
                    self._at += 1
                parts.append((self._text[start : self._at], True))
        return ShellWord(parts=tuple(parts), line=line, column=column, quoted=quoted)

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            self.notes.append(ScriptNote(line=self._line, text="a quote is not closed"))
            end = len(self._text)
        text = self._text[self._at + 1 : end]
        self._move_to(min(end + 1, len(self._text)))
        return text

    def _double_quoted(self) -> list[tuple[str, bool]]:
        opened = self._line
        self._at += 1
        parts: list[tuple[str, bool]] = []
        plain = ""
        while self._at < len(self._text) and self._text[self._at] != '"':
            character = self._text[self._at]
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('$`"\\\n'):
                self._at += 1
                escaped = self._text[self._at]
                plain += "" if escaped == "\n" else escaped
                self._advance()
            elif character in "$`":
                parts += [(plain, False), (self._substitution(), True)]
                plain = ""
            else:
                plain += character
                self._advance()
        if self._at >= len(self._text):
            self.notes.append(ScriptNote(line=opened, text="a quote is not closed"))
        self._at += 1
        return [part for part in [*parts, (plain, False)] if part[0]]

    def _substitution(self) -> str:
        """The text of `$name`, `${...}`, `$(...)`, `$((...))` or backticks, unexpanded."""
        start = self._at
        if self._text[start] == "`":
            end = self._text.find("`", start + 1)
            self._move_to(len(self._text) if end < 0 else end + 1)
        elif self._text[start + 1 : start + 2] in ("{", "("):
            self._balanced(start + 1)
        elif name := NAME.match(self._text, start + 1):
            self._at = name.end()
        else:
            self._at = min(start + 2, len(self._text))
        return self._text[start : self._at]

    def substitution_at(self, position: int) -> str:
        """The substitution that starts at `position`."""
        self._at = position
        return self._substitution()

    def _balanced(self, start: int) -> None:
        opening = self._text[start]
        closing = {"{": "}", "(": ")"}[opening]
        depth, position = 0, start
        while position < len(self._text):
            depth += (self._text[position] == opening) - (self._text[position] == closing)
            position += 1
            if depth == 0:
                break
        else:
            self.notes.append(ScriptNote(line=self._line, text=f"a {opening} is not closed"))
        self._move_to(position)

    def _move_to(self, position: int) -> None:
        while self._at < position:
            self._advance()


def expand(word: ShellWord, variables: Mapping[str, Expansion]) -> Expansion:
    """The value of a word; `~` and globs are not expanded."""
    texts, unknown = [], ""
    for text, expanded in word.parts:
        value = expand_text(text, variables) if expanded else Expansion(text=text)
        texts.append(value.text)
        unknown = unknown or value.unknown
    return Expansion(text="".join(texts), unknown=unknown)


def expand_text(text: str, variables: Mapping[str, Expansion], depth: int = 0) -> Expansion:
    """Expand `$name`, `${name}`, `${name:-default}` and `$((...))` in a text."""
    if depth > MAX_DEPTH:
        return Expansion(text=text, unknown="too deeply nested")
    reader = ShellReader(text)
    result, unknown, at = "", "", 0
    while at < len(text):
        if text[at] not in "$`" or at + 1 == len(text):
            result += text[at]
            at += 1
            continue
        piece = reader.substitution_at(at)
        value = _substituted(piece, variables, depth)
        result += value.text
        unknown = unknown or value.unknown
        at += len(piece)
    return Expansion(text=result, unknown=unknown)


def _substituted(piece: str, variables: Mapping[str, Expansion], depth: int) -> Expansion:
    if piece.startswith("$((") and piece.endswith("))"):
        return evaluate_arithmetic(piece[3:-2], variables)
    if piece.startswith(("$(", "`")):
        return Expansion(text=piece, unknown=piece)
    match = PARAMETER.fullmatch(piece.strip("${}") if "{" not in piece else piece[2:-1])
    if not match:
        return Expansion(text=piece, unknown=piece)
    known = variables.get(match["name"])
    if match["operator"]:
        missing = known is None or (
            match["operator"].startswith(":") and not known.text and not known.unknown
        )
        return expand_text(match["default"], variables, depth + 1) if missing or known is None else known
    return known or Expansion(text=piece, unknown=match["name"])


def evaluate_arithmetic(text: str, variables: Mapping[str, Expansion]) -> Expansion:
    """Integer arithmetic as in bash; division rounds towards zero."""
    try:
        return Expansion(text=str(_arithmetic_value(text, variables)))
    except _UnknownValueError as error:
        return Expansion(text=f"$(({text}))", unknown=str(error))
    except (RecursionError, ValueError):
        return Expansion(text=f"$(({text}))", unknown="a number or expression that is too large")


class _UnknownValueError(Exception):
    """An arithmetic expression with an unknown variable or unsupported syntax."""


def _arithmetic_value(text: str, variables: Mapping[str, Expansion], depth: int = 0) -> int:
    """The value of an expression, which is parsed as Python, because these operators have the same syntax."""
    if depth > MAX_DEPTH:
        raise _UnknownValueError("too deeply nested")
    try:
        expression = ast.parse(f"({VARIABLE.sub(_variable_name, text)}\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise _UnknownValueError(f"$(({text}))") from error

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return number
            case ast.Name(id=name):
                known = variables.get(name)
                if known is None or known.unknown:
                    raise _UnknownValueError((known.unknown if known else "") or name)
                return _arithmetic_value(known.text, variables, depth + 1)
            # In bash the sign in `-2**2` belongs to the 2; in Python it does not.
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand) if not _is_power(operand):
                return -value(operand) if isinstance(node.op, ast.USub) else value(operand)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.Mod() | ast.Pow()):
                return _operation(node.op, value(node.left), value(node.right))
        raise _UnknownValueError(f"$(({text}))")

    return value(expression)


def _variable_name(match: re.Match[str]) -> str:
    return match["braced"] or match["plain"]


def _is_power(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)


def _operation(operator: ast.operator, left: int, right: int) -> int:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Pow():
            if not 0 <= right <= 64:
                raise _UnknownValueError("an exponent out of range")
            return int(left**right)
    if right == 0:
        raise _UnknownValueError("division by zero")
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return quotient if isinstance(operator, ast.Div) else left - quotient * right

"""The messages of the exceptions that a package raises itself, each with its function and its condition.

`ValueError: Please set at least one of ...` names no package. The release that raises it says where and when.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from harness.sources.python_syntax import parse_source

#: The packages whose exceptions users see without knowing who raised them; others only add to the size.
WITH_MESSAGES = frozenset({"tensordict", "verl", "vllm", "vllm-ascend"})
#: Of these the last release of each minor version has messages: they hardly change within it.
MESSAGES_OF_MINORS = frozenset({"tensordict", "vllm"})
#: A pack has the messages of a module in a file of this name beside it.
RAISED = ".raised"
#: Stands for a value in a message.
VALUE = "\0"
#: Messages with fewer letters than this outside of values are in too many programs.
FEWEST_LETTERS = 12
MOST_CHARACTERS = 300
_FORMAT = re.compile(r"%[-+ #0-9.*]*[sdrfgxi]")
_BRACES = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, order=True)
class RaisedMessage:
    """An exception that a function raises.

    path: the file. function: with the names of its classes. error: the name of the exception's class.
    template: the first line of the message, with `VALUE` for each value. condition: when it is raised, as
    Python text, "" if that is not in the conditions around it.
    """

    path: str
    function: str
    error: str
    template: str
    condition: str

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(astuple(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: bytes) -> RaisedMessage:
        """The message of a line that `to_line` wrote; ValueError for another line."""
        path, function, error, template, condition = json.loads(line)
        return cls(str(path), str(function), str(error), str(template), str(condition))


def message_lines(path: str, source: bytes) -> bytes:
    """The messages of a module, one in a line; empty without one, or if the module cannot be parsed."""
    tree = parse_source(source)
    found = raised_messages(path, tree) if tree else ()
    return "".join(f"{one.to_line()}\n" for one in dict.fromkeys(found)).encode()


def raised_messages(path: str, tree: ast.Module) -> Iterator[RaisedMessage]:
    """The exceptions with a message that the functions of a module raise, in the order of the file."""
    yield from _Reader(path).block(tree.body, "", (), {})


class _Reader:
    """Reads one module. texts: local variable -> the text that it was last given."""

    def __init__(self, path: str) -> None:
        self._path = path

    def block(
        self, body: Iterable[ast.stmt], name: str, conditions: tuple[str, ...], texts: dict[str, ast.expr]
    ) -> Iterator[RaisedMessage]:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield from self.block(node.body, f"{name}.{node.name}".lstrip("."), (), {})
                case ast.If():
                    test = ast.unparse(node.test)
                    yield from self.block(node.body, name, (*conditions, test), texts)
                    yield from self.block(node.orelse, name, (*conditions, f"not ({test})"), texts)
                case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                    texts[variable] = value
                case ast.Raise(exc=ast.Call(func=error, args=[message, *_])):
                    yield from self._message(name, ast.unparse(error), message, conditions, texts)
                case ast.Assert(test=test_node, msg=ast.expr() as message):
                    failed = (*conditions, f"not ({ast.unparse(test_node)})")
                    yield from self._message(name, "AssertionError", message, failed, texts)
                case _:
                    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
                        yield from self._parts(getattr(node, part, ()), name, conditions, texts)

    def _parts(
        self, parts: Iterable[ast.AST], name: str, conditions: tuple[str, ...], texts: dict[str, ast.expr]
    ) -> Iterator[RaisedMessage]:
        for part in parts:
            if isinstance(part, ast.stmt):
                yield from self.block([part], name, conditions, texts)
            elif isinstance(part, ast.ExceptHandler | ast.match_case):
                yield from self.block(part.body, name, conditions, texts)

    def _message(
        self,
        function: str,
        error: str,
        message: ast.expr,
        conditions: tuple[str, ...],
        texts: dict[str, ast.expr],
    ) -> Iterator[RaisedMessage]:
        if isinstance(message, ast.Name):
            message = texts.get(message.id, message)
        template = " ".join(_template(message).strip().split("\n")[0].split(" "))[:MOST_CHARACTERS]
        if len(re.sub(r"[^A-Za-z]", "", template)) < FEWEST_LETTERS:
            return
        # The innermost condition says most; of long ones nothing is left out in the middle.
        condition = " and ".join(conditions[-2:])
        if len(condition) > MOST_CHARACTERS:
            condition = conditions[-1] if len(conditions[-1]) <= MOST_CHARACTERS else ""
        yield RaisedMessage(self._path, function, error.rpartition(".")[2], template, condition)


def _template(message: ast.expr) -> str:
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_template, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _FORMAT.sub(VALUE, text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _BRACES.sub(VALUE, text)
        case _:
            return VALUE

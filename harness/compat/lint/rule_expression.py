"""Conditions of lint rules: a small language of names, comparisons, `and`, `or`, `not` and a few functions.

    loss_mode == 'gspo' and loss_agg_mode != 'seq-mean-token-mean' and verl >= 0.9.1
    set(clip_ratio) and unset(clip_ratio_low)

Conditions cannot call Python. They have three truth values (Kleene's logic): a condition that depends on an
unknown value (a version that was not passed, a shell variable without a value) is UNKNOWN, unless the rest of
the condition decides it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from harness.matrix.model.versions import Version, parse_version

TOKEN = re.compile(
    r"\s*(?:(?P<string>'[^']*')|(?P<literal>\d[\w.]*(?:e-?\d+)?)|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?P<operator>==|!=|<=|>=|<|>|\(|\)|,|\+|-|\*|/|%))"
)
MAX_DEPTH = 50


class NoValue(enum.Enum):
    """UNSET: a setting has no value. UNKNOWN: it has a value that is not known."""

    UNSET = "unset"
    UNKNOWN = "unknown"


UNSET, UNKNOWN = NoValue.UNSET, NoValue.UNKNOWN


class RuleFacts(Protocol):
    """Provides the values of the names in conditions."""

    def value(self, name: str) -> Any:
        """The value of `name`: bool, number, string, `Version`, UNSET or UNKNOWN."""

    def is_set(self, name: str) -> bool:
        """Whether the job sets `name`; False when its value is a default."""


@dataclass(frozen=True)
class ExpressionNode:
    """One operation of a condition; `items` are its operands."""

    kind: str
    text: str = ""
    items: tuple[ExpressionNode, ...] = ()


class ExpressionError(ValueError):
    """A condition with a syntax error; the message has the column."""


def parse_expression(text: str) -> ExpressionNode:
    """Parse a condition; ExpressionError with the column of a syntax error."""
    return _ExpressionParser(text).parse()


def names_in(node: ExpressionNode) -> set[str]:
    """Every name that a condition uses."""
    found = {node.text} if node.kind == "name" else set()
    return found.union(*(names_in(item) for item in node.items)) if node.items else found


def deciding_names(node: ExpressionNode, facts: RuleFacts) -> set[str]:
    """The names in the parts of a true condition that make it true."""
    found = {node.text} if node.kind == "name" else set()
    deciding = node.items
    if node.kind == "or":
        deciding = tuple(one for one in node.items if _truth(evaluate(one, facts)) is True)
    return found.union(*(deciding_names(one, facts) for one in deciding))


def evaluate(node: ExpressionNode, facts: RuleFacts) -> Any:
    """The value of an expression; True, False or UNKNOWN for a condition."""
    return EVALUATORS[node.kind](node, facts)


class _ExpressionParser:
    """A recursive descent parser; each method parses one level of operator precedence, lowest first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._next = 0
        self._depth = 0

    def parse(self) -> ExpressionNode:
        node = self._or()
        if self._next < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._next][1]!r}")
        return node

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        position, end = 0, len(self._text.rstrip())
        while position < end:
            match = TOKEN.match(self._text, position)
            if not match or match.lastgroup is None:
                raise ExpressionError(f"{self._text!r}, column {position + 1}: cannot be read")
            yield match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)
            position = match.end()

    def _error(self, what: str) -> ExpressionError:
        at = self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)
        return ExpressionError(f"{self._text!r}, column {at + 1}: {what}")

    def _accept(self, *texts: str) -> str:
        if self._next < len(self._tokens) and self._tokens[self._next][1] in texts:
            self._next += 1
            return self._tokens[self._next - 1][1]
        return ""

    def _require(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"expected {text!r}")

    def _chain(self, inner: Callable[[], ExpressionNode], *operators: str) -> ExpressionNode:
        node = inner()
        while operator := self._accept(*operators):
            node = ExpressionNode(operator, items=(node, inner()))
        return node

    def _or(self) -> ExpressionNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("too deeply nested")
        node = self._chain(lambda: self._chain(self._not, "and"), "or")
        self._depth -= 1
        return node

    def _not(self) -> ExpressionNode:
        if self._accept("not"):
            return ExpressionNode("not", items=(self._not(),))
        return self._comparison()

    def _comparison(self) -> ExpressionNode:
        left = self._sum()
        if operator := self._accept("==", "!=", "<=", ">=", "<", ">"):
            return ExpressionNode(operator, items=(left, self._sum()))
        if self._accept("in"):
            return ExpressionNode("in", items=(left, *self._list()))
        return left

    def _list(self) -> Iterator[ExpressionNode]:
        self._require("(")
        yield self._sum()
        while self._accept(","):
            yield self._sum()
        self._require(")")

    def _sum(self) -> ExpressionNode:
        return self._chain(lambda: self._chain(self._atom, "*", "/", "%"), "+", "-")

    def _atom(self) -> ExpressionNode:
        if self._accept("("):
            node = self._or()
            self._require(")")
            return node
        if self._accept("-"):
            return ExpressionNode("-", items=(ExpressionNode("literal", "0"), self._atom()))
        if self._next >= len(self._tokens):
            raise self._error("unexpected end")
        kind, text, _ = self._tokens[self._next]
        if kind == "operator" or text in ("and", "or", "not", "in"):
            raise self._error(f"unexpected {text!r}")
        self._next += 1
        if kind == "string":
            return ExpressionNode("string", text[1:-1])
        if kind == "name" and text in ("true", "false"):
            return ExpressionNode("literal", text)
        if kind == "name" and self._accept("("):
            return self._call(text)
        return ExpressionNode(kind, text)

    def _call(self, name: str) -> ExpressionNode:
        if name not in FUNCTIONS:
            raise self._error(f"unknown function {name!r}")
        arguments = [self._or()]
        while self._accept(","):
            arguments.append(self._or())
        self._require(")")
        if len(arguments) != FUNCTIONS[name]:
            raise self._error(f"{name} takes {FUNCTIONS[name]} argument(s)")
        if name in ("set", "unset") and arguments[0].kind != "name":
            raise self._error(f"{name} takes a name")
        return ExpressionNode(name, items=tuple(arguments))


FUNCTIONS = {"set": 1, "unset": 1, "contains": 2, "startswith": 2, "known": 1}


def _literal(node: ExpressionNode, _facts: RuleFacts) -> Any:
    if node.text in ("true", "false"):
        return node.text == "true"
    try:
        return float(node.text)
    except ValueError:
        return _LiteralText(node.text)


class _LiteralText(str):
    """A literal that is not a number, such as `0.9.1`. Compared with a version it becomes one."""


def _logic(node: ExpressionNode, facts: RuleFacts) -> Any:
    decisive = node.kind == "or"
    values = [_truth(evaluate(item, facts)) for item in node.items]
    if decisive in values:
        return decisive
    return UNKNOWN if UNKNOWN in values else not decisive


def _truth(value: Any) -> Any:
    if value is UNKNOWN:
        return UNKNOWN
    return value is not UNSET and bool(value)


def _not(node: ExpressionNode, facts: RuleFacts) -> Any:
    value = _truth(evaluate(node.items[0], facts))
    return UNKNOWN if value is UNKNOWN else not value


def _compare(node: ExpressionNode, facts: RuleFacts) -> Any:
    left, right = (evaluate(item, facts) for item in node.items)
    if node.kind in ("<", "<=", ">", ">="):
        return _ordered(node, left, right)
    equal = _equal(node, left, right)
    return equal if equal is UNKNOWN or node.kind == "==" else not equal


def _equal(node: ExpressionNode, left: Any, right: Any) -> Any:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if UNSET in (left, right):
        return left is right
    left, right = _same_type(node, left, right)
    if isinstance(left, Version):
        return bool(left.compare(right) == 0)
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _ordered(node: ExpressionNode, left: Any, right: Any) -> Any:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if UNSET in (left, right):
        return False
    left, right = _same_type(node, left, right)
    if type(left) is not type(right) or isinstance(left, bool):
        return UNKNOWN
    try:
        sign = left.compare(right) if isinstance(left, Version) else (left > right) - (left < right)
    except ValueError:
        return UNKNOWN
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[node.kind]


def _same_type(node: ExpressionNode, left: Any, right: Any) -> tuple[Any, Any]:
    """Convert both sides to versions when one is a version, or to numbers when both can be."""
    if isinstance(left, Version) and not isinstance(right, Version):
        return left, parse_version(left.scheme, _literal_text(node.items[1], right))
    if isinstance(right, Version) and not isinstance(left, Version):
        return parse_version(right.scheme, _literal_text(node.items[0], left)), right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)) and not isinstance(left, bool):
        return float(left), float(right)
    return left, right


def _literal_text(node: ExpressionNode, value: Any) -> str:
    """A literal as written in the rule: compared with a version, `0.10` is not the number 0.1."""
    return node.text if node.kind in ("literal", "string") else str(value)


def _arithmetic(node: ExpressionNode, facts: RuleFacts) -> Any:
    left, right = (evaluate(item, facts) for item in node.items)
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (left, right))
    if not numbers or (node.kind in "/%" and right == 0):
        return UNKNOWN
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
        "%": lambda: left % right,
    }[node.kind]()


def _in(node: ExpressionNode, facts: RuleFacts) -> Any:
    subject, *choices = node.items
    results = [_compare(ExpressionNode("==", items=(subject, choice)), facts) for choice in choices]
    if True in results:
        return True
    return UNKNOWN if UNKNOWN in results else False


def _text_test(node: ExpressionNode, facts: RuleFacts) -> Any:
    text, part = (evaluate(item, facts) for item in node.items)
    if UNKNOWN in (text, part):
        return UNKNOWN
    if UNSET in (text, part):
        return False
    return str(part) in str(text) if node.kind == "contains" else str(text).startswith(str(part))


EVALUATORS: dict[str, Callable[[ExpressionNode, RuleFacts], Any]] = {
    "literal": _literal,
    "string": lambda node, _facts: node.text,
    "name": lambda node, facts: facts.value(node.text),
    "or": _logic,
    "and": _logic,
    "not": _not,
    "in": _in,
    "set": lambda node, facts: facts.is_set(node.items[0].text),
    "unset": lambda node, facts: not facts.is_set(node.items[0].text),
    "known": lambda node, facts: evaluate(node.items[0], facts) not in (UNKNOWN, UNSET),
    "contains": _text_test,
    "startswith": _text_test,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _compare),
    **dict.fromkeys("+-*/%", _arithmetic),
}

"""Truth of conditions: `[ ... ]`, `[[ ... ]]`, `test`."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from harness.compat.lint.shell.arithmetic import UnknownNumberError
from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import Expansion
from harness.compat.lint.shell.world import World


class Truth(enum.Enum):
    """The exit status of a command.

    OPEN: a condition that is not known. RAN: a program, which is expected to succeed.
    """

    YES = "yes"
    NO = "no"
    OPEN = "open"
    RAN = "ran"

    @classmethod
    def of(cls, value: bool | None) -> Truth:
        """The truth of a condition; None for one that is not known."""
        return cls.OPEN if value is None else cls.YES if value else cls.NO

    @property
    def known(self) -> bool | None:
        """True, False, or None."""
        return {Truth.YES: True, Truth.NO: False}.get(self)

    def negated(self) -> Truth:
        """The status of `! command`."""
        return {Truth.YES: Truth.NO, Truth.NO: Truth.YES}.get(self, Truth.OPEN)


_NUMBERS = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_OPEN_OPERATOR = re.compile(r"-[abcdefghkoprstuvwxGLNORS]")
_INTEGER = re.compile(r"[+-]?\d{1,20}")


def evaluate_test(words: Sequence[Expansion], world: World) -> Truth:
    """The truth of the arguments of `test`."""
    if not words:
        return Truth.NO
    if words[0].text == "!" and 1 < len(words) < 5:
        return evaluate_test(words[1:], world).negated()
    if len(words) == 1:
        return _is_not_empty(words[0])
    if len(words) == 2:
        return _unary(words[0].text, words[1], world)
    if len(words) == 3 and words[1].text not in ("-a", "-o"):
        return _binary(words[1].text, words[0], words[2])
    for joint in ("-o", "-a"):
        places = [index for index, word in enumerate(words) if word.text == joint]
        if places:
            left = evaluate_test(words[: places[0]], world)
            right = evaluate_test(words[places[0] + 1 :], world)
            return _either(left, right) if joint == "-o" else _both(left, right)
    if words[0].text == "!":
        return evaluate_test(words[1:], world).negated()
    # `test` ends with an error if it has too many arguments.
    unclear = any(word.unknown or word.text in ("(", ")") for word in words)
    return Truth.OPEN if unclear else Truth.NO


def evaluate_clause(node: SyntaxNode | None, expander: Expander, world: World) -> Truth:
    """The truth of the expression in `[[ ... ]]`."""
    if node is None:
        return Truth.OPEN
    match node.kind:
        case "ParenTest":
            return evaluate_clause(node.child("X"), expander, world)
        case "UnaryTest":
            if node.text("Op") == "!":
                return evaluate_clause(node.child("X"), expander, world).negated()
            return _unary(node.text("Op"), expander.text(node.child("X"), world), world)
        case "BinaryTest":
            return _binary_clause(node, expander, world)
    return _is_not_empty(expander.text(node, world))


def _binary_clause(node: SyntaxNode, expander: Expander, world: World) -> Truth:
    operator, left, right = node.text("Op"), node.child("X"), node.child("Y")
    if operator == "&&":
        return _both(evaluate_clause(left, expander, world), evaluate_clause(right, expander, world))
    if operator == "||":
        return _either(evaluate_clause(left, expander, world), evaluate_clause(right, expander, world))
    value = expander.text(left, world)
    if operator == "=~":
        return Truth.of(expander.matches_expression(right, value, world))
    if operator in ("=", "==", "!="):
        equal = Truth.of(expander.matches(right, value, world))
        return equal.negated() if operator == "!=" else equal
    if operator in _NUMBERS and left is not None and right is not None:
        try:
            return Truth.of(_NUMBERS[operator](expander.number(left, world), expander.number(right, world)))
        except UnknownNumberError:
            return Truth.OPEN
    return _binary(operator, value, expander.text(right, world))


def _unary(operator: str, value: Expansion, world: World) -> Truth:
    if operator == "-v" and value.text.isidentifier():
        is_set = world.variable(value.text) is not None
        return Truth.YES if is_set else Truth.NO if world.is_absent(value.text) else Truth.OPEN
    if operator in ("-n", "-z"):
        filled = _is_not_empty(value)
        return filled if operator == "-n" else filled.negated()
    # Files and options of the shell are known only to a run; other operators are errors.
    return Truth.OPEN if _OPEN_OPERATOR.fullmatch(operator) else Truth.NO


def _binary(operator: str, left: Expansion, right: Expansion) -> Truth:
    if left.unknown or right.unknown:
        return Truth.OPEN
    if operator in ("=", "==", "!="):
        return Truth.of((left.text == right.text) == (operator != "!="))
    if operator in _NUMBERS and _INTEGER.fullmatch(left.text) and _INTEGER.fullmatch(right.text):
        return Truth.of(_NUMBERS[operator](int(left.text), int(right.text)))
    return Truth.OPEN


def _is_not_empty(value: Expansion) -> Truth:
    return Truth.OPEN if value.unknown else Truth.of(bool(value.text))


def _both(left: Truth, right: Truth) -> Truth:
    if Truth.NO in (left, right):
        return Truth.NO
    return Truth.YES if left is right is Truth.YES else Truth.OPEN


def _either(left: Truth, right: Truth) -> Truth:
    if Truth.YES in (left, right):
        return Truth.YES
    return Truth.NO if left is right is Truth.NO else Truth.OPEN

"""Integer arithmetic of bash, on shfmt's syntax tree."""

from __future__ import annotations

from collections.abc import Callable

from harness.compat.lint.shell.syntax_tree import SyntaxNode

MAX_EXPONENT = 64
_BITS = 64
_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")


class UnknownNumberError(Exception):
    """The value of an expression is not known. The argument names what is not known."""


class Arithmetic:
    """Evaluates expressions.

    read: the number in a word. assign: sets a variable; None stands for a number that is not known.
    """

    def __init__(self, read: Callable[[SyntaxNode], int], assign: Callable[[str, int | None], None]) -> None:
        self._read, self._assign = read, assign

    def value(self, node: SyntaxNode) -> int:
        """The value of an expression; UnknownNumberError if it is not known."""
        match node.kind:
            case "BinaryArithm":
                return _wrapped(self._binary(node))
            case "UnaryArithm":
                return _wrapped(self._unary(node))
            case "ParenArithm":
                return self.value(_operand(node, "X"))
        return self._read(node)

    def _unary(self, node: SyntaxNode) -> int:
        operator, operand = node.text("Op"), _operand(node, "X")
        number = self.value(operand)
        if operator in ("++", "--"):
            changed = number + (1 if operator == "++" else -1)
            self._assign(_name(operand), changed)
            return number if node.flag("Post") else changed
        results = {"-": -number, "+": number, "!": int(not number), "~": ~number}
        if operator not in results:
            raise UnknownNumberError(operator)
        return results[operator]

    def _binary(self, node: SyntaxNode) -> int:
        operator, left, right = node.text("Op"), _operand(node, "X"), _operand(node, "Y")
        if operator in _ASSIGNMENTS:
            name = _name(left)
            try:
                number = self.value(right)
                if operator != "=":
                    number = _wrapped(_calculate(operator[:-1], self.value(left), number))
            except UnknownNumberError:
                self._assign(name, None)
                raise
            self._assign(name, number)
            return number
        if operator == "?":
            yes, no = _operand(right, "X"), _operand(right, "Y")
            return self.value(yes if self.value(left) else no)
        if operator == "&&":
            return int(bool(self.value(left)) and bool(self.value(right)))
        if operator == "||":
            return int(bool(self.value(left)) or bool(self.value(right)))
        return _calculate(operator, self.value(left), self.value(right))


def _calculate(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise UnknownNumberError("division by zero")
        # bash rounds towards zero, Python down.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("**", "<<", ">>"):
        if not 0 <= right <= MAX_EXPONENT:
            raise UnknownNumberError("an exponent out of range")
        if operator == "**":
            return int(left**right)
        return left << right if operator == "<<" else left >> right
    results: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "<": lambda: int(left < right),
        ">": lambda: int(left > right),
        "<=": lambda: int(left <= right),
        ">=": lambda: int(left >= right),
        "==": lambda: int(left == right),
        "!=": lambda: int(left != right),
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        ",": lambda: right,
    }
    if operator not in results:
        raise UnknownNumberError(operator)
    return results[operator]()


def _wrapped(number: int) -> int:
    """The number in 64 bits, as bash computes."""
    return (number + (1 << (_BITS - 1))) % (1 << _BITS) - (1 << (_BITS - 1))


def _operand(node: SyntaxNode, name: str) -> SyntaxNode:
    operand = node.child(name)
    if operand is None:
        raise UnknownNumberError("an expression that is not understood")
    return operand


def _name(node: SyntaxNode) -> str:
    """The variable that an expression assigns to."""
    parts = node.children("Parts")
    if len(parts) == 1 and parts[0].kind == "Lit":
        return parts[0].text()
    raise UnknownNumberError("an assignment that is not understood")

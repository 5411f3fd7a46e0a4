"""Recognise guards of a use: tests of a version or of whether a name exists, and caught errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from harness.compat.surface.syntax_walk import walk

IMPORT_ERRORS = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
)
CALL_ERRORS = frozenset({"TypeError", "RuntimeError", "ValueError", "NotImplementedError"})
# Tests of a version, or of whether something exists.
AVAILABILITY = re.compile(
    r"(?i)version|hasattr|availab|find_spec|type_checking|\bhas_|_v\d|\bis_v\d|supports?_|signature|in_range"
)
ASSIGNMENT = re.compile(r"\s*(\w+)(?:\s*:[^=]+)?\s*=\s*(.+)")


class AvailabilityTests:
    """Recognises the tests of a version or of the existence of a name in one file."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        # Variables that hold the result of such a test.
        self._version_variables = {
            found[1]
            for line in lines
            if "=" in line and (found := ASSIGNMENT.match(line)) and AVAILABILITY.search(found[2])
        }

    def is_availability_test(self, test: ast.expr) -> bool:
        """Whether a condition tests a version, or whether something exists."""
        written = "\n".join(self._lines[test.lineno - 1 : test.end_lineno])
        if AVAILABILITY.search(written) and AVAILABILITY.search(ast.unparse(test)):
            return True
        return bool(self._version_variables) and any(
            isinstance(n, ast.Name) and n.id in self._version_variables for n in walk(test)
        )


def caught_errors(handler: ast.ExceptHandler) -> Iterator[str]:
    """The names of the exceptions that a handler catches, without their modules."""
    if handler.type is None:
        yield "Exception"
        return
    for name in handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]:
        yield ast.unparse(name).rpartition(".")[2]


def leaves_block(body: list[ast.stmt]) -> bool:
    """Whether a block ends with a statement that leaves it, so that what follows is skipped."""
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)

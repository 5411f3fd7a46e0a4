"""What stands guard before a use: tests that ask whether something is there, and errors that are caught."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from harness.compat.surface.syntax_walk import walk

IMPORT_ERRORS = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
)
CALL_ERRORS = frozenset({"TypeError", "RuntimeError", "ValueError", "NotImplementedError"})
# Tests that ask which version, or whether something is there, before it is used.
AVAILABILITY = re.compile(
    r"(?i)version|hasattr|availab|find_spec|type_checking|\bhas_|_v\d|\bis_v\d|supports?_|signature|in_range"
)
ASSIGNMENT = re.compile(r"\s*(\w+)(?:\s*:[^=]+)?\s*=\s*(.+)")


class AvailabilityTests:
    """What the tests of one file ask, by its lines."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        # Variables that hold the answer to a question about versions.
        self._asked = {
            found[1]
            for line in lines
            if "=" in line and (found := ASSIGNMENT.match(line)) and AVAILABILITY.search(found[2])
        }

    def asked_by(self, test: ast.expr) -> bool:
        """Whether a test asks for a version, or whether something is there."""
        written = "\n".join(self._lines[test.lineno - 1 : test.end_lineno])
        if AVAILABILITY.search(written) and AVAILABILITY.search(ast.unparse(test)):
            return True
        return bool(self._asked) and any(isinstance(n, ast.Name) and n.id in self._asked for n in walk(test))


def caught_errors(handler: ast.ExceptHandler) -> Iterator[str]:
    """Names of the errors that a handler catches, without their modules."""
    if handler.type is None:
        yield "Exception"
        return
    for name in handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]:
        yield ast.unparse(name).rpartition(".")[2]


def leaves_block(body: list[ast.stmt]) -> bool:
    """Whether what follows a block is reached only past it."""
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)

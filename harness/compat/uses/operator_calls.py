"""Find the calls of NPU operators in a source file."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from harness.compat.surface.call_signature import CallArguments, arguments_of
from harness.compat.surface.module_names import dotted
from harness.compat.surface.syntax_walk import SyntaxVisitor, walk
from harness.compat.uses.guards import caught_errors

GUARD_ERRORS = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "RuntimeError"}
)


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One call of an operator.

    guarded: whether the call is in a `try` that handles a missing operator, or below an `if hasattr(...)`.
    """

    operator: str
    file: str
    line: int
    arguments: CallArguments
    guarded: bool


def find_operator_calls(tree: ast.Module, file: str) -> tuple[OperatorCall, ...]:
    """The operator calls in one source file."""
    visitor = _OperatorVisitor(file)
    visitor.visit(tree)
    return tuple(visitor.calls)


class _OperatorVisitor(SyntaxVisitor, ast.NodeVisitor):
    """Tracks the names that refer to torch_npu and its operators in one file."""

    def __init__(self, file: str) -> None:
        self.calls: list[OperatorCall] = []
        self._file = file
        self._modules = {"torch_npu"}
        self._operators: dict[str, str] = {}
        self._guards = 0

    def visit_Import(self, node: ast.Import) -> None:
        self._modules |= {alias.asname for alias in node.names if alias.name == "torch_npu" and alias.asname}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "torch_npu":
            self._operators |= {alias.asname or alias.name: alias.name for alias in node.names}

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_guarded(
            node.body, any(GUARD_ERRORS.intersection(caught_errors(handler)) for handler in node.handlers)
        )
        for handler in node.handlers:
            self.visit(handler)
        self._visit_guarded([*node.orelse, *node.finalbody], False)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._visit_guarded(node.body, any(_is_hasattr(inner) for inner in walk(node.test)))
        self._visit_guarded(node.orelse, False)

    def _visit_guarded(self, statements: list[ast.stmt], guarded: bool) -> None:
        self._guards += guarded
        for statement in statements:
            self.visit(statement)
        self._guards -= guarded

    def visit_Call(self, node: ast.Call) -> None:
        operator = self._operator(node.func)
        if operator:
            self.calls.append(
                OperatorCall(
                    operator=operator,
                    file=self._file,
                    line=node.lineno,
                    arguments=arguments_of(node),
                    guarded=self._guards > 0,
                )
            )
        self.generic_visit(node)

    def _operator(self, function: ast.expr) -> str:
        if isinstance(function, ast.Name):
            return self._operators.get(function.id, "")
        path = dotted(function)
        for module in self._modules:
            if path.startswith(f"{module}.") and path.count(".") == 1:
                return path.rpartition(".")[2]
        if path.startswith("torch.ops.npu."):
            return path.removeprefix("torch.ops.npu.").partition(".")[0]
        return ""


def _is_hasattr(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "hasattr"

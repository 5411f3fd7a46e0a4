"""Find the calls of NPU operators in a source file."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from harness.compat.surface.call_signature import CallArguments, arguments_of
from harness.compat.surface.module_names import dotted
from harness.compat.surface.syntax_walk import SyntaxVisitor, walk
from harness.compat.uses.guards import caught_errors

#: Names of conditions that only some chips meet, such as `is_mxfp8_npu`, `is_310p()` or `soc_version`.
HARDWARE = re.compile(r"(?i)mxfp\d|310p|(?:^|_)a5(?:$|_)|ascend_?950|soc_version|device_type")
GUARD_ERRORS = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "RuntimeError"}
)


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One call of an operator.

    guarded: whether the call is in a `try` that handles a missing operator, below an `if hasattr(...)` or a
    test of the hardware, or in a file that asks somewhere whether torch_npu has this operator.
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
    asked = {name for node in walk(tree) if (name := _asked_for(node))}
    return tuple(replace(one, guarded=True) if one.operator in asked else one for one in visitor.calls)


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
        self._visit_guarded(node.body, any(_is_condition(inner) for inner in walk(node.test)))
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


def _is_condition(node: ast.AST) -> bool:
    """Whether a test asks for the existence of a name, or for the hardware."""
    written = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return written == "hasattr" or bool(HARDWARE.search(written))


def _asked_for(node: ast.AST) -> str:
    """The name in `hasattr(module, "name")` or `getattr(module, "name", default)`, else ""."""
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(name))]):
            return name
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), _]):
            return name
    return ""

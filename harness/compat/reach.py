"""What a package takes from others, by its sources: imports, attributes, calls, base classes, patches."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from harness.compat.module_names import absolute, parse
from harness.compat.signature import Arguments, arguments_of
from harness.compat.surface import Surface

IMPORT_ERRORS = ("AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException")
CALL_ERRORS = ("TypeError", "RuntimeError", "ValueError", "NotImplementedError")
# Tests that ask which version, or whether something is there, before it is used.
ASKING = re.compile(
    r"(?i)version|hasattr|availab|find_spec|type_checking|\bhas_|_v\d|\bis_v\d|supports?_|signature|in_range"
)
ASSIGNMENT = re.compile(r"\s*(\w+)(?:\s*:[^=]+)?\s*=\s*(.+)")
NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One use of another package.

    kind: `import`, `attribute`, `call`, `subclass`, `super` (a method of the base class) or `patch` (the
    name is assigned). guarded: why it may be missing without harm, or "". at_import: it runs as the file is
    imported.
    """

    kind: str
    target: str
    file: str
    line: int
    arguments: Arguments | None = None
    guarded: str = ""
    at_import: bool = False


def references(consumer: Surface, providers: Collection[str], mention: bytes = b"") -> tuple[Reference, ...]:
    """Every use of the `providers` (top-level names) in a package's own modules that contain `mention`.

    Files this Python cannot parse are left out; `unread` names them.
    """
    found: list[Reference] = []
    wanted = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(providers)))
    for module, file in consumer.files():
        if file.partition("/")[0] in NOT_SHIPPED or module.partition(".")[0] in providers:
            continue
        source = consumer.source(module)
        if mention in source and wanted.search(source):
            tree = parse(source)
            if tree:
                found.extend(references_in(tree, source, module, file, providers))
    return tuple(found)


def unread(consumer: Surface) -> tuple[str, ...]:
    """Files of a package that this Python cannot parse."""
    return tuple(file for module, file in consumer.files() if consumer.names(module) is None)


def references_in(
    tree: ast.Module, source: bytes, module: str, file: str, providers: Collection[str]
) -> tuple[Reference, ...]:
    """Every use of the providers in one file; `tree` is that of `source`."""
    visitor = _Visitor(module, file, frozenset(providers), source)
    visitor.enter(tree.body)
    return tuple(dict.fromkeys(visitor.found))


class _Visitor(ast.NodeVisitor):
    """Follows what names mean, scope by scope, and what stands behind a guard."""

    def __init__(self, module: str, file: str, providers: frozenset[str], source: bytes) -> None:
        self.found: list[Reference] = []
        self._module = module
        self._file = file
        self._package = file.endswith("/__init__.py")
        self._providers = providers
        self._lines = source.decode("utf-8", "replace").splitlines()
        # Variables that hold the answer to a question about versions.
        self._asked = {
            found[1] for line in self._lines if (found := ASSIGNMENT.match(line)) and ASKING.search(found[2])
        }
        self._scopes: list[dict[str, set[str]]] = []
        self._guards: list[str] = []
        self._functions = 0
        self._bases: list[str] = []

    def enter(self, body: list[ast.stmt], parameters: Collection[str] = ()) -> None:
        """Visit a scope's statements with its names bound."""
        scope: dict[str, set[str]] = {name: {""} for name in parameters}
        for name, target in self._bindings(body):
            scope.setdefault(name, set()).add(target)
        self._scopes.append(scope)
        self._block(body)
        self._scopes.pop()

    def _block(self, body: list[ast.stmt], guard: str = "") -> None:
        """Visit statements in order; a test that leaves the block guards what follows it."""
        depth = len(self._guards)
        if guard:
            self._guards.append(guard)
        for node in body:
            self.visit(node)
            if isinstance(node, ast.If) and self._asks(node.test) and _leaves(node.body):
                self._guards.append(f"after the test at line {node.lineno}")
        del self._guards[depth:]

    def _bindings(self, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
        """Names a scope binds, each with what it imports ("" for anything else)."""
        waiting: list[ast.AST] = list(body)
        while waiting:
            node = waiting.pop()
            match node:
                case ast.Import():
                    for alias in node.names:
                        top = alias.name.partition(".")[0]
                        yield alias.asname or top, self._known(alias.name if alias.asname else top)
                case ast.ImportFrom():
                    origin = absolute(self._module, node, package=self._package)
                    for alias in node.names:
                        yield alias.asname or alias.name, self._known(f"{origin}.{alias.name}")
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield node.name, ""
                case ast.Name(ctx=ast.Store()):
                    yield node.id, ""
                case ast.ExceptHandler(name=str(name)):
                    yield name, ""
                    waiting.extend(node.body)
                case _:
                    # Within expressions nothing is bound that others see, but for targets.
                    waiting.extend(
                        child
                        for child in ast.iter_child_nodes(node)
                        if not isinstance(child, ast.expr)
                        or isinstance(getattr(child, "ctx", None), ast.Store)
                    )

    def _known(self, dotted: str) -> str:
        return dotted if dotted.partition(".")[0] in self._providers else ""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if self._known(alias.name):
                self._add("import", alias.name, alias)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = absolute(self._module, node, package=self._package)
        if not self._known(origin):
            return
        for alias in node.names:
            self._add("import", origin if alias.name == "*" else f"{origin}.{alias.name}", alias)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        for outside in (*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(outside)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names = {a.arg for a in (*every, arguments.vararg, arguments.kwarg) if a}
        self._functions += 1
        # A guard around a definition also stands around what it does when called.
        self.enter(node.body, names)
        self._functions -= 1

    def visit_Lambda(self, node: ast.Lambda) -> None:
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = {a.arg for a in (*every, node.args.vararg, node.args.kwarg) if a}
        self._functions += 1
        self._scopes.append({name: {""} for name in names})
        self.visit(node.body)
        self._scopes.pop()
        self._functions -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *(keyword.value for keyword in node.keywords)):
            self.visit(outside)
        bases = []
        for base in node.bases:
            target, unsure = self._target(base)
            bases.append("" if unsure else target)
            if "." in target:
                self._add("subclass", target, node, guarded=unsure)
        self._bases.append(bases[0] if len(bases) == 1 else "")
        # Methods do not see the names of the class around them.
        self._block(node.body)
        self._bases.pop()

    def visit_Try(self, node: ast.Try) -> None:
        caught = {name for handler in node.handlers for name in _caught(handler)}
        missing = caught & set(IMPORT_ERRORS)
        guard = f"in the try at line {node.lineno}" if missing else ""
        self._block(node.body, guard or (f"call:{node.lineno}" if caught & set(CALL_ERRORS) else ""))
        for handler in node.handlers:
            self._block(handler.body, guard)
        self._block(node.orelse, guard)
        self._block(node.finalbody)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
        suppresses = any("suppress" in ast.dump(item.context_expr) for item in node.items)
        self._block(node.body, f"in the suppress at line {node.lineno}" if suppresses else "")

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        guard = f"behind the test at line {node.lineno}" if self._asks(node.test) else ""
        self._block(node.body, guard)
        self._block(node.orelse, guard)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._block(node.body)
        self._block(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._block(node.body)
        self._block(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        asks = self._asks(node.test)
        self._guards += [f"behind the test at line {node.lineno}"] if asks else []
        self.visit(node.body)
        self.visit(node.orelse)
        if asks:
            self._guards.pop()

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        depth = len(self._guards)
        for value in node.values:
            self.visit(value)
            if self._asks(value):
                self._guards.append(f"behind the test at line {node.lineno}")
        del self._guards[depth:]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)
        self.visit(node.target)

    def visit_Call(self, node: ast.Call) -> None:
        target, unsure = self._target(node.func)
        if "." in target:
            self._add("call", target, node, arguments=arguments_of(node), guarded=unsure)
        elif (method := _super_method(node.func)) and self._bases and "." in self._bases[-1]:
            self._add("super", f"{self._bases[-1]}.{method}", node, arguments=arguments_of(node))
        else:
            self.visit(node.func)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        target, unsure = self._target(node)
        if target:
            self._add(
                "patch" if isinstance(node.ctx, ast.Store) else "attribute", target, node, guarded=unsure
            )
        else:
            self.visit(node.value)

    def _target(self, node: ast.expr) -> tuple[str, str]:
        """The dotted name of a provider that an expression means, and why that is not certain, or ""."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return "", ""
        for scope in reversed(self._scopes):
            if node.id in scope:
                targets = scope[node.id] - {""}
                if not targets:
                    return "", ""
                unsure = f"{node.id} has another meaning too" if len(scope[node.id]) > 1 else ""
                return ".".join([min(targets), *reversed(parts)]), unsure
        return "", ""

    def _asks(self, test: ast.expr) -> bool:
        written = "\n".join(self._lines[test.lineno - 1 : test.end_lineno])
        if ASKING.search(written) and ASKING.search(ast.unparse(test)):
            return True
        return bool(self._asked) and any(
            isinstance(n, ast.Name) and n.id in self._asked for n in ast.walk(test)
        )

    def _add(
        self,
        kind: str,
        target: str,
        node: ast.stmt | ast.expr | ast.alias,
        *,
        arguments: Arguments | None = None,
        guarded: str = "",
    ) -> None:
        guards = [guard for guard in self._guards if not guard.startswith("call:")]
        if arguments and not guards:
            guards = [
                f"in the try at line {guard[5:]}" for guard in self._guards if guard.startswith("call:")
            ]
        self.found.append(
            Reference(
                kind=kind,
                target=target,
                file=self._file,
                line=node.lineno,
                arguments=arguments,
                guarded=guarded or (guards[-1] if guards else ""),
                at_import=self._functions == 0,
            )
        )


def _caught(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "Exception"
        return
    for name in handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]:
        yield ast.unparse(name).rpartition(".")[2]


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _super_method(function: ast.expr) -> str:
    """The method that `super().method` names, or ""."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Call):
        return ""
    called = function.value.func
    return function.attr if isinstance(called, ast.Name) and called.id == "super" else ""

"""Find the uses of other packages in one file: imports, calls, base classes, overrides and patches."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection

from harness.compat.surface.api_surface import DUNDER
from harness.compat.surface.call_signature import CallArguments, CallSignature, arguments_of, signature_of
from harness.compat.surface.decorators_and_bases import SIGNATURE_PRESERVING
from harness.compat.surface.module_names import absolute_module, decorators
from harness.compat.surface.syntax_walk import SyntaxVisitor
from harness.compat.uses.bindings import (
    Binding,
    all_parameters,
    annotated_class,
    assigned_once,
    assignment_counts,
    attribute_of,
    attributes_set_in,
    bound_names,
    class_names,
    concrete_names,
    may_be_class,
    super_method_name,
)
from harness.compat.uses.guards import (
    CALL_ERRORS,
    IMPORT_ERRORS,
    AvailabilityTests,
    caught_errors,
    leaves_block,
)
from harness.compat.uses.use import Use


def uses_in_file(
    tree: ast.Module, source: bytes, module: str, file: str, providers: Collection[str]
) -> tuple[Use, ...]:
    """Every use of the providers in one file. `tree`: the syntax tree of `source`."""
    visitor = _UseVisitor(module, file, frozenset(providers), source)
    visitor.enter(tree.body)
    return tuple(dict.fromkeys(visitor.found))


def own_imports_in_file(tree: ast.Module, source: bytes, module: str, file: str) -> tuple[str, ...]:
    """The modules and names of its own package that a file imports, at import time and without a guard."""
    visitor = _ImportVisitor(module, file, frozenset({module.partition(".")[0]}), source)
    visitor.enter(tree.body)
    found = [use.target for use in visitor.found if use.at_import and not use.guarded]
    return tuple(dict.fromkeys(found))


class _UseVisitor(SyntaxVisitor, ast.NodeVisitor):
    """Finds uses scope by scope, tracking what names refer to and which guards apply."""

    def __init__(self, module: str, file: str, providers: frozenset[str], source: bytes) -> None:
        self.found: list[Use] = []
        self._module = module
        self._file = file
        self._package = file.endswith("/__init__.py")
        self._providers = providers
        lines = source.decode("utf-8", "replace").splitlines()
        self._is_guard = AvailabilityTests(lines).is_availability_test
        # Names that a function reassigns with `global`.
        self._globals = {
            name for line in lines if line.lstrip().startswith("global ") for name in re.findall(r"\w+", line)
        }
        self._scopes: list[dict[str, set[str]]] = []
        self._objects: list[dict[str, Binding]] = []
        self._fields: list[dict[str, Binding]] = []
        self._own_names: list[set[str]] = []
        self._guards: list[str] = []
        self._functions = 0
        self._bases: list[str] = []

    def enter(self, body: list[ast.stmt], parameters: Collection[ast.arg] = ()) -> None:
        """Visit the statements of a scope."""
        self._open(body, parameters)
        self._block(body)
        self._close()

    def _open(self, body: list[ast.stmt], parameters: Collection[ast.arg] = ()) -> None:
        scope: dict[str, set[str]] = {parameter.arg: {""} for parameter in parameters}
        counts = Counter(scope.keys())
        for name, target in bound_names(body, self._module, package=self._package, known=self._provider_name):
            scope.setdefault(name, set()).add(target)
            counts[name] += 1
        objects = {
            parameter.arg: binding
            for parameter in parameters
            if counts[parameter.arg] == 1 and (binding := self._declared_instance(parameter.annotation))
        }
        self._scopes.append(scope)
        self._objects.append(objects)
        for name, node in assigned_once(body, counts):
            binding = self._assigned_instance(node) if name not in self._globals else None
            if binding:
                objects[name] = binding

    def _close(self) -> None:
        self._scopes.pop()
        self._objects.pop()

    def _declared_instance(self, annotation: ast.expr | None) -> Binding | None:
        """An instance of the class that an annotation names."""
        named = annotated_class(annotation)
        binding = self._binding(named) if named else None
        return Binding(target=binding.target, instance="declared") if may_be_class(binding) else None

    def _assigned_instance(self, node: ast.stmt) -> Binding | None:
        """The instance of a provider's class that an assignment creates or declares, if any."""
        if isinstance(node, ast.AnnAssign):
            return self._declared_instance(node.annotation)
        return self._created_instance(node.value) if isinstance(node, ast.Assign) else None

    def _created_instance(self, value: ast.expr) -> Binding | None:
        binding = self._binding(value.func) if isinstance(value, ast.Call) else None
        return Binding(target=binding.target, instance="created") if may_be_class(binding) else None

    def _block(self, body: list[ast.stmt], guard: str = "") -> None:
        """Visit statements in order. If the body of a test leaves the block, the rest is guarded."""
        depth = len(self._guards)
        if guard:
            self._guards.append(guard)
        for node in body:
            self.visit(node)
            if isinstance(node, ast.If) and self._is_guard(node.test) and leaves_block(node.body):
                self._guards.append(f"after the test at line {node.lineno}")
        del self._guards[depth:]

    def _provider_name(self, dotted: str) -> str:
        return dotted if dotted.partition(".")[0] in self._providers else ""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if self._provider_name(alias.name):
                self._add("module" if "." in alias.name else "import", Binding(target=alias.name), alias)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = absolute_module(self._module, node, package=self._package)
        if not self._provider_name(origin):
            return
        if "." in origin:
            self._add("module", Binding(target=origin), node)
        for alias in node.names:
            target = origin if alias.name == "*" else f"{origin}.{alias.name}"
            self._add("import", Binding(target=target), alias)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        for expression in (*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(expression)
        self._functions += 1
        # A guard around a definition also applies to its body.
        self.enter(node.body, all_parameters(arguments))
        self._functions -= 1

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._functions += 1
        self._open([], all_parameters(node.args))
        self.visit(node.body)
        self._close()
        self._functions -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for expression in (*node.decorator_list, *(keyword.value for keyword in node.keywords)):
            self.visit(expression)
        bases = []
        for base in node.bases:
            binding = self._binding(base)
            certain = binding is not None and not binding.instance and not binding.unsure
            bases.append(binding.target if binding and certain else "")
            if binding and not binding.instance and "." in binding.target:
                alone = certain and len(node.bases) == 1
                names = concrete_names(node) if alone else None
                self._add("subclass", binding, node, class_name=node.name, defines=names)
        self._bases.append(bases[0] if len(bases) == 1 and "." in bases[0] else "")
        self._own_names.append(class_names(node) if self._bases[-1] else set())
        self._fields.append({})
        self._fields[-1].update(self._instance_fields(node))
        self._add_overrides(node)
        # Methods do not see the names in the body of their class.
        self._block(node.body)
        self._bases.pop()
        self._own_names.pop()
        self._fields.pop()

    def _instance_fields(self, node: ast.ClassDef) -> dict[str, Binding]:
        """Attributes that hold an instance of a provider's class and are assigned only once."""
        fields: dict[str, Binding] = {}
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
                continue
            self._open(method.body, all_parameters(method.args))
            for name, value in attributes_set_in(method).items():
                binding = (
                    self._created_instance(value) if isinstance(value, ast.Call) else self._instance(value)
                )
                if binding:
                    fields[name] = binding
            self._close()
        counts = assignment_counts(node) if fields else Counter()
        return {name: binding for name, binding in fields.items() if counts[name] == 1}

    def _add_overrides(self, node: ast.ClassDef) -> None:
        base = self._bases[-1]
        for method in node.body if base else ():
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or DUNDER.match(method.name):
                continue
            marks = decorators(method)
            if marks <= SIGNATURE_PRESERVING | {"override"}:
                declared = signature_of(method)
                signature = declared if "staticmethod" in marks else declared.bound()
                self._add("override", Binding(target=f"{base}.{method.name}"), method, signature=signature)

    def visit_Try(self, node: ast.Try) -> None:
        caught = {name for handler in node.handlers for name in caught_errors(handler)}
        guard = f"in the try at line {node.lineno}" if caught & IMPORT_ERRORS else ""
        self._block(node.body, guard or (f"call:{node.lineno}" if caught & CALL_ERRORS else ""))
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
        guard = f"behind the test at line {node.lineno}" if self._is_guard(node.test) else ""
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
        is_guard = self._is_guard(node.test)
        self._guards += [f"behind the test at line {node.lineno}"] if is_guard else []
        self.visit(node.body)
        self.visit(node.orelse)
        if is_guard:
            self._guards.pop()

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        depth = len(self._guards)
        for value in node.values:
            self.visit(value)
            if self._is_guard(value):
                self._guards.append(f"behind the test at line {node.lineno}")
        del self._guards[depth:]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)
        self.visit(node.target)

    def visit_Call(self, node: ast.Call) -> None:
        binding = self._binding(node.func)
        if binding and "." in binding.target:
            self._add("call", binding, node, arguments=arguments_of(node))
        elif (method := super_method_name(node.func)) and self._bases and self._bases[-1]:
            target = Binding(target=f"{self._bases[-1]}.{method}")
            self._add("super", target, node, arguments=arguments_of(node))
        else:
            self.visit(node.func)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        binding = self._binding(node)
        if binding is None:
            self.visit(node.value)
        elif not isinstance(node.ctx, ast.Store):
            self._add("attribute", binding, node)
        elif not binding.instance:
            self._add("patch", binding, node)

    def _binding(self, node: ast.expr) -> Binding | None:
        """The name in a provider that an expression refers to; None for objects and other expressions."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        for scope in reversed(self._scopes):
            targets = scope.get(node.id, set()) - {""}
            if targets:
                unsure = f"{node.id} also refers to something else" if len(scope[node.id]) > 1 else ""
                return Binding(target=".".join([min(targets), *reversed(parts)]), unsure=unsure)
            if node.id in scope:
                break
        if node.id == "self" and parts and self._bases and self._functions:
            return self._self_attribute(parts)
        instance = self._instance(node)
        return attribute_of(instance, parts) if instance and parts else None

    def _self_attribute(self, parts: list[str]) -> Binding | None:
        name = parts[-1]
        if name in self._fields[-1]:
            return attribute_of(self._fields[-1][name], parts[:-1]) if parts[:-1] else None
        if not self._bases[-1] or name in self._own_names[-1]:
            return None
        return attribute_of(Binding(target=self._bases[-1], instance="inherited"), parts)

    def _instance(self, node: ast.expr) -> Binding | None:
        """The instance of a provider's class that a plain name refers to."""
        if isinstance(node, ast.Name):
            for scope, objects in zip(reversed(self._scopes), reversed(self._objects), strict=True):
                if node.id in scope:
                    return objects.get(node.id)
        return None

    def _add(
        self,
        kind: str,
        binding: Binding,
        node: ast.stmt | ast.expr | ast.alias,
        *,
        arguments: CallArguments | None = None,
        signature: CallSignature | None = None,
        class_name: str = "",
        defines: frozenset[str] | None = None,
    ) -> None:
        guards = [guard for guard in self._guards if not guard.startswith("call:")]
        if arguments and not guards:
            guards = [
                f"in the try at line {guard[5:]}" for guard in self._guards if guard.startswith("call:")
            ]
        self.found.append(
            Use(
                kind=kind,
                target=binding.target,
                file=self._file,
                line=node.lineno,
                arguments=arguments,
                guarded=binding.unsure or (guards[-1] if guards else ""),
                at_import=self._functions == 0,
                instance=binding.instance,
                signature=signature,
                class_name=class_name,
                defines=defines,
            )
        )


class _ImportVisitor(_UseVisitor, ast.NodeVisitor):
    """Finds only imports that run when the module is imported; functions and expressions are skipped."""

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.expr):
            super().visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        pass

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._block(node.body)

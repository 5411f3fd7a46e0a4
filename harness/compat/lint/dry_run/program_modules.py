"""The modules of a followed program, which are read when something in them is used."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.jumps import ReturnJump
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Config,
    Lazy,
    ProgramError,
    Scope,
    Value,
    external,
)
from harness.compat.lint.module_files import ModuleFiles

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

_NAMES = "_npu_matrix_names"
MISSING_MODULE = "ModuleNotFoundError"


class Modules:
    """Modules of verl. read: the syntax tree of a file; None if it cannot be parsed."""

    def __init__(
        self, run: ProgramWalk, files: ModuleFiles, read: Callable[[str], ast.Module | None]
    ) -> None:
        self._run, self._files, self._read = run, files, read
        self._modules: dict[str, Scope] = {}
        self._used_names: dict[str, frozenset[str]] = {}
        #: The files that were to be read, and cannot be parsed.
        self.unparsed: list[str] = []
        #: Whether the program is sure to import the module that is being read.
        self._certain = False

    def module(self, path: str) -> Scope:
        """The variables of a module after its statements."""
        if path in self._modules:
            return self._modules[path]
        scope = self._modules[path] = Scope(None, path)
        tree = self._read(path)
        self.unparsed += [path] if tree is None else []
        self._used_names[path] = _names(tree)
        tries, trace, certain = self._run.tries, self._run.trace, self._certain
        self._certain = certain or not (self._run.journal.is_open or tries)
        self._run.tries, self._run.trace = 1, set()
        try:
            with self._run.journal.suspended():
                for statement in tree.body if tree is not None else ():
                    self._statement(statement, scope)
        finally:
            self._run.tries, self._run.trace, self._certain = tries, trace, certain
        return scope

    def _statement(self, statement: ast.stmt, scope: Scope) -> None:
        """Follow a statement of a module. Its exceptions are more likely our mistakes than the module's."""
        try:
            self._run.statements.statement(statement, scope)
        except ReturnJump:
            return
        except ProgramError as error:
            if error.type == MISSING_MODULE and self._certain:
                self._run.failures.append(error.with_traceback(None))

    def forget(self) -> None:
        """Empty the modules, whose functions refer to them: the garbage collector need not find that."""
        for scope in self._modules.values():
            scope.variables.clear()

    def open_registries(self) -> None:
        """Code of the user runs, which may register names: no mapping of a module is complete any more."""
        for scope in self._modules.values():
            for value in scope.variables.values():
                if isinstance(value, dict) and not isinstance(value, Config):
                    self._run.journal.touch(value)
                    value[UNKNOWN] = UNKNOWN

    def path_of(self, dotted: str) -> str:
        """The file of a module; "" if it is not a module of this tree."""
        return self._files.path_of(dotted)

    def resolve(self, value: Value) -> Value:
        """The value of an imported name."""
        seen = 0
        while isinstance(value, Lazy) and value.name:
            seen += 1
            scope = self.module(value.path)
            if seen > 20 or value.name not in scope.variables:
                return UNKNOWN
            value = scope.variables[value.name]
        return value

    def bind_import(self, node: ast.Import, scope: Scope) -> None:
        """Follow `import NAME`."""
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or dotted, dotted, "", scope)
            if "." in alias.name and self.path_of(alias.name) and self._reads_at_once(dotted, scope):
                self.module(self.path_of(alias.name))
            self._check_present(alias.name, node, scope)

    def bind_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Follow `from MODULE import NAME`."""
        dotted = node.module or ""
        if node.level:
            folder = posixpath.dirname(scope.path)
            for _ in range(node.level - 1):
                folder = posixpath.dirname(folder)
            dotted = ".".join(filter(None, [folder.replace("/", "."), dotted]))
        for alias in node.names:
            if alias.name == "*":
                path = self.path_of(dotted)
                if path:
                    scope.variables |= {
                        name: value
                        for name, value in self.module(path).variables.items()
                        if not name.startswith("_")
                    }
                continue
            self._bind(alias.asname or alias.name, dotted, alias.name, scope)
        self._check_present(dotted, node, scope)

    def _check_present(self, dotted: str, node: ast.stmt, scope: Scope) -> None:
        """Stop as Python does at a module of verl's own package that is not in this tree."""
        if not dotted.startswith("verl.") or self.path_of(dotted) or not self.path_of("verl"):
            return
        folder = dotted.replace(".", "/") + "/"
        if not any(path.startswith(folder) for path in self._files.paths):
            raise self._run.error(MISSING_MODULE, f"No module named '{dotted}'", node, scope)

    def _bind(self, name: str, dotted: str, member: str, scope: Scope) -> None:
        """Bind an imported name. Its module is read when the name is used."""
        path = self.path_of(dotted)
        inner = self.path_of(f"{dotted}.{member}") if member else ""
        self._run.journal.touch(scope.variables, scope.made_in)
        if inner and not (path and path in self._modules and member in self._modules[path].variables):
            scope.variables[name] = Lazy(path=inner)
        elif path:
            scope.variables[name] = Lazy(path=path, name=member)
        else:
            scope.variables[name] = external(f"{dotted}.{member}" if member else dotted)
        if (inner or path) and scope.parent is None and self._reads_at_once(name, scope):
            self.module(inner or path)

    def _reads_at_once(self, name: str, scope: Scope) -> bool:
        """Whether a module is imported because of what its statements do: by a package, or without a use."""
        return scope.path.endswith("__init__.py") or name not in self._used_names[scope.path]


def _names(tree: ast.Module | None) -> frozenset[str]:
    """The names that a module uses, which are kept with its tree."""
    if tree is None:
        return frozenset()
    if _NAMES not in tree.__dict__:
        found: set[str] = set()
        waiting: list[ast.AST] = [tree]
        while waiting:
            for value in waiting.pop().__dict__.values():
                if type(value) is ast.Name:
                    found.add(value.id)
                elif isinstance(value, ast.AST):
                    waiting.append(value)
                elif type(value) is list:
                    waiting += [one for one in value if isinstance(one, ast.AST)]
                    found.update(one.id for one in value if type(one) is ast.Name)
        tree.__dict__[_NAMES] = frozenset(found)
    names: frozenset[str] = tree.__dict__[_NAMES]
    return names

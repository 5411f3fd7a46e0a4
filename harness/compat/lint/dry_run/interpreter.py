"""Walks the statements of a followed program.

An `if` on an unknown value leads to two branches; what they leave behind is merged. Every exception that
escapes from the followed program is therefore raised whatever the unknown values are.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from harness.compat.lint.dry_run.calls import Calls
from harness.compat.lint.dry_run.expressions import Expressions
from harness.compat.lint.dry_run.journal import Journal, merged_value
from harness.compat.lint.dry_run.jumps import BreakJump, BudgetError, ContinueJump, ReturnJump
from harness.compat.lint.dry_run.values import (
    UNKNOWN,
    Class,
    Instance,
    Lazy,
    ProgramError,
    Scope,
    SourcePlace,
    Unknown,
    Value,
    contains_own,
    sources_of,
)

MAX_STEPS = 150_000
MAX_ITERATIONS = 200
#: Rounds of `while True`, which waits for something that only a run knows.
MAX_ENDLESS = 2
MAX_BRANCHES = 12
_JUMPS = (ast.Return, ast.Break, ast.Continue)


@dataclass(kw_only=True)
class Surroundings:
    """What a program sees besides its configuration.

    variables: environment variables that the job sets. model: known values of the model's config.json.
    world_size: processes of the worker group that is being followed, world_keys: the configuration keys
    behind it. data_parallel: of these, the replicas of the model that Megatron trains. 0 if not known.
    """

    device: str
    variables: Mapping[str, Value] = field(default_factory=dict)
    model: Mapping[str, Value] = field(default_factory=dict)
    world_size: int = 0
    world_keys: frozenset[str] = frozenset()
    data_parallel: int = 0


@dataclass(frozen=True, kw_only=True)
class OpenCheck:
    """A check of the program whose outcome depends on unknown values of the launch script."""

    place: SourcePlace
    sources: frozenset[str]


class Interpreter:
    """Follows modules of verl. read_module: the syntax tree of a file; None if it cannot be parsed.

    failures: checks that fail. open_checks: those that depend on unknown values of the script.
    """

    def __init__(
        self,
        paths: frozenset[str],
        read_module: Callable[[str], ast.Module | None],
        surroundings: Surroundings,
    ) -> None:
        self.surroundings = surroundings
        self.journal = Journal()
        self.calls = Calls(self)
        self.expressions = Expressions(self)
        self.trace: set[str] = set()
        self.failures: list[ProgramError] = []
        self.open_checks: list[OpenCheck] = []
        self._paths, self._read_module = paths, read_module
        self._modules: dict[str, Scope] = {}
        self._used_names: dict[str, frozenset[str]] = {}
        self._steps = 0
        self._tries = 0
        self._branch_depth = 0

    def world_size(self) -> Value:
        """The processes of the worker group that is being followed."""
        self.trace |= self.surroundings.world_keys
        return self.surroundings.world_size or UNKNOWN

    def module(self, path: str) -> Scope:
        """The variables of a module after its statements."""
        if path in self._modules:
            return self._modules[path]
        scope = self._modules[path] = Scope(None, path)
        tree = self._read_module(path)
        self._used_names[path] = _names(tree)
        branches, tries, trace = self.journal.suspended(), self._tries, self.trace
        self._tries, self.trace = 1, set()
        try:
            for statement in tree.body if tree is not None else ():
                with suppress(ProgramError, ReturnJump):
                    self.statement(statement, scope)
        finally:
            self.journal.resume(branches)
            self._tries, self.trace = tries, trace
        return scope

    def module_path(self, dotted: str) -> str:
        """The file of a module; "" if it is not a module of this tree."""
        base = dotted.replace(".", "/")
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self._paths), "")

    def place(self, node: ast.AST, scope: Scope) -> SourcePlace:
        """Where a node is written."""
        return SourcePlace(path=scope.path, line=getattr(node, "lineno", 0))

    def error(self, kind: str, message: str, node: ast.AST, scope: Scope) -> ProgramError:
        """An exception of the followed program."""
        return ProgramError(
            type=kind, message=message, place=self.place(node, scope), keys=frozenset(self.trace)
        )

    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements one after the other."""
        for index, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                if self._if(statement, scope, statements[index + 1 :]):
                    return
            else:
                self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BudgetError
        before, self.trace = self.trace, set()
        try:
            self._followed(node, scope)
        finally:
            self.trace = before

    def _followed(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.Expr():
                self.expressions.value(node.value, scope)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(node, scope)
            case ast.If():
                self._if(node, scope, ())
            case ast.For() | ast.AsyncFor():
                self._for(node, scope)
            case ast.While():
                self._while(node, scope)
            case ast.With() | ast.AsyncWith():
                self._with(node, scope)
            case ast.Try():
                self._try(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(node, scope)
            case ast.Import():
                self._import(node, scope)
            case ast.ImportFrom():
                self._import_from(node, scope)
            case ast.Global():
                scope.global_names.update(node.names)
            case ast.Nonlocal():
                scope.outer_names.update(node.names)
            case ast.Delete():
                self._delete(node, scope)
            case _:
                self._leaving(node, scope)

    def _leaving(self, node: ast.stmt, scope: Scope) -> None:
        """Statements that leave a block, or do nothing."""
        match node:
            case ast.Assert():
                self._assert(node, scope)
            case ast.Raise():
                self._raise(node, scope)
            case ast.Return():
                with self.traced() as keys:
                    value = self.expressions.value(node.value, scope) if node.value is not None else None
                raise ReturnJump(value, frozenset(keys))
            case ast.Break():
                raise BreakJump
            case ast.Continue():
                raise ContinueJump

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope) -> None:
        if isinstance(node, ast.ClassDef):
            self._class(node, scope)
            return
        self.journal.touch(scope.variables)
        scope.variables[node.name] = self.calls.define(node, scope)

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if isinstance(node, ast.AugAssign):
            self._augmented(node, scope)
        elif node.value is not None:
            with self.traced() as keys:
                value = self.expressions.value(node.value, scope)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.expressions.store(target, value, frozenset(keys), scope)

    def fork(self, sources: frozenset[str], branches: Sequence[Callable[[], None]]) -> None:
        """Follow alternatives, of which any may be taken, and merge what they leave behind."""
        ends: list[tuple[Exception | None, dict[int, object]]] = []
        for follow in branches:
            outcome: list[Exception] = []
            written = self.journal.branch(lambda follow=follow, outcome=outcome: self._tried(follow, outcome))  # type: ignore[misc]
            ends.append((outcome[0] if outcome else None, written))  # type: ignore[arg-type]
        errors = [end for end, _ in ends if isinstance(end, ProgramError)]
        if sources:
            self.open_checks += [OpenCheck(place=error.place, sources=sources) for error in errors]
        lasting = [(end, written) for end, written in ends if not isinstance(end, ProgramError)]
        if not lasting:
            raise errors[0]
        self.journal.merge([written for _, written in lasting], sources)  # type: ignore[misc]
        self._leave([end for end, _ in lasting], sources)

    def _tried(self, follow: Callable[[], None], outcome: list[Exception]) -> None:
        self._branch_depth += 1
        try:
            if self._branch_depth <= MAX_BRANCHES:
                follow()
        except (ProgramError, ReturnJump, BreakJump, ContinueJump) as end:
            outcome.append(end)
        finally:
            self._branch_depth -= 1

    def _leave(self, ends: Sequence[Exception | None], sources: frozenset[str]) -> None:
        """Jump as the branches do. A jump in only one of them is not followed."""
        returns = [end for end in ends if isinstance(end, ReturnJump)]
        if returns and len(returns) == len(ends):
            value = merged_value([end.value for end in returns], sources)
            raise ReturnJump(value, frozenset().union(*(end.keys for end in returns)))
        if ends and all(isinstance(end, (BreakJump, ContinueJump)) for end in ends):
            first = ends[0]
            assert first is not None
            raise first

    def _if(self, node: ast.If, scope: Scope, rest: Sequence[ast.stmt]) -> bool:
        """Follow an `if`. True if the rest of the block was followed as a part of its branches."""
        self._steps += 1
        with self.traced() as keys:
            truth = self.expressions.truth(node.test, scope)
        if isinstance(truth, bool):
            self._guarded(node.body if truth else node.orelse, scope, keys)
            return False
        jumps = contains_own(node, _JUMPS)
        after = rest if jumps else ()
        self.fork(
            sources_of(truth),
            [
                lambda: self.block([*node.body, *after], scope),
                lambda: self.block([*node.orelse, *after], scope),
            ],
        )
        return jumps

    def _guarded(self, statements: Sequence[ast.stmt], scope: Scope, keys: set[str]) -> None:
        """Follow the branch of a known condition; an exception that it raises itself is a failed check."""
        try:
            self.block(statements, scope)
        except ProgramError as error:
            if not error.guarded and any(isinstance(one, ast.Raise) for one in statements):
                error.keys |= keys
                error.guarded = True
                self._fail(error)
            else:
                raise

    def _fail(self, error: ProgramError) -> None:
        """Note a failed check and go on, unless the program may handle it or not get there.

        A check that rests on no setting is about something that only a run brings about, as is what follows.
        """
        if self.journal.is_open or self._tries or not error.keys:
            raise error
        self.failures.append(error)

    def traced(self) -> _Traced:
        """The configuration keys that are read within a `with` statement."""
        return _Traced(self)

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        with self.traced() as keys:
            truth = self.expressions.truth(node.test, scope)
        if truth is False:
            written = f"`{ast.unparse(node.test)}` does not hold"
            message = self.expressions.shown(node.msg, scope) if node.msg is not None else written
            error = self.error("AssertionError", message, node, scope)
            error.keys, error.guarded = frozenset(keys), True
            self._fail(error)
        elif sources_of(truth):
            self.open_checks.append(OpenCheck(place=self.place(node, scope), sources=sources_of(truth)))

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        kind, message = "Exception", ""
        if isinstance(node.exc, ast.Call):
            kind = ast.unparse(node.exc.func)
            message = " ".join(self.expressions.shown(one, scope) for one in node.exc.args)
        elif node.exc is not None:
            kind = ast.unparse(node.exc)
        raise self.error(kind, message, node, scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        with self.traced() as keys:
            left = self.expressions.value(node.target, scope)
            right = self.expressions.value(node.value, scope)
            if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
                self.journal.touch(left)
                left += right
                return
            value = self.expressions.binary(node.op, left, right, node, scope)
        self.expressions.store(node.target, value, frozenset(keys), scope)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                holder = self.expressions.value(target.value, scope)
                key = self.expressions.value(target.slice, scope)
                if isinstance(holder, dict) and isinstance(key, str):
                    self.journal.touch(holder)
                    holder.pop(key, None)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        with self.traced() as keys:
            items = self.expressions.items(self.expressions.value(node.iter, scope))

        def once(item: Value) -> None:
            self.expressions.store(node.target, item, frozenset(keys), scope)
            self._loop_body(node.body, scope)

        if isinstance(items, Unknown) or len(items) > MAX_ITERATIONS:
            sources = sources_of(items)
            self.fork(
                sources, [lambda: self._open_loop(lambda: once(Unknown(sources=sources))), lambda: None]
            )
            return
        try:
            for item in items:
                if isinstance(item, Unknown) and item.optional:
                    self.fork(item.sources, [lambda item=item: once(item), lambda: None])  # type: ignore[misc]
                else:
                    once(item)
        except BreakJump:
            return
        self.block(node.orelse, scope)

    def _loop_body(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        try:
            self.block(statements, scope)
        except ContinueJump:
            return

    def _open_loop(self, once: Callable[[], None]) -> None:
        """A round of a loop that may have none or many: exceptions and returns in it are not certain."""
        try:
            once()
        except (BreakJump, ReturnJump):
            return

    def _while(self, node: ast.While, scope: Scope) -> None:
        forever = isinstance(node.test, ast.Constant)
        for _ in range(MAX_ENDLESS if forever else MAX_ITERATIONS):
            truth = self.expressions.truth(node.test, scope)
            if truth is False:
                return
            if truth is not True:
                self.fork(
                    sources_of(truth),
                    [lambda: self._open_loop(lambda: self._loop_body(node.body, scope)), lambda: None],
                )
                return
            try:
                self._loop_body(node.body, scope)
            except BreakJump:
                return
        # The program waits for something, such as a server. What follows may never be reached.
        raise BudgetError

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.expressions.value(item.context_expr, scope)
            if isinstance(value, Instance):
                value = self.calls.method(value, "__enter__", [], node, scope)
            if item.optional_vars is not None:
                self.expressions.store(item.optional_vars, value, frozenset(), scope)
        self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            if node.handlers and any(isinstance(one, (ast.Import, ast.ImportFrom)) for one in node.body):
                # Whether another package is installed is not known.
                handlers = [one.body for one in node.handlers]
                blocks = [[*node.body, *node.orelse], *handlers]
                self.fork(frozenset(), [lambda block=block: self.block(block, scope) for block in blocks])  # type: ignore[misc]
            else:
                self._handled(node, scope)
        finally:
            self.block(node.finalbody, scope)

    def _handled(self, node: ast.Try, scope: Scope) -> None:
        if not node.handlers:
            self.block(node.body, scope)
            return
        self._tries += 1
        try:
            self.block(node.body, scope)
        except ProgramError as error:
            self._tries -= 1
            handler = next((one for one in node.handlers if _catches(one, error.type)), None)
            if handler is None:
                raise
            if handler.name:
                scope.variables[handler.name] = UNKNOWN
            self.block(handler.body, scope)
        except BaseException:
            self._tries -= 1
            raise
        else:
            self._tries -= 1
            self.block(node.orelse, scope)

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or dotted, dotted, "", scope)
            if "." in alias.name and self.module_path(alias.name) and self._reads_at_once(dotted, scope):
                self.module(self.module_path(alias.name))

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        dotted = node.module or ""
        if node.level:
            folder = posixpath.dirname(scope.path)
            for _ in range(node.level - 1):
                folder = posixpath.dirname(folder)
            dotted = ".".join(filter(None, [folder.replace("/", "."), dotted]))
        for alias in node.names:
            if alias.name == "*":
                path = self.module_path(dotted)
                if path:
                    scope.variables |= {
                        name: value
                        for name, value in self.module(path).variables.items()
                        if not name.startswith("_")
                    }
                continue
            self._bind(alias.asname or alias.name, dotted, alias.name, scope)

    def _bind(self, name: str, dotted: str, member: str, scope: Scope) -> None:
        """Bind an imported name. Its module is read when the name is used."""
        path = self.module_path(dotted)
        inner = self.module_path(f"{dotted}.{member}") if member else ""
        self.journal.touch(scope.variables)
        if inner and not (path and path in self._modules and member in self._modules[path].variables):
            scope.variables[name] = Lazy(path=inner)
        elif path:
            scope.variables[name] = Lazy(path=path, name=member)
        else:
            scope.variables[name] = Unknown(name=f"{dotted}.{member}" if member else dotted)
        if (inner or path) and scope.parent is None and self._reads_at_once(name, scope):
            self.module(inner or path)

    def _reads_at_once(self, name: str, scope: Scope) -> bool:
        """Whether a module is imported because of what its statements do: by a package, or without a use."""
        return scope.path.endswith("__init__.py") or name not in self._used_names[scope.path]

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

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = tuple(self.resolve(self.expressions.value(base, scope)) for base in node.bases)
        body = Scope(scope, scope.path)
        defined = Class(name=node.name, path=scope.path, bases=bases, scope=body)
        body.variables["__class_body__"] = defined
        self.block(node.body, body)
        del body.variables["__class_body__"]
        defined.fields = {
            one.target.id: ast.unparse(one.annotation)
            for one in node.body
            if isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and "ClassVar" not in ast.unparse(one.annotation)
        }
        self.calls.finish_class(defined)
        self.journal.touch(scope.variables)
        scope.variables[node.name] = self.calls.decorated(defined, node.decorator_list, scope)


class _Traced:
    """Collects the configuration keys that are read, for the code around it as well."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._before: set[str] = set()

    def __enter__(self) -> set[str]:
        self._before = self._interpreter.trace
        self._interpreter.trace = set()
        return self._interpreter.trace

    def __exit__(self, *_error: object) -> None:
        self._before |= self._interpreter.trace
        self._interpreter.trace = self._before


def _names(tree: ast.Module | None) -> frozenset[str]:
    """The names that a module uses."""
    nodes = ast.walk(tree) if tree is not None else ()
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name))


def _catches(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    last = kind.rpartition(".")[2]
    return any(
        ast.unparse(name).rpartition(".")[2] in (last, *_PARENTS.get(last, ()), "Exception", "BaseException")
        for name in names
    )


_PARENTS: Mapping[str, tuple[str, ...]] = {
    "KeyError": ("LookupError",),
    "IndexError": ("LookupError",),
    "ConfigAttributeError": ("AttributeError",),
    "NotImplementedError": ("RuntimeError",),
    "ModuleNotFoundError": ("ImportError",),
    "ZeroDivisionError": ("ArithmeticError",),
    "FrozenInstanceError": ("AttributeError",),
}

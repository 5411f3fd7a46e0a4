"""Follows the statements of a program.

An `if` on an unknown value leads to two branches; what they leave behind is merged. Every exception that
escapes from the followed program is therefore raised whatever the unknown values are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.compat.lint.dry_run.jumps import BreakJump, BudgetError, ContinueJump, ReturnJump
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Class,
    Instance,
    OpenCheck,
    ProgramError,
    Scope,
    Unknown,
    Value,
    contains_own,
    sources_of,
    written,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

MAX_STEPS = 150_000
MAX_ITERATIONS = 200
_JUMPS = (ast.Return, ast.Break, ast.Continue)
_NO_KEYS: frozenset[str] = frozenset()


class Statements:
    """Follows statements in scopes of the program."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        self._steps = 0
        self._kinds: Mapping[type[ast.stmt], Callable[[Any, Scope], object]] = {
            ast.Expr: lambda node, scope: run.expressions.value(node.value, scope),
            ast.Assign: self._assignment,
            ast.AnnAssign: self._assignment,
            ast.AugAssign: self._augmented,
            ast.If: lambda node, scope: self._if(node, scope, ()),
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Import: run.modules.bind_import,
            ast.ImportFrom: run.modules.bind_import_from,
            ast.Global: lambda node, scope: scope.global_names.update(node.names),
            ast.Nonlocal: lambda node, scope: scope.outer_names.update(node.names),
            ast.Delete: self._delete,
            ast.Assert: self._assert,
            ast.Raise: self._raise,
            ast.Return: self._return,
            ast.Break: _break,
            ast.Continue: _continue,
        }

    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements one after the other."""
        for index, statement in enumerate(statements):
            if type(statement) is ast.If:
                if self._if(statement, scope, statements[index + 1 :]):
                    return
            else:
                self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BudgetError
        before, self._run.trace = self._run.trace, set()
        try:
            follow = self._kinds.get(type(node))
            if follow is not None:
                follow(node, scope)
        except ProgramError as error:
            if error.keys or isinstance(node, ast.Raise) or not self._is_certain():
                raise
            # It rests on no setting, but on something that only a run has: what follows may still be reached.
            self._run.failures.append(error.with_traceback(None))
            for target in node.targets if isinstance(node, ast.Assign) else ():
                self._run.access.store(target, UNKNOWN, frozenset(), scope)
        finally:
            trace = self._run.trace
            if trace:
                self._run.read |= trace
            self._run.trace = before

    def _is_certain(self) -> bool:
        """Whether the program is sure to get here, and handles no exception."""
        return not self._run.journal.is_open and not self._run.tries

    def _return(self, node: ast.Return, scope: Scope) -> None:
        value = self._run.expressions.value(node.value, scope) if node.value is not None else None
        raise ReturnJump(value, frozenset(self._run.trace))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        self._run.journal.touch(scope.variables, scope.made_in)
        scope.variables[node.name] = self._run.calls.define(node, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        expressions, resolve = self._run.expressions, self._run.modules.resolve
        bases = tuple(resolve(expressions.value(base, scope)) for base in node.bases)
        body = Scope(scope, scope.path)
        defined = Class(name=node.name, path=scope.path, bases=bases, scope=body)
        body.variables["__class_body__"] = defined
        self.block(node.body, body)
        del body.variables["__class_body__"]
        defined.fields = {
            one.target.id: written(one.annotation)
            for one in node.body
            if isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and "ClassVar" not in written(one.annotation)
        }
        self._run.calls.finish_class(defined)
        self._run.journal.touch(scope.variables, scope.made_in)
        scope.variables[node.name] = self._run.calls.decorated(defined, node.decorator_list, scope)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            value = self._run.expressions.value(node.value, scope)
            # A statement begins with an empty trace.
            keys = frozenset(self._run.trace) if self._run.trace else _NO_KEYS
            for target in node.targets if type(node) is ast.Assign else [node.target]:  # type: ignore[union-attr]
                self._run.access.store(target, value, keys, scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        with self._run.traced() as keys:
            left = self._run.expressions.value(node.target, scope)
            right = self._run.expressions.value(node.value, scope)
            if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
                self._run.journal.touch(left)
                left += right
                return
            value = self._run.operations.binary(node.op, left, right, node, scope)
        self._run.access.store(node.target, value, frozenset(keys), scope)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                holder = self._run.expressions.value(target.value, scope)
                key = self._run.expressions.value(target.slice, scope)
                if isinstance(holder, dict) and isinstance(key, str):
                    self._run.journal.touch(holder)
                    holder.pop(key, None)

    def _if(self, node: ast.If, scope: Scope, rest: Sequence[ast.stmt]) -> bool:
        """Follow an `if`. True if the rest of the block was followed as a part of its branches."""
        self._steps += 1
        with self._run.traced() as keys:
            truth = self._run.expressions.truth(node.test, scope)
        if isinstance(truth, bool):
            self._guarded(node.body if truth else node.orelse, scope, keys)
            return False
        jumps = contains_own(node, _JUMPS)
        after = rest if jumps else ()
        blocks = ([*node.body, *after], [*node.orelse, *after])
        self._run.branches.fork(
            sources_of(truth), [partial(self.block, block, scope) if block else None for block in blocks]
        )
        return jumps

    def _guarded(self, statements: Sequence[ast.stmt], scope: Scope, keys: set[str]) -> None:
        """Follow the branch of a known condition; an exception that it raises itself is a failed check."""
        self._run.conditions.append(keys)
        try:
            self.block(statements, scope)
        except ProgramError as error:
            if not error.guarded and any(isinstance(one, ast.Raise) for one in statements):
                error.keys |= keys
                error.guarded = True
                self._fail(error)
            else:
                raise
        finally:
            self._run.conditions.pop()

    def _fail(self, error: ProgramError) -> None:
        """Note a failed check and go on, unless the program may handle it or not get there.

        A check that rests on no setting is about something that only a run brings about, as is what follows.
        """
        if self._run.blames_conditions:
            error.keys = error.keys.union(*self._run.conditions)
        if not error.keys or not self._is_certain():
            raise error
        self._run.failures.append(error.with_traceback(None))

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        with self._run.traced() as keys:
            truth = self._run.expressions.truth(node.test, scope)
        if truth is False:
            broken = f"`{written(node.test)}` does not hold"
            message = self._run.expressions.shown(node.msg, scope) if node.msg is not None else broken
            error = self._run.error("AssertionError", message, node, scope)
            error.keys, error.guarded = frozenset(keys), True
            self._fail(error)
        elif sources_of(truth):
            place = self._run.place(node, scope)
            self._run.open_checks.append(OpenCheck(place=place, sources=sources_of(truth)))

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        if self._run.branches.may_have_returned:
            # Such as the error behind a loop that searches for something, of which nothing is known.
            raise ReturnJump(UNKNOWN, frozenset())
        kind, message = "Exception", ""
        if isinstance(node.exc, ast.Call):
            kind = written(node.exc.func)
            message = " ".join(self._run.expressions.shown(one, scope) for one in node.exc.args)
        elif node.exc is not None:
            kind = written(node.exc)
        raise self._run.error(kind, message, node, scope)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        options = _written_as_options(node)
        if options is not None:
            self._run.start_engine(self._run.expressions.value(options, scope), by_command=True)
        with self._run.traced() as keys:
            items = self._run.access.items(self._run.expressions.value(node.iter, scope))

        def once(item: Value) -> None:
            self._run.access.store(node.target, item, frozenset(keys), scope)
            self._loop_body(node.body, scope)

        if isinstance(items, Unknown) and items.repeats:
            with suppress(BreakJump):
                self._run.branches.first_round(lambda: once(UNKNOWN))
            return
        if isinstance(items, Unknown) or len(items) > MAX_ITERATIONS:
            sources = sources_of(items)
            self._run.branches.fork(
                sources, [lambda: self._open_loop(lambda: once(Unknown(sources=sources))), None]
            )
            return
        try:
            for item in items:
                if isinstance(item, Unknown) and item.optional:
                    self._run.branches.fork(item.sources, [partial(once, item), None])
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
        except BreakJump:
            return
        except ReturnJump:
            self._run.branches.may_have_returned = True

    def _while(self, node: ast.While, scope: Scope) -> None:
        if isinstance(node.test, ast.Constant):
            self._endless(node, scope)
            return
        for _ in range(MAX_ITERATIONS):
            with self._run.traced() as keys:
                truth = self._run.expressions.truth(node.test, scope)
            if truth is False:
                return
            if isinstance(truth, Unknown) and keys and not truth.sources and _counts(node.test):
                # It counts up to a setting, from where an earlier run ended.
                with suppress(BreakJump):
                    self._run.branches.first_round(lambda: self._loop_body(node.body, scope))
                return
            if truth is not True:
                self._run.branches.fork(
                    sources_of(truth),
                    [lambda: self._open_loop(lambda: self._loop_body(node.body, scope)), None],
                )
                return
            try:
                self._loop_body(node.body, scope)
            except BreakJump:
                return
        raise BudgetError

    def _endless(self, node: ast.While, scope: Scope) -> None:
        """`while True`, which waits for something that only a run knows, such as a server."""
        try:
            self._run.branches.first_round(lambda: self._loop_body(node.body, scope))
        except BreakJump:
            return
        if contains_own(node, (ast.Return,)):
            raise ReturnJump(UNKNOWN, frozenset())
        if not contains_own(node, (ast.Break,)):
            # What follows is never reached.
            raise BudgetError

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self._run.expressions.value(item.context_expr, scope)
            if isinstance(value, Instance):
                value = self._run.calls.method(value, "__enter__", [], node, scope)
            if item.optional_vars is not None:
                self._run.access.store(item.optional_vars, value, frozenset(), scope)
        self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            if node.handlers and any(isinstance(one, (ast.Import, ast.ImportFrom)) for one in node.body):
                # Whether another package is installed is not known.
                handlers = [one.body for one in node.handlers]
                blocks = [[*node.body, *node.orelse], *handlers]
                self._run.branches.fork(frozenset(), [partial(self.block, block, scope) for block in blocks])
            else:
                self._handled(node, scope)
        finally:
            self.block(node.finalbody, scope)

    def _handled(self, node: ast.Try, scope: Scope) -> None:
        if not node.handlers:
            self.block(node.body, scope)
            return
        self._run.tries += 1
        try:
            self.block(node.body, scope)
        except ProgramError as error:
            self._run.tries -= 1
            handler = next((one for one in node.handlers if _catches(one, error.type)), None)
            if handler is None:
                raise
            if handler.name:
                scope.variables[handler.name] = UNKNOWN
            self.block(handler.body, scope)
        except BaseException:
            self._run.tries -= 1
            raise
        else:
            self._run.tries -= 1
            self.block(node.orelse, scope)


def _counts(test: ast.expr) -> bool:
    """Whether a condition is that a number is not too large."""
    return any(
        isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.Lt, ast.LtE)) for one in ast.walk(test)
    )


def _break(_node: ast.Break, _scope: Scope) -> None:
    raise BreakJump


def _continue(_node: ast.Continue, _scope: Scope) -> None:
    raise ContinueJump


def _catches(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    last = kind.rpartition(".")[2]
    return any(
        written(name).rpartition(".")[2] in (last, *_PARENTS.get(last, ()), "Exception", "BaseException")
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


_OPTIONS = "_npu_matrix_options"


def _written_as_options(node: ast.For | ast.AsyncFor) -> ast.expr | None:
    """The mapping whose entries a loop writes as options of a command, which is kept with its node."""
    if _OPTIONS not in node.__dict__:
        node.__dict__[_OPTIONS] = _options_of(node)
    options: ast.expr | None = node.__dict__[_OPTIONS]
    return options


def _options_of(node: ast.For | ast.AsyncFor) -> ast.expr | None:
    """verl up to 0.7.0 starts vLLM so: `for k, v in args.items(): ... server_args.append(f"--{k}")`."""
    entries, names = node.iter, node.target
    if not (isinstance(entries, ast.Call) and isinstance(entries.func, ast.Attribute)):
        return None
    if entries.func.attr != "items" or not isinstance(names, ast.Tuple) or len(names.elts) != 2:
        return None
    option = ast.unparse(ast.JoinedStr([ast.Constant("--"), ast.FormattedValue(names.elts[0], -1)]))
    calls = (one for statement in node.body for one in ast.walk(statement) if isinstance(one, ast.Call))
    written = any(
        isinstance(one.func, ast.Attribute)
        and one.func.attr == "append"
        and [ast.unparse(argument) for argument in one.args] == [option]
        for one in calls
    )
    return entries.func.value if written else None

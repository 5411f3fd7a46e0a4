"""Starts a program of verl with a composed configuration, and tells which of verl's own checks fail."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from harness.compat.lint.dry_run.followed_engine import TOO_LONG, EngineChecks
from harness.compat.lint.dry_run.jumps import BudgetError, ReturnJump
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Config,
    Entries,
    Function,
    OpenCheck,
    ProgramError,
    Unknown,
    Value,
)
from harness.compat.lint.dry_run.program_walk import ProgramWalk, Surroundings
from harness.compat.lint.hydra_compose import UNKNOWN_VALUE
from harness.compat.lint.module_files import ModuleFiles, unparsed

MAX_PYTHON_DEPTH = 8000
# The limit is one of the whole process: another thread must not lower it while a program is followed.
_DEPTH = threading.Lock()
UNKNOWN_MARK = re.compile(rf"{UNKNOWN_VALUE}(?P<name>\w*)")


@dataclass(frozen=True, kw_only=True)
class ProgramChecks:
    """failed: exceptions that the program raises. open: checks that rest on values that are not known.

    engine: the checks of vllm-ascend with the arguments with which the program starts vLLM; None if the
    program was not followed to there. vllm: the same for the checks of vLLM itself. unread: what was not
    followed, and can have checks that fail. read: the configuration keys that were read, in any branch.
    complete: whether the program was followed to its end; no program that trains is.
    """

    failed: tuple[ProgramError, ...]
    open: tuple[OpenCheck, ...]
    read: frozenset[str]
    complete: bool
    engine: EngineChecks | None = None
    vllm: EngineChecks | None = None
    unread: tuple[str, ...] = ()


def follow_program(
    module: str,
    values: Mapping[str, Value],
    files: ModuleFiles,
    read_module: Callable[[str], ast.Module | None],
    surroundings: Surroundings,
    follow_engine: Callable[[Entries], EngineChecks] | None = None,
    follow_vllm: Callable[[Entries, bool], EngineChecks] | None = None,
) -> ProgramChecks:
    """Follow the function of `module` that Hydra starts.

    follow_engine: the checks of vllm-ascend that fail with the arguments of vLLM; None if it is not at hand.
    follow_vllm: those of vLLM itself; it is also told whether the arguments are options of a command.
    """
    run = ProgramWalk(files, read_module, surroundings)
    complete, last, unread = True, [], []
    try:
        with _deep_calls():
            scope = run.modules.module(module)
            functions = (one for one in scope.variables.values() if isinstance(one, Function))
            main = next((one for one in functions if _is_main(one)), None)
            if main is not None:
                run.calls.function(main, [as_config(values)], {}, main.node, scope)
    except ProgramError as error:
        last.append(error)
    except (BudgetError, RecursionError, ReturnJump):
        complete = False
        unread.append(TOO_LONG)
    finally:
        run.modules.forget()
    stops: EngineChecks | None = None
    verified: EngineChecks | None = None
    if run.engine_arguments is not None:
        with _deep_calls():
            stops = follow_engine(run.engine_arguments) if follow_engine is not None else None
            if follow_vllm is not None:
                verified = follow_vllm(run.engine_arguments, run.engine_by_command)
    # After a failed check the program would have stopped: another error may be its consequence.
    return ProgramChecks(
        failed=tuple(run.failures or last),
        open=tuple(run.open_checks),
        read=frozenset(run.read | run.trace),
        complete=complete,
        engine=stops,
        vllm=verified,
        unread=(*unread, *map(unparsed, run.modules.unparsed)),
    )


@contextmanager
def _deep_calls() -> Iterator[None]:
    """Allow as many nested calls as following a program takes."""
    with _DEPTH:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, MAX_PYTHON_DEPTH))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)


def as_config(values: Mapping[str, Value], path: str = "") -> Config:
    """The composed configuration as the program sees it; values that are not known are marked in it."""
    config = Config({}, path)
    for name, value in values.items():
        config[str(name)] = _entry(value, config.key(str(name)))
    return config


def _entry(value: Value, path: str) -> Value:
    # A composed configuration has no other mappings; the test for `Mapping` takes twenty times as long.
    if isinstance(value, dict):
        return as_config(value, path)
    if isinstance(value, list):
        return [_entry(one, path) for one in value]
    if isinstance(value, str):
        found = UNKNOWN_MARK.search(value)
        if found:
            return Unknown(sources=frozenset([found["name"]]))
        if "${" in value:
            return UNKNOWN
    return value


def _is_main(function: Function) -> bool:
    if isinstance(function.node, ast.Lambda):
        return False
    names = [ast.unparse(one.func) for one in function.node.decorator_list if isinstance(one, ast.Call)]
    return any(name.endswith("hydra.main") for name in names)

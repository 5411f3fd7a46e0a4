"""One walk through a program: its surroundings, what was found, and the parts that follow it together."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.compat.lint.dry_run.access import Access
from harness.compat.lint.dry_run.branches import Branches
from harness.compat.lint.dry_run.calls import Calls
from harness.compat.lint.dry_run.expressions import Expressions
from harness.compat.lint.dry_run.journal import Journal
from harness.compat.lint.dry_run.libraries import Libraries
from harness.compat.lint.dry_run.operations import Operations
from harness.compat.lint.dry_run.program_modules import Modules
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Entries,
    OpenCheck,
    ProgramError,
    Scope,
    SourcePlace,
    Value,
)
from harness.compat.lint.dry_run.python_builtins import Builtins
from harness.compat.lint.dry_run.statements import Statements
from harness.compat.lint.module_files import ModuleFiles


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


class ProgramWalk:
    """The state of a walk through modules of verl. read_module: the syntax tree of a file, or None.

    failures: checks that fail. open_checks: those that depend on unknown values of the script. trace: the
    configuration keys that the current statement read. read: those that any statement read. tries: how many
    `try` statements are around the current one.
    """

    def __init__(
        self,
        files: ModuleFiles,
        read_module: Callable[[str], ast.Module | None],
        surroundings: Surroundings,
    ) -> None:
        self.surroundings = surroundings
        self.trace: set[str] = set()
        self.read: set[str] = set()
        self.tries = 0
        #: The keys of the known conditions around the current statement.
        self.conditions: list[set[str]] = []
        #: Whether a failed check rests on the settings of all these conditions, not only of its own.
        self.blames_conditions = False
        #: What the current process has set up: "torch" (its process group), "megatron" -> True.
        self.process: dict[str, Value] = {}
        self.failures: list[ProgramError] = []
        self.open_checks: list[OpenCheck] = []
        #: With what vLLM is started, once it is sure to be.
        self.engine_arguments: Entries | None = None
        #: Whether they are written as options of a command.
        self.engine_by_command = False
        self.journal = Journal()
        self.modules = Modules(self, files, read_module)
        self.statements = Statements(self)
        self.branches = Branches(self)
        self.operations = Operations(self)
        self.access = Access(self)
        self.calls = Calls(self)
        self.expressions = Expressions(self)
        self.builtins = Builtins(self)
        self.libraries = Libraries(self)

    def world_size(self) -> Value:
        """The processes of the worker group that is being followed."""
        self.trace |= self.surroundings.world_keys
        return self.surroundings.world_size or UNKNOWN

    def start_engine(self, arguments: Value, *, by_command: bool) -> Value:
        """Keep the arguments of vLLM. Its replicas differ in nothing that it checks."""
        is_first = self.engine_arguments is None and not self.journal.is_open
        if is_first and isinstance(arguments, Entries):
            self.engine_arguments, self.engine_by_command = arguments, by_command
        return UNKNOWN

    def place(self, node: ast.AST, scope: Scope) -> SourcePlace:
        """Where a node is written."""
        return SourcePlace(path=scope.path, line=getattr(node, "lineno", 0))

    def error(self, kind: str, message: str, node: ast.AST, scope: Scope) -> ProgramError:
        """An exception of the followed program."""
        return ProgramError(
            type=kind, message=message, place=self.place(node, scope), keys=frozenset(self.trace)
        )

    def traced(self) -> _Traced:
        """The configuration keys that are read in a `with` statement; the code around it reads them too."""
        return _Traced(self)


class _Traced:
    # Every expression uses it: a generator with `contextmanager` takes three times as long.
    __slots__ = ("_before", "_walk")

    def __init__(self, walk: ProgramWalk) -> None:
        self._walk, self._before = walk, walk.trace

    def __enter__(self) -> set[str]:
        self._walk.trace = set()
        return self._walk.trace

    def __exit__(self, *_error: object) -> None:
        if self._walk.trace:
            self._before |= self._walk.trace
        self._walk.trace = self._before

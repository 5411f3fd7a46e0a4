"""The state of a script at one point: its variables, arguments and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import (
    Expansion,
    ScriptValue,
    Sparse,
    Variable,
    VariableValue,
    array_of,
    unknown_variable,
)
from harness.compat.lint.shell.word_splitting import DEFAULT_IFS
from harness.errors import Location


@dataclass(kw_only=True)
class World:
    """One state in which a script can be. A condition that is not known leads to two worlds.

    script: path of the script, the value of `$0`. arguments: None for those of the script itself, which are
    given from outside. hidden: the variables that the local ones of a function hide (None: there was none);
    it is None outside of functions. ended: `exit` was executed. returned: `return` was. left_loops: how many
    loops `break` leaves; continued: the last of them goes on with its next item, after `continue`.
    references: variables that are names of others (`declare -n`). integers: those of `declare -i`. cases: "u"
    or "l" for those of `declare -u` and `declare -l`. absent: names that the script has unset, or that it did
    not export to this shell; others can be given from outside. options: those of `set`, such as `e` and `u`.
    option_place: where in a word `getopts` goes on.
    input: what is left of the standard input, None if it is not known. output: what was printed, None if
    nobody reads it. files: the texts of files that the script writes.
    """

    script: str
    variables: dict[str, Variable] = field(default_factory=dict)
    arguments: tuple[ScriptValue, ...] | None = None
    functions: dict[str, SyntaxNode] = field(default_factory=dict)
    hidden: dict[str, Variable | None] | None = None
    ended: bool = False
    returned: bool = False
    left_loops: int = 0
    continued: bool = False
    references: dict[str, str] = field(default_factory=dict)
    integers: frozenset[str] = frozenset()
    cases: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    option_place: int = 0
    input: Expansion | None = None
    output: Expansion | None = None
    files: dict[str, Expansion] = field(default_factory=dict)

    def copy(self) -> World:
        """A world that can change on its own."""
        return replace(
            self,
            variables=dict(self.variables),
            functions=dict(self.functions),
            references=dict(self.references),
            files=dict(self.files),
            hidden=None if self.hidden is None else dict(self.hidden),
        )

    def child(self) -> World:
        """The world of a program that this script starts: it has the exported variables only."""
        own = {name: variable for name, variable in self.variables.items() if variable.exported}
        return World(
            script=self.script,
            variables=own,
            arguments=(),
            absent=self.absent | (self.variables.keys() - own.keys()),
            files=dict(self.files),
            input=self.input,
        )

    def forget(self, name: str) -> None:
        """`unset NAME`."""
        name = self._resolved(name)
        self.variables.pop(name, None)
        self.absent |= {name}

    @property
    def running(self) -> bool:
        """Whether the next command is executed."""
        return not (self.ended or self.returned or self.left_loops)

    def variable(self, name: str) -> Variable | None:
        """A variable, also by the name of a reference to it; None if the script does not set it."""
        return self.variables.get(self._resolved(name))

    def _resolved(self, name: str) -> str:
        for _ in self.references:
            name = self.references.get(name, name)
        return name

    def remove_element(self, name: str, index: str) -> None:
        """`unset NAME[INDEX]`; an array whose index is not a number of its elements is not known after it."""
        variable = self.variable(name)
        if variable is None or isinstance(variable.value, Expansion):
            return
        if isinstance(variable.value, Mapping) and not isinstance(variable.value, Sparse):
            self.assign(
                name, {key: one for key, one in variable.value.items() if key != index}, variable.where
            )
            return
        elements = variable.numbered
        if index.lstrip("-").isdigit():
            place = int(index) if int(index) >= 0 else max(elements, default=-1) + 1 + int(index)
            elements.pop(place, None)
            self.assign(name, array_of(elements), variable.where)
        elif not index.isdigit():
            self.assign(name, Expansion(text=f"${{{name}[@]}}", unknown=f"{name}[{index}]"), variable.where)

    @property
    def separators(self) -> str:
        """The characters at which words are split, `$IFS`; those of a new shell if they are not known."""
        variable = self.variable("IFS")
        return DEFAULT_IFS if variable is None or variable.text.unknown else variable.text.text

    def write(self, text: Expansion) -> None:
        """Print a text to the standard output."""
        if self.output is not None:
            self.output = self.output + text

    def assign(self, name: str, value: VariableValue, where: Location) -> None:
        """Set a variable; it stays exported if it was."""
        name = self._resolved(name)
        before = self.variables.get(name)
        exported = before is not None and before.exported
        self.absent -= {name}
        self.variables[name] = Variable(value=value, where=where, exported=exported)

    def export(self, name: str, *, exported: bool = True) -> None:
        """Mark a variable as exported; one without a value is given from outside and has none to show."""
        name = self._resolved(name)
        before = self.variables.get(name)
        if before is not None:
            self.variables[name] = replace(before, exported=exported)

    def make_local(self, name: str) -> None:
        """Declare a variable of the current function; it has no effect outside of functions."""
        if self.hidden is not None:
            self.hidden.setdefault(name, self.variables.get(name))

    def forget_locals(self) -> None:
        """Restore what the local variables of the current function hid."""
        for name, variable in (self.hidden or {}).items():
            if variable is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = variable

    def text(self, name: str) -> Expansion | None:
        """What `$name` expands to; None if the script does not set it."""
        if name == "0" or name == "BASH_SOURCE":
            return Expansion(text=self.script)
        if name.isdigit():
            return self._argument(int(name) - 1)
        if name == "#":
            if self.arguments is None:
                return None
            return Expansion(text=str(len(self.arguments)))
        variable = self.variable(name)
        return variable.text if variable else None

    def is_absent(self, name: str) -> bool:
        """Whether a variable has no value, and cannot be given from outside."""
        return self._resolved(name) in self.absent

    def _argument(self, index: int) -> Expansion | None:
        if self.arguments is None:
            return None
        return self.arguments[index] if index < len(self.arguments) else Expansion(text="")

    def shift(self, count: int) -> None:
        """Drop the first arguments."""
        if self.arguments is not None:
            self.arguments = self.arguments[count:]


def distinct(worlds: Sequence[World]) -> list[World]:
    """The worlds without repetitions."""
    found: list[World] = []
    for world in worlds:
        if world not in found:
            found.append(world)
    return found


def merged(worlds: Sequence[World]) -> World:
    """One world for several: variables that differ are not known."""
    first = worlds[0].copy()
    names = dict.fromkeys(name for world in worlds for name in world.variables)
    for name in names:
        found = [world.variables.get(name) for world in worlds]
        variable = next(one for one in found if one is not None)
        first.variables[name] = (
            variable if all(one == variable for one in found) else unknown_variable(variable, name)
        )
    for world in worlds[1:]:
        first.functions |= world.functions
        first.input = first.input if first.input == world.input else None
        if first.output != world.output:
            first.output = Expansion(text="$(...)", unknown="output that depends on conditions")
        if first.hidden is not None:
            first.hidden = {**(world.hidden or {}), **first.hidden}
        if world.arguments != first.arguments:
            first.arguments = None
    return first

"""Walks a bash script and lists the programs it would start, with their arguments and environment.

Nothing is executed and nothing is read from the environment of this process. Both branches of an `if` are
read if its condition is not known; a loop over an unknown list is read once with an unknown variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compat.lint.lint_measurements import ScriptNote
from harness.compat.lint.shell import builtin_commands
from harness.compat.lint.shell.arithmetic import UnknownNumberError
from harness.compat.lint.shell.assignments import assign_variable, declare
from harness.compat.lint.shell.conditions import Truth, evaluate_clause, evaluate_test
from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.outcomes import Outcomes, bounded
from harness.compat.lint.shell.substitution import MAX_ITERATIONS, command_output
from harness.compat.lint.shell.syntax_tree import MAX_SCRIPT_BYTES, SyntaxNode, parse_bash
from harness.compat.lint.shell.values import (
    Expansion,
    ScriptValue,
    TooLargeError,
    joined,
)
from harness.compat.lint.shell.world import World, merged
from harness.errors import InputError, Location

# Each bound is far above what launch scripts need, and keeps hostile ones below two seconds.
MAX_STEPS = 5_000
MAX_NESTING = 25
#: Scripts, and strings that are scripts: each is parsed by a process.
MAX_PARSED = 50
MAX_COMMANDS = 500
NPU_IMPORT = re.compile(r"\s*import torch(?:_npu)?(?:\s*[,;]\s*(?:import )?torch_npu)?\s*")

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENV_OPTION = re.compile(r"(?:-u|--unset=?)(?P<name>.*)")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_BLOCKED_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A command line to run. own: the world with the variables that are set for this command alone."""

    arguments: list[ScriptValue]
    world: World
    own: World
    where: Location
    redirections: Sequence[SyntaxNode] = ()

    def without_first(self, count: int) -> Call:
        """The command line that `nohup` or `env` runs."""
        return replace(self, arguments=self.arguments[count:])


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program that a script starts. environment: the variables that the script exports or sets for it."""

    arguments: tuple[ScriptValue, ...]
    environment: Mapping[str, ScriptValue]
    where: Location


class Evaluator:
    """Reads one script and the files beside it that it sources.

    commands: the programs that it starts, without repetitions. notes: what was not read or is not known.
    stopped: the note about the rest of the script, if reading it was given up.
    """

    def __init__(self, path: str, folder: Path | None) -> None:
        self._path, self._folder = path, folder
        self._steps = 0
        self._nesting = 0
        self._parsed = 0
        self._where = Location(path, 1)
        self._expander = Expander(b"", self._output)
        self.commands: list[Command] = []
        self.notes: list[ScriptNote] = []
        self.stopped: ScriptNote | None = None

    def read(self, text: str) -> None:
        """Read the script; InputError if bash would not accept it."""
        world = World(script=self._path)
        tree = parse_bash(text, self._path)
        try:
            self._script(tree, text, world)
        except (TooLargeError, RecursionError) as error:
            why = str(error) if isinstance(error, TooLargeError) else "it is nested too deeply"
            text = f"the rest of the script is not read: {why}"
            self.stopped = ScriptNote(line=self._where.line, text=text, unread=True)
            self.notes.append(self.stopped)

    def _script(self, tree: SyntaxNode, text: str, world: World) -> Outcomes:
        before = self._expander
        self._expander = Expander(text.encode("utf-8", "surrogateescape"), self._output)
        try:
            return self._statements(tree.children("Stmts"), world)
        finally:
            self._expander = before

    def _nested(self, text: Expansion, world: World, where: Location) -> Outcomes:
        """Read a script that is a string, as in `bash -c` or `eval`."""
        if text.unknown and text.text.strip() in (f"${text.unknown}", f"${{{text.unknown}}}"):
            self._note(where, f"the command in {text.text} is not read", unread=True)
            return [(world, Truth.OPEN)]
        self._parsed += 1
        if self._parsed > MAX_PARSED:
            raise TooLargeError(f"it runs more than {MAX_PARSED} other scripts and strings")
        try:
            tree = parse_bash(text.text, self._path, where)
        except InputError as error:
            why = error.problems[0].why
            self._note(where, f"a command in a string is not read: {why}", unread=True)
            return [(world, Truth.OPEN)]
        return self._deeper(lambda: self._script(tree, text.text, world))

    def _output(self, node: SyntaxNode, world: World) -> Expansion | None:
        statements = node.children("Stmts")
        taken = self._taken(statements[0], world) if len(statements) == 1 else None
        return command_output(taken, world, self._expander) if taken else None

    def _taken(self, statement: SyntaxNode, world: World) -> SyntaxNode | None:
        """The command of `A && B` or `A || B` that prints, as far as it is known which of them run.

        The command that decides is a condition, which prints nothing. None if no command runs after it.
        """
        command = statement.child("Cmd")
        if command is None or command.kind != "BinaryCmd" or command.text("Op") not in ("&&", "||"):
            return statement
        left, right = command.child("X"), command.child("Y")
        truths = {truth.known for _, truth in self._statement(left, world.copy())} if left else {None}
        if left is None or right is None or len(truths) != 1 or None in truths:
            return statement
        if truths == {command.text("Op") == "&&"}:
            return self._taken(right, world)
        return self._taken(left, world) if command.text("Op") == "||" else None

    def _deeper(self, read: Callable[[], Outcomes]) -> Outcomes:
        self._nesting += 1
        try:
            if self._nesting > MAX_NESTING:
                raise TooLargeError(f"functions or scripts call each other more than {MAX_NESTING} times")
            return read()
        finally:
            self._nesting -= 1

    def _note(self, where: Location, text: str, *, unread: bool = False) -> None:
        note = ScriptNote(line=where.line, text=text, unread=unread)
        if note not in self.notes:
            self.notes.append(note)

    def _statements(self, statements: Sequence[SyntaxNode], world: World) -> Outcomes:
        outcomes: Outcomes = [(world, Truth.YES)]
        for statement in statements:
            following: Outcomes = []
            for before, truth in outcomes:
                following += self._statement(statement, before) if before.running else [(before, truth)]
            outcomes = bounded(following)
        return outcomes

    def _statement(self, statement: SyntaxNode, world: World) -> Outcomes:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooLargeError(f"it runs more than {MAX_STEPS:,} commands")
        self._where = statement.location
        command = statement.child("Cmd")
        if command is None:
            return [(world, Truth.YES)]
        outcomes = self._command(command, world, statement.children("Redirs"))
        if statement.flag("Negated"):
            return [(after, truth.negated()) for after, truth in outcomes]
        return outcomes

    def _command(self, node: SyntaxNode, world: World, redirections: Sequence[SyntaxNode]) -> Outcomes:
        readers: dict[str, Callable[[SyntaxNode, World], Outcomes]] = {
            "IfClause": self._if,
            "ForClause": self._for,
            "WhileClause": self._while,
            "CaseClause": self._case,
            "BinaryCmd": self._joined_commands,
            "Block": lambda node, world: self._statements(node.children("Stmts"), world),
            "Subshell": self._subshell,
            "FuncDecl": self._function,
            "DeclClause": self._declaration,
            "TestClause": lambda node, world: [
                (world, evaluate_clause(node.child("X"), self._expander, world))
            ],
            "ArithmCmd": self._arithmetic,
            "LetClause": self._let,
            "TimeClause": self._timed,
        }
        if node.kind == "CallExpr":
            return self._call(node, world, redirections)
        if node.kind not in readers:
            self._note(node.location, f"`{self._expander.raw(node)[:60]}` is not read", unread=True)
            return [(world, Truth.OPEN)]
        return readers[node.kind](node, world)

    def _if(self, node: SyntaxNode, world: World) -> Outcomes:
        conditions = node.children("Cond")
        if not conditions:
            return self._statements(node.children("Then"), world)
        outcomes: Outcomes = []
        for after, truth in self._statements(conditions, world):
            if not after.running:
                outcomes.append((after, truth))
                continue
            if truth.known is not False:
                outcomes += self._statements(node.children("Then"), after.copy())
            if truth.known is not True:
                otherwise = node.child("Else")
                outcomes += self._if(otherwise, after) if otherwise is not None else [(after, Truth.YES)]
        return bounded(outcomes)

    def _case(self, node: SyntaxNode, world: World) -> Outcomes:
        subject = self._expander.text(node.child("Word"), world)
        outcomes: Outcomes = []
        for item in node.children("Items"):
            truth = self._matches(item, subject, world)
            if truth.known is not False:
                outcomes += self._statements(item.children("Stmts"), world.copy())
            if truth.known is True:
                return bounded(outcomes)
        return bounded([*outcomes, (world, Truth.YES)])

    def _matches(self, item: SyntaxNode, subject: Expansion, world: World) -> Truth:
        found = Truth.NO
        for word in item.children("Patterns"):
            truth = Truth.of(self._expander.matches(word, subject, world))
            if truth is Truth.YES:
                return truth
            found = truth if found is Truth.NO else found
        return found

    def _for(self, node: SyntaxNode, world: World) -> Outcomes:
        loop = node.child("Loop")
        if loop is None or node.flag("Select"):
            self._note(node.location, "a `select` loop is not read", unread=True)
            return [(world, Truth.OPEN)]
        if loop.kind == "CStyleLoop":
            return self._counting(node, loop, world)
        name_node = loop.child("Name")
        name = name_node.text() if name_node is not None else ""
        items = self._expander.all_fields(loop.children("Items"), world)
        outcomes: Outcomes = [(world, Truth.YES)]
        for item in items[:MAX_ITERATIONS]:
            following: Outcomes = []
            for before, truth in outcomes:
                if before.running:
                    # An unknown list has unknown elements, which have the name of the loop's variable.
                    value = Expansion(text=f"${name}", unknown=name) if item.whole else item
                    before.assign(name, value, node.location)
                    following += self._statements(node.children("Do"), before)
                else:
                    following.append((before, truth))
            outcomes = bounded(following)
        if len(items) > MAX_ITERATIONS:
            self._note(node.location, f"a loop is read {MAX_ITERATIONS} times only", unread=True)
        return outcomes

    def _counting(self, node: SyntaxNode, loop: SyntaxNode, world: World) -> Outcomes:
        """`for ((init; condition; step))`."""
        outcomes: Outcomes = [(world, Truth.YES)]
        try:
            if loop.child("Init") is not None:
                self._expander.number(loop.child("Init"), world)
            for _ in range(MAX_ITERATIONS):
                if not self._expander.number(loop.child("Cond"), world):
                    return outcomes
                outcomes = self._statements(node.children("Do"), world)
                if len(outcomes) > 1:
                    outcomes = [(merged([one for one, _ in outcomes]), Truth.YES)]
                world = outcomes[0][0]
                if not world.running:
                    return outcomes
                if loop.child("Post") is not None:
                    self._expander.number(loop.child("Post"), world)
        except UnknownNumberError:
            return self._once_or_not(node, world)
        self._note(node.location, f"a loop is read {MAX_ITERATIONS} times only", unread=True)
        return outcomes

    def _while(self, node: SyntaxNode, world: World) -> Outcomes:
        outcomes: Outcomes = []
        for _ in range(MAX_ITERATIONS):
            found = self._statements(node.children("Cond"), world)
            world, truth = found[0] if len(found) == 1 else (merged([one for one, _ in found]), Truth.OPEN)
            known = truth.negated().known if node.flag("Until") else truth.known
            if known is False or not world.running:
                return [*outcomes, (world, Truth.YES)]
            if known is None:
                return bounded([*outcomes, *self._once_or_not(node, world)])
            after = self._statements(node.children("Do"), world)
            running = [one for one, _ in after if one.running]
            outcomes += [(one, truth) for one, truth in after if not one.running]
            if not running:
                return bounded(outcomes)
            world = running[0] if len(running) == 1 else merged(running)
        self._note(node.location, f"a loop is read {MAX_ITERATIONS} times only", unread=True)
        return bounded([*outcomes, (world, Truth.OPEN)])

    def _once_or_not(self, node: SyntaxNode, world: World) -> Outcomes:
        return [*self._statements(node.children("Do"), world.copy()), (world, Truth.YES)]

    def _joined_commands(self, node: SyntaxNode, world: World) -> Outcomes:
        left, right, operator = node.child("X"), node.child("Y"), node.text("Op")
        if left is None or right is None:
            return [(world, Truth.OPEN)]
        if operator not in ("&&", "||"):
            # Each command of a pipeline runs in a process of its own.
            self._statement(left, world.copy())
            self._statement(right, world.copy())
            return [(world, Truth.RAN)]
        outcomes: Outcomes = []
        for after, truth in self._statement(left, world):
            if not after.running:
                outcomes.append((after, truth))
                continue
            # A program is expected to succeed. For `program || other`, both are read.
            skips = {"&&": truth.known is False, "||": truth.known is True}[operator]
            runs = {
                "&&": truth in (Truth.YES, Truth.RAN),
                "||": truth is Truth.NO,
            }[operator]
            if not skips:
                outcomes += self._statement(right, after.copy())
            if not runs:
                outcomes.append((after, truth))
        return bounded(outcomes)

    def _subshell(self, node: SyntaxNode, world: World) -> Outcomes:
        self._statements(node.children("Stmts"), world.copy())
        return [(world, Truth.RAN)]

    def _function(self, node: SyntaxNode, world: World) -> Outcomes:
        name, body = node.child("Name"), node.child("Body")
        if name is not None and body is not None:
            world.functions[name.text()] = body
        return [(world, Truth.YES)]

    def _timed(self, node: SyntaxNode, world: World) -> Outcomes:
        statement = node.child("Stmt")
        return self._statement(statement, world) if statement is not None else [(world, Truth.YES)]

    def _arithmetic(self, node: SyntaxNode, world: World) -> Outcomes:
        try:
            return [(world, Truth.of(self._expander.number(node.child("X"), world) != 0))]
        except UnknownNumberError:
            return [(world, Truth.OPEN)]

    def _let(self, node: SyntaxNode, world: World) -> Outcomes:
        try:
            for expression in node.children("Exprs"):
                self._expander.number(expression, world)
        except UnknownNumberError:
            return [(world, Truth.OPEN)]
        return [(world, Truth.YES)]

    def _declaration(self, node: SyntaxNode, world: World) -> Outcomes:
        declare(node, world, self._expander)
        return [(world, Truth.YES)]

    def _call(self, node: SyntaxNode, world: World, redirections: Sequence[SyntaxNode]) -> Outcomes:
        assigns, words = node.children("Assigns"), node.children("Args")
        arguments = self._expander.all_fields(words, world)
        if not arguments:
            for assign in assigns:
                assign_variable(assign, world, self._expander)
            return [(world, Truth.YES if not words else Truth.OPEN)]
        own = world.copy()
        for assign in assigns:
            assign_variable(assign, own, self._expander)
            name = assign.child("Name")
            if name is not None:
                own.export(name.text())
        return self._run(
            Call(arguments=arguments, world=world, own=own, where=node.location, redirections=redirections)
        )

    def _run(self, call: Call) -> Outcomes:
        arguments, world, where = call.arguments, call.world, call.where
        name = arguments[0].text
        commands: dict[str, Callable[[list[ScriptValue], World, Location], Outcomes]] = {
            "set": builtin_commands.set_arguments,
            "shift": builtin_commands.shift,
            "source": self._source,
            ".": self._source,
            "eval": self._eval,
            "unset": builtin_commands.unset,
            "read": builtin_commands.read_unknown,
            "mapfile": builtin_commands.read_unknown,
            "readarray": builtin_commands.read_unknown,
            "getopts": builtin_commands.read_unknown,
            "printf": builtin_commands.printf,
        }
        if name in world.functions:
            return self._function_call(arguments, world)
        if name in ("exit", "return"):
            after = world.copy()
            after.ended, after.returned = name == "exit", name == "return"
            return [(after, Truth.OPEN)]
        if name in ("true", ":", "echo") or _is_npu_probe(arguments):
            return [(world, Truth.YES)]
        if name == "false":
            return [(world, Truth.NO)]
        if name == "[" and arguments[-1].text == "]":
            return [(world, evaluate_test(arguments[1:-1]))]
        if name == "test":
            return [(world, evaluate_test(arguments[1:]))]
        if name == "read" and call.redirections:
            return builtin_commands.read_document(arguments, world, where, call.redirections, self._expander)
        if name in commands:
            return commands[name](arguments, world, where)
        if name in ("exec", "command", "builtin", "time", "nohup", "sudo") and len(arguments) > 1:
            outcomes = self._run(call.without_first(1))
            if name == "exec":
                for after, _truth in outcomes:
                    after.ended = True
            return outcomes
        return self._program(call)

    def _program(self, call: Call) -> Outcomes:
        arguments, world, own, where = call.arguments, call.world, call.own, call.where
        if arguments[0].whole:
            self._note(where, f"the command in {arguments[0].text} is not read", unread=True)
        if Path(arguments[0].text).name == "env":
            return self._env(call)
        shell = _shell_argument(arguments)
        if shell is not None:
            kind, position = shell
            inner = own.copy()
            if kind == "-c":
                inner.arguments = tuple(arguments[position + 2 :])
                self._nested(arguments[position], inner, arguments[position].where)
                return [(world, Truth.RAN)]
            if self._other_script(arguments[position:], inner):
                return [(world, Truth.RAN)]
        if len(self.commands) >= MAX_COMMANDS:
            raise TooLargeError(f"it starts more than {MAX_COMMANDS} programs")
        environment = {
            name: variable.as_script_value() for name, variable in own.variables.items() if variable.exported
        }
        command = Command(arguments=tuple(arguments), environment=environment, where=where)
        if command not in self.commands:
            self.commands.append(command)
        return [(world, Truth.RAN)]

    def _env(self, call: Call) -> Outcomes:
        position, own = 1, call.own
        while position < len(call.arguments):
            argument = call.arguments[position]
            found, option = _ASSIGNMENT.fullmatch(argument.text), _ENV_OPTION.fullmatch(argument.text)
            if found:
                own.assign(
                    found[1],
                    ScriptValue(text=found[2], unknown=argument.unknown, where=argument.where),
                    argument.where,
                )
                own.export(found[1])
            elif option and not option["name"] and position + 1 < len(call.arguments):
                position += 1
                own.variables.pop(call.arguments[position].text, None)
            elif option:
                own.variables.pop(option["name"], None)
            elif argument.text in ("-i", "-", "--ignore-environment"):
                own.variables.clear()
            elif not argument.text.startswith("-"):
                return self._run(call.without_first(position))
            position += 1
        return [(call.world, Truth.RAN)]

    def _other_script(self, arguments: Sequence[ScriptValue], world: World) -> bool:
        """Read another script that this one starts, if it lies beside it."""
        text = self._text_beside(arguments[0])
        if text is None:
            return False
        world.arguments = tuple(arguments[1:])
        world.variables = {name: value for name, value in world.variables.items() if value.exported}
        self._nested(Expansion(text=text), world, arguments[0].where)
        return True

    def _function_call(self, arguments: list[ScriptValue], world: World) -> Outcomes:
        before, body = (world.arguments, world.hidden), world.functions[arguments[0].text]
        world.arguments, world.hidden = tuple(arguments[1:]), {}
        outcomes = self._deeper(lambda: self._statement(body, world))
        for after, _truth in outcomes:
            after.forget_locals()
            (after.arguments, after.hidden), after.returned = before, False
        return outcomes

    def _eval(self, arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
        return self._nested(joined(arguments[1:], " "), world, where)

    def _source(self, arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
        if len(arguments) < 2:
            return [(world, Truth.OPEN)]
        text = self._text_beside(arguments[1])
        if text is None:
            text = f"`{arguments[1].text}` is not read: no such file lies beside this script"
            self._note(where, text, unread=True)
            return [(world, Truth.RAN)]
        return self._nested(Expansion(text=text), world, where)

    def _text_beside(self, path: ScriptValue) -> str | None:
        """The text of a script in the folder of this one or below; None if there is none."""
        if self._folder is None or path.unknown or _BLOCKED_NAMES.search(path.text):
            return None
        folder = self._folder.resolve()
        try:
            for base in (folder, Path()):
                file = (base / path.text).resolve()
                if file.is_relative_to(folder) and file.is_file() and file.stat().st_size <= MAX_SCRIPT_BYTES:
                    return file.read_text("utf-8")
        except (OSError, ValueError):
            return None
        return None


def _is_npu_probe(arguments: Sequence[ScriptValue]) -> bool:
    """Whether a command only looks for the software of NPUs, which the machines have that lint judges for."""
    words = [word.text for word in arguments]
    imports = Path(words[0]).name.startswith("python") and words[1:2] == ["-c"] and len(words) == 3
    return bool(imports and NPU_IMPORT.fullmatch(words[2]))


def _shell_argument(arguments: Sequence[ScriptValue]) -> tuple[str, int] | None:
    """Where a command gives a shell its script: "-c" and the string's index, or "file" and the path's."""
    for position, argument in enumerate(arguments[:-1]):
        if argument.unknown or not _SHELLS.fullmatch(argument.text):
            continue
        for index in range(position + 1, len(arguments)):
            text = arguments[index].text
            if text.startswith("-") and text.endswith("c") and index + 1 < len(arguments):
                return "-c", index + 1
            if not text.startswith("-"):
                return "file", index
    return None

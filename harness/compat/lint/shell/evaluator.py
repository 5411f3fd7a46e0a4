"""Walks a bash script and lists the programs it would start, with their arguments and environment.

Nothing is executed and nothing is read from the environment of this process. Both branches of an `if` are
read if its condition is not known; a loop over an unknown list is read once with an unknown variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, dropwhile
from pathlib import Path

from harness.compat.lint.lint_measurements import ScriptNote
from harness.compat.lint.shell import builtin_commands
from harness.compat.lint.shell.arithmetic import UnknownNumberError
from harness.compat.lint.shell.assignments import assign_variable, declare
from harness.compat.lint.shell.conditions import Truth, evaluate_clause, evaluate_test
from harness.compat.lint.shell.expansion import (
    Expander,
    UnsetVariableError,
    UnusableExpansionError,
)
from harness.compat.lint.shell.launchers import (
    PREFIXES,
    PYTHON,
    command_lines,
    is_npu_probe,
    is_python,
    looked_up,
    shell_script,
    xargs_commands,
)
from harness.compat.lint.shell.loops import Loops
from harness.compat.lint.shell.outcomes import Outcomes, bounded
from harness.compat.lint.shell.redirections import changed_folder, redirections_of
from harness.compat.lint.shell.syntax_tree import MAX_SCRIPT_BYTES, SyntaxNode, parse_bash
from harness.compat.lint.shell.text_filters import FILTERS, filtered
from harness.compat.lint.shell.tree_survey import (
    arithmetic_commands,
    expansion_slips,
    first_elements,
    long_texts,
    misplaced_overrides_of,
    names_of,
    numbered_files,
    plain_uses,
    redirected_tests,
    refused_names_of,
    replaced_values_of,
    sets_any_name,
    settings_of,
    unused_texts,
)
from harness.compat.lint.shell.values import Expansion, ScriptValue, TooLargeError, joined
from harness.compat.lint.shell.world import World
from harness.errors import InputError, Location

# Each bound is far above what launch scripts need, and keeps hostile ones below two seconds.
MAX_STEPS = 5_000
MAX_NESTING = 25
#: Scripts, and strings that are scripts: each is parsed by a process.
MAX_PARSED = 50
MAX_PARSED_CHARACTERS = 256 << 10
MAX_COMMANDS = 500

#: Commands that end the script when they fail, with `set -e`. Blocks and the like do not do so themselves.
_ENDED_BY_FAILURE = ("CallExpr", "TestClause", "ArithmCmd", "LetClause")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENV_OPTION = re.compile(r"(?:-u|--unset=?)(?P<name>.*)")
_SUBSTITUTION = re.compile(r"\$\((?!\()|`")
#: A folder that a path begins with and only a run knows.
_UNKNOWN_FOLDER = re.compile(r"(?:\$\w+|\$\{\w+\}|\$\([^()]*(?:\([^()]*\)[^()]*)*\))/")
#: Scripts of tools that add programs and libraries to the environment of a shell.
_ACTIVATION = re.compile(
    r"(?:.*/)?(?:activate|conda\.sh|bash_completion|nvm\.sh|set_env\.sh|setenv\.bash|modules?\.sh|\.?bashrc|\.profile"
    r"|\.bash_profile)"
)
_SLURM_OPTION, _SLURM_NAME = re.compile(r"^#SBATCH\s", re.MULTILINE), re.compile(r"\bSLURM_\w+")
_BLOCKED_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A command line to run. own: the world with the variables that are set for this command alone."""

    arguments: list[ScriptValue]
    world: World
    own: World
    where: Location

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

    path, text: of the script. commands: the programs that it starts, without repetitions. notes: what was not
    read or is not known. stopped: the note about the rest of the script, if reading it was given up.
    assigned_names, used_names: the variables that the script sets and uses somewhere. used_arrays: those of
    which it uses all elements, as `${NAME[@]}`. set_variables: the texts that it assigns to variables for the
    rest of the script, as they are written. exported_names: the variables that it exports somewhere.
    unset_variables: those that it uses as if they were set, and that it sets nowhere.
    replaced_arrays: those whose elements are replaced before they are used; replaced_texts: variables whose
    texts are. unpassed_arrays: those of overrides that nothing uses. refused_names: words after `export`
    that are no names. redirected_tests: comparisons in `[ ... ]` that bash takes for redirections.
    numbered_files: redirections such as `2>1`. misplaced_overrides: those that `tee` gets, with it.
    unused_texts: variables with overrides that nothing uses.
    first_elements: arrays of overrides of which only the first is used. arithmetic_commands: `$(2 * 3)`.
    lines: the script's. long_texts: the last lines of assigned texts that have several, by their place.
    slips: what bash reads otherwise than it looks. ended_at: the first `exit` with a status that is not 0.
    """

    def __init__(self, path: str, folder: Path | None) -> None:
        self.path, self._folder = path, folder
        self._steps = 0
        self._nesting = 0
        self._parsed = self._parsed_characters = 0
        self._substitutions = 0
        self._tolerant = False
        self._where = Location(path, 1)
        self._expander = Expander(self._output, count())
        self.text = ""
        self.commands: list[Command] = []
        self.notes: list[ScriptNote] = []
        self.stopped: ScriptNote | None = None
        self.assigned_names: frozenset[str] = frozenset()
        self.used_names: frozenset[str] = frozenset()
        self.used_arrays: Mapping[str, Location] = {}
        self.set_variables: Mapping[str, ScriptValue] = {}
        self.exported_names: frozenset[str] = frozenset()
        self.unset_variables: Mapping[str, Location] = {}
        self.replaced_arrays: Mapping[str, Location] = {}
        self.replaced_texts: Mapping[str, Location] = {}
        self.misplaced_overrides: Sequence[tuple[str, str, Location]] = ()
        self.refused_names: Sequence[tuple[str, Location]] = ()
        self.redirected_tests: Sequence[tuple[str, str, Location]] = ()
        self.numbered_files: Sequence[tuple[str, Location]] = ()
        self.unpassed_arrays: Mapping[str, Location] = {}
        self.unused_texts: Mapping[str, Location] = {}
        self.first_elements: Mapping[str, Location] = {}
        self.arithmetic_commands: Sequence[tuple[str, Location]] = ()
        self.slips: Sequence[tuple[str, Location]] = ()
        self.ended_at: Location | None = None
        self.lines: Sequence[str] = ()
        self.long_texts: Mapping[tuple[int, int], int] = {}

    def read(self, text: str) -> None:
        """Read the script; InputError if bash would not accept it."""
        self.text = text
        world = World(script=self.path)
        tree = parse_bash(text, self.path)
        for name in _SLURM_NAME.findall(text) if _SLURM_OPTION.search(text) else ():
            # Slurm sets it for a script with options for `sbatch`: no default takes its place.
            world.assign(name, Expansion(text=f"${{{name}}}", unknown=name), Location(self.path, 1))
            world.export(name)
        self.assigned_names, self.used_names, self.used_arrays, given = names_of(tree)
        self.unpassed_arrays = {name: where for name, where in given.items() if name not in self.used_names}
        self.set_variables, self.exported_names = settings_of(tree)
        self.misplaced_overrides = [*misplaced_overrides_of(tree)]
        self.replaced_arrays, self.replaced_texts = replaced_values_of(tree)
        self.refused_names = tuple(refused_names_of(tree))
        self.redirected_tests = tuple(redirected_tests(tree))
        self.unused_texts = unused_texts(tree, self.used_names)
        self.first_elements = first_elements(tree)
        self.arithmetic_commands = tuple(arithmetic_commands(tree, self.assigned_names))
        self.numbered_files = tuple(numbered_files(tree))
        self.slips = tuple(expansion_slips(tree))
        self.lines, self.long_texts = text.split("\n"), long_texts(tree)
        try:
            self._statements(tree.children("Stmts"), world)
        except (TooLargeError, RecursionError) as error:
            why = str(error) if isinstance(error, TooLargeError) else "it is nested too deeply"
            text = f"the rest of the script is not read: {why}"
            self.stopped = ScriptNote(line=self._where.line, text=text, unread=True)
            self.notes.append(self.stopped)
        uses = {} if sets_any_name(tree, self.set_variables) else plain_uses(tree)
        self.unset_variables = {
            name: where for name, where in uses.items() if name not in self.assigned_names
        }

    def _nested(self, text: Expansion, world: World, where: Location) -> Outcomes:
        """Read a script that is a string, as in `bash -c` or `eval`."""
        if text.unknown and text.text.strip() in (f"${text.unknown}", f"${{{text.unknown}}}"):
            self._note(where, f"the command in {text.text} is not read", unread=True)
            return [(world, Truth.OPEN)]
        self._parsed += 1
        self._parsed_characters += len(text.text)
        if self._parsed > MAX_PARSED or self._parsed_characters > MAX_PARSED_CHARACTERS:
            raise TooLargeError("the scripts and strings that it runs are too many or too large")
        try:
            tree = parse_bash(text.text, self.path, where)
        except InputError as error:
            why = error.problems[0].why
            self._note(where, f"a command in a string is not read: {why}", unread=True)
            return [(world, Truth.OPEN)]
        self.assigned_names |= names_of(tree)[0]
        return self._deeper(lambda: self._statements(tree.children("Stmts"), world))

    def _output(self, node: SyntaxNode, world: World) -> Expansion | None:
        """What the commands in `$(...)` or `<(...)` print; None if only a run knows it."""
        statements = node.children("Stmts")
        folder = changed_folder(statements[0], world, self._expander) if len(statements) == 1 else None
        if folder is not None:
            return folder
        inner = world.copy()
        inner.output = Expansion(text="")
        self._substitutions += 1
        try:
            outcomes = self._deeper(lambda: self._statements(statements, inner))
        finally:
            self._substitutions -= 1
        output = _printed_by(outcomes)
        if output is None or output.unknown.startswith(("$(", "`")):
            return None
        text = output.text.rstrip("\n") if node.kind == "CmdSubst" else output.text
        return Expansion(text=text, unknown=output.unknown)

    def _deeper(self, read: Callable[[], Outcomes]) -> Outcomes:
        self._nesting += 1
        try:
            if self._nesting > MAX_NESTING:
                raise TooLargeError(f"functions or scripts call each other more than {MAX_NESTING} times")
            return read()
        finally:
            self._nesting -= 1

    def _note(self, where: Location, text: str, *, unread: bool = False) -> None:
        # What `$(...)` prints is a value; one that is not known is told where it is used.
        note = ScriptNote(line=where.line, text=text, unread=unread and not self._substitutions)
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
        is_negated = statement.flag("Negated")
        try:
            redirections = redirections_of(statement.children("Redirs"), world, self._expander, self._output)
            with self._tolerating(is_negated):
                outcomes = redirections.run(lambda inner: self._command(command, inner), world)
        except UnusableExpansionError as error:
            fails = "e" in world.options and not self._tolerant
            world.ended = fails or isinstance(error, UnsetVariableError)
            return [(world, Truth.NO)]
        if is_negated:
            return [(after, truth.negated()) for after, truth in outcomes]
        if command.kind in _ENDED_BY_FAILURE and not self._tolerant:
            for after, truth in outcomes:
                after.ended = after.ended or (truth is Truth.NO and "e" in after.options)
        return outcomes

    @contextmanager
    def _tolerating(self, is_tested: bool = True) -> Iterator[None]:
        """Read commands whose failure does not end the script with `set -e`, because it is tested."""
        before, self._tolerant = self._tolerant, self._tolerant or is_tested
        try:
            yield
        finally:
            self._tolerant = before

    def _command(self, node: SyntaxNode, world: World) -> Outcomes:
        readers: dict[str, Callable[[SyntaxNode, World], Outcomes]] = {
            "IfClause": self._if,
            "ForClause": self._loop,
            "WhileClause": self._loop,
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
            return self._call(node, world)
        if node.kind not in readers:
            self._note(node.location, f"`{node.raw[:60]}` is not read", unread=True)
            return [(world, Truth.OPEN)]
        return readers[node.kind](node, world)

    def _if(self, node: SyntaxNode, world: World) -> Outcomes:
        conditions = node.children("Cond")
        if not conditions:
            return self._statements(node.children("Then"), world)
        outcomes: Outcomes = []
        with self._tolerating():
            tested = self._statements(conditions, world)
        for after, truth in tested:
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
        testing, falling = [world], list[World]()
        for item in node.children("Items"):
            truths = [(one, self._matches(item, subject, one).known) for one in testing]
            starts = [*falling, *(one.copy() for one, known in truths if known is not False)]
            testing = [one for one, known in truths if known is not True]
            after = [one for start in starts for one in self._statements(item.children("Stmts"), start)]
            outcomes += [one for one in after if not one[0].running]
            running = [one for one in after if one[0].running]
            # `;&` goes on with the next commands, `;;&` with the next patterns.
            falling = [one for one, _ in bounded(running)] if item.text("Op") == ";&" else []
            testing += [one for one, _ in bounded(running)] if item.text("Op") == ";;&" else []
            outcomes += running if item.text("Op") not in (";&", ";;&") else []
        return bounded([*outcomes, *((one, Truth.YES) for one in (*falling, *testing))])

    def _matches(self, item: SyntaxNode, subject: Expansion, world: World) -> Truth:
        found = Truth.NO
        for word in item.children("Patterns"):
            truth = Truth.of(self._expander.matches(word, subject, world))
            if truth is Truth.YES:
                return truth
            found = truth if found is Truth.NO else found
        return found

    def _loop(self, node: SyntaxNode, world: World) -> Outcomes:
        return Loops(self._expander, self._statements, self._tolerating, self._note).read(node, world)

    def _joined_commands(self, node: SyntaxNode, world: World) -> Outcomes:
        left, right, operator = node.child("X"), node.child("Y"), node.text("Op")
        if left is None or right is None:
            return [(world, Truth.OPEN)]
        if operator not in ("&&", "||"):
            return self._pipeline(left, right, world)
        outcomes: Outcomes = []
        with self._tolerating():
            tested = self._statement(left, world)
        for after, truth in tested:
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

    def _pipeline(self, left: SyntaxNode, right: SyntaxNode, world: World) -> Outcomes:
        """Each command of a pipeline runs in a process of its own."""
        first, second = world.copy(), world.copy()
        first.output = Expansion(text="")
        with self._tolerating():
            second.input = _printed_by(self._statement(left, first))
        return self._after(self._statement(right, second), world)

    def _subshell(self, node: SyntaxNode, world: World) -> Outcomes:
        return self._after(self._statements(node.children("Stmts"), world.copy()), world)

    def _after(self, outcomes: Outcomes, world: World) -> Outcomes:
        """The world after commands in a process of their own, which print texts and write files."""
        if world.output is not None:
            world.output = _printed_by(outcomes) or Expansion(text="$(...)", unknown="$(...)")
        for after, _truth in outcomes:
            world.files |= after.files
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

    def _call(self, node: SyntaxNode, world: World) -> Outcomes:
        assigns, words = node.children("Assigns"), node.children("Args")
        arguments = self._expander.all_fields(words, world)
        if not arguments:
            for assign in assigns:
                assign_variable(assign, world, self._expander)
            # The status of an assignment is that of the command in it.
            runs = any(_SUBSTITUTION.search(assign.raw) for assign in assigns)
            return [(world, Truth.OPEN if words else Truth.RAN if runs else Truth.YES)]
        own = world.copy()
        for assign in assigns:
            assign_variable(assign, own, self._expander)
            name = assign.child("Name")
            if name is not None:
                own.export(name.text())
        return self._run(Call(arguments=arguments, world=world, own=own, where=node.location))

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
            "read": lambda words, world, where: builtin_commands.read(words, world, where, call.own),
            "mapfile": builtin_commands.mapfile,
            "readarray": builtin_commands.mapfile,
            "trap": self._trap,
            "getopts": builtin_commands.getopts,
            "printf": builtin_commands.printf,
            "echo": builtin_commands.echo,
            "break": builtin_commands.leave_loop,
            "continue": builtin_commands.leave_loop,
        }
        if name in world.functions:
            return _with_own_variables(call, lambda: self._function_call(arguments, world))
        if name in ("exit", "return"):
            after = world.copy()
            after.ended, after.returned = name == "exit", name == "return"
            code = arguments[1].text if len(arguments) > 1 else ""
            if name == "exit" and not self._substitutions and code.isdigit() and int(code):
                self.ended_at = self.ended_at or where
            return [(after, Truth.of(int(code) == 0 if code.isdigit() else None))]
        if name in ("true", ":") or is_npu_probe(arguments):
            return [(world, Truth.YES)]
        if name == "false":
            return [(world, Truth.NO)]
        if name == "[" and arguments[-1].text == "]":
            return [(world, evaluate_test(arguments[1:-1], world))]
        if name == "test":
            return [(world, evaluate_test(arguments[1:], world))]
        if name in ("eval", "source", "."):
            return _with_own_variables(call, lambda: commands[name](arguments, world, where))
        if name in commands:
            return commands[name](arguments, world, where)
        program = looked_up(arguments)
        if program is not None:
            known = PYTHON.fullmatch(program.text) and not program.unknown
            world.write(program if known else Expansion(text="$(which)", unknown="$(which)"))
            return [(world, Truth.OPEN)]
        if name in PREFIXES and len(arguments) > 1:
            outcomes = self._run(call.without_first(1))
            if name == "exec":
                for after, _truth in outcomes:
                    after.ended = True
            return outcomes
        return self._program(call)

    def _program(self, call: Call) -> Outcomes:
        arguments, world, own, where = call.arguments, call.world, call.own, call.where
        starts_python = any(is_python(arguments, position) for position in range(len(arguments)))
        if arguments[0].whole and not starts_python:
            self._note(where, f"the command in {arguments[0].text} is not read", unread=True)
        name = Path(arguments[0].text).name
        if name == "env":
            return self._env(call)
        if name in FILTERS and self._filter(call, name):
            return [(world, Truth.RAN)]
        if name == "xargs":
            for words in xargs_commands(arguments, world.input):
                self._run(replace(call, arguments=words, world=world.copy(), own=own.copy()))
            return [(world, Truth.RAN)]
        if self._script_of(call):
            return [(world, Truth.RAN)]
        for line in command_lines(arguments):
            self._nested(line, own.copy(), line.where)
        world.write(_printed(arguments))
        if self._substitutions and not starts_python:
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

    def _filter(self, call: Call, name: str) -> bool:
        """Print what a program makes of its input, and whether it is one that only does this."""
        arguments, world = call.arguments, call.world
        source = world.input if world.input is not None and not world.input.unknown else None
        words = [word.text for word in arguments[1:]]
        if name == "tee":
            for word in arguments[1:]:
                if world.input is not None and not word.text.startswith("-"):
                    world.files[word.text.removeprefix("./")] = world.input
        if name == "cat" and len(words) == 1 and words[0] != "-":
            world.write(world.files.get(words[0].removeprefix("./")) or _printed(arguments))
            return True
        if name == "cat" and not words and world.input is not None:
            # A document can have unknown parts, which have names.
            world.write(world.input)
            return True
        unknown = any(word.unknown for word in arguments)
        text = None if unknown else filtered(name, words, source.text if source else None)
        if text is None and name in ("xargs", "conda"):
            return False
        world.write(Expansion(text=text) if text is not None else _printed(arguments))
        return True

    def _script_of(self, call: Call) -> bool:
        """Read the script that a command starts: a file, a string, or the input of a shell."""
        arguments, inner = call.arguments, call.own.child()
        if arguments[0].text.endswith(".sh") and self._other_script(arguments, inner):
            return True
        kind, position = shell_script(arguments) or ("", 0)
        if kind == "-c":
            inner.script = arguments[position + 1].text if position + 1 < len(arguments) else "bash"
            inner.arguments = tuple(arguments[position + 2 :])
            self._nested(arguments[position], inner, arguments[position].where)
        elif kind == "file":
            if not self._other_script(arguments[position:], inner):
                self._note(
                    call.where,
                    f"`{arguments[position].text}` is not read: no such file lies beside this script",
                )
                return False
        elif (kind == "input" or Path(arguments[0].text).name == "ssh") and inner.input is not None:
            inner.arguments = tuple(arguments[position:]) if kind else ()
            document, inner.input = inner.input, None
            self._nested(document, inner, call.where)
            return True
        return kind in ("-c", "file")

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
        text = self._text_beside(arguments[0], world)
        if text is None:
            return False
        world.arguments = tuple(arguments[1:])
        self._nested(text, world, arguments[0].where)
        return True

    def _function_call(self, arguments: list[ScriptValue], world: World) -> Outcomes:
        before, body = (world.arguments, world.hidden), world.functions[arguments[0].text]
        references = dict(world.references)
        world.arguments, world.hidden = tuple(arguments[1:]), {}
        outcomes = self._deeper(lambda: self._statement(body, world))
        for after, _truth in outcomes:
            after.forget_locals()
            (after.arguments, after.hidden), after.returned = before, False
            after.references = references
        return outcomes

    def _eval(self, arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
        words = list(dropwhile(lambda word: word.text == "eval", arguments))
        return self._nested(joined(words, " "), world, where)

    def _trap(self, arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
        """The commands of `trap` are executed at some time, if at all."""
        if len(arguments) > 2 and arguments[1].text not in ("", "-") and arguments[1].text[:1] != "-":
            self._nested(arguments[1], world.copy(), where)
        return [(world, Truth.YES)]

    def _source(self, arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
        if len(arguments) < 2:
            return [(world, Truth.OPEN)]
        if arguments[1].text == "/dev/stdin" and world.input is not None:
            return self._nested(world.input, world, where)
        text = self._text_beside(arguments[1], world)
        if text is None:
            problem = f"`{arguments[1].text}` is not read: no such file lies beside this script"
            # What prepares a shell for other programs sets no variable of the job.
            self._note(where, problem, unread=not _ACTIVATION.fullmatch(arguments[1].text))
            return [(world, Truth.RAN)]
        return self._nested(text, world, where)

    def file_text(self, path: ScriptValue) -> Expansion | None:
        """The text of a file in the folder of the script or below; None if there is none."""
        return self._text_beside(path, World(script=self.path))

    def _text_beside(self, path: ScriptValue, world: World) -> Expansion | None:
        """The text of a script that this one wrote, or in its folder or below; None if there is none."""
        written = world.files.get(path.text.removeprefix("./"))
        if written is not None:
            return written
        if self._folder is None or _BLOCKED_NAMES.search(_UNKNOWN_FOLDER.sub("", path.text)):
            return None
        folder = self._folder.resolve()
        try:
            for file in _places_beside(path, folder):
                if file.is_relative_to(folder) and file.is_file() and file.stat().st_size <= MAX_SCRIPT_BYTES:
                    return Expansion(text=file.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return None


def _places_beside(path: ScriptValue, folder: Path) -> Iterator[Path]:
    """Where the file of a path can be: as it stands, or in the script's folder, which the path names.

    `/home/me/project/scripts/env.sh` and `$PROJECT/scripts/env.sh` are the file beside a script of a folder
    `scripts`, wherever the project lies on the host.
    """
    if not path.unknown:
        yield (folder / path.text).resolve()
        yield Path(path.text).resolve()
    parts = path.text.split("/")
    if len(parts) > 1 and (parts[-2] == folder.name or _UNKNOWN_FOLDER.fullmatch("/".join(parts[:-1]) + "/")):
        yield (folder / parts[-1]).resolve()


def _with_own_variables(call: Call, run: Callable[[], Outcomes]) -> Outcomes:
    """Run what is executed by this shell with the variables that are set for it alone, as in `A=1 f`."""
    world, own = call.world, call.own.variables
    before = {name: world.variables.get(name) for name in own if world.variables.get(name) is not own[name]}
    world.variables.update({name: own[name] for name in before})
    outcomes = run()
    for after, _truth in outcomes:
        for name, variable in before.items():
            if variable is None:
                after.variables.pop(name, None)
            else:
                after.variables[name] = variable
    return outcomes


def _printed_by(outcomes: Outcomes) -> Expansion | None:
    """What commands print in every world after them; None if it differs."""
    printed = {after.output for after, _truth in outcomes}
    return printed.pop() if len(printed) == 1 else None


def _printed(arguments: Sequence[ScriptValue]) -> Expansion:
    """The output of a program, which only a run knows."""
    text = f"$({' '.join(argument.text for argument in arguments)[:200]})"
    return Expansion(text=text, unknown=text)

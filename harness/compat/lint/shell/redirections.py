"""Where the input of a command comes from, and where its output goes to: `<`, `<<EOF`, `<<<`, `>`, `>>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from posixpath import normpath

from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.outcomes import Outcomes
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import Expansion
from harness.compat.lint.shell.world import World

#: What `<<-EOF` leaves out at the start of each line.
_TABS = re.compile(r"^\t+", re.MULTILINE)
_OUTPUTS = (">", ">>", ">|", "&>", "&>>")


@dataclass(frozen=True, kw_only=True)
class Redirections:
    """The redirections of a command. input: None if it is not known. target: a file, or "" for none."""

    has_input: bool = False
    input: Expansion | None = None
    has_output: bool = False
    target: str = ""
    appends: bool = False

    def run(self, command: Callable[[World], Outcomes], world: World) -> Outcomes:
        """Run a command with its input and output redirected."""
        source, printed = world.input, world.output
        if self.has_input:
            world.input = self.input
        if self.has_output:
            world.output = Expansion(text="")
        outcomes = command(world)
        for after in {id(one): one for one, _truth in outcomes}.values():
            if self.has_input:
                after.input = source
            if self.has_output:
                text, after.output = after.output or Expansion(text=""), printed
                before = after.files.get(self.target) if self.appends else None
                if self.target:
                    after.files[self.target] = before + text if before is not None else text
        return outcomes


def redirections_of(
    nodes: Sequence[SyntaxNode],
    world: World,
    expander: Expander,
    output: Callable[[SyntaxNode, World], Expansion | None],
) -> Redirections:
    """The redirections of a statement. output: what the command in `<(...)` prints."""
    found = Redirections()
    for node in nodes:
        operator, body, descriptor = node.text("Op"), node.child("Hdoc"), node.child("N")
        word = node.child("Word")
        if body is not None:
            text = expander.text(body, world)
            if operator == "<<-":
                text = replace(text, text=_TABS.sub("", text.text))
            found = _with_input(found, text)
        elif operator == "<<<":
            found = _with_input(found, expander.text(word, world) + Expansion(text="\n"))
        elif operator == "<" and word is not None:
            parts = word.children("Parts")
            is_command = len(parts) == 1 and parts[0].kind == "ProcSubst"
            found = _with_input(
                found,
                output(parts[0], world) if is_command else world.files.get(expander.text(word, world).text),
            )
        elif operator == ">&" and descriptor is None:
            found = Redirections(has_input=found.has_input, input=found.input, has_output=True)
        elif operator in _OUTPUTS and (descriptor is None or descriptor.text() == "1"):
            target = expander.text(word, world).text
            found = Redirections(
                has_input=found.has_input,
                input=found.input,
                has_output=True,
                target="" if target.startswith("/dev/") else target.removeprefix("./"),
                appends=operator in (">>", "&>>"),
            )
    return found


def _with_input(found: Redirections, text: Expansion | None) -> Redirections:
    return Redirections(
        has_input=True, input=text, has_output=found.has_output, target=found.target, appends=found.appends
    )


def changed_folder(statement: SyntaxNode, world: World, expander: Expander) -> Expansion | None:
    """The folder in `$(cd FOLDER && pwd)`; None for other commands."""
    command = statement.child("Cmd")
    if command is None or command.kind != "BinaryCmd" or command.text("Op") != "&&":
        return None
    texts = []
    for side in ("X", "Y"):
        inner = command.child(side)
        call = inner.child("Cmd") if inner is not None else None
        if call is None or call.kind != "CallExpr":
            return None
        texts.append(expander.all_fields(call.children("Args"), world))
    before, after = ([word.text for word in words] for words in texts)
    if len(before) >= 2 and before[0] == "cd" and after[:1] == ["pwd"] and not texts[0][-1].unknown:
        return Expansion(text=normpath(before[-1]))
    return None

"""Builtin commands of bash that set variables or arguments, and have no other effect."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compat.lint.shell.conditions import Truth
from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.outcomes import Outcomes
from harness.compat.lint.shell.substitution import document_text
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import Expansion, ScriptValue
from harness.compat.lint.shell.world import World
from harness.errors import Location


def set_arguments(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`set -- ARGUMENTS`; other options have no effect here."""
    texts = [argument.text for argument in arguments]
    if "--" in texts:
        world.arguments = tuple(arguments[texts.index("--") + 1 :])
    return [(world, Truth.YES)]


def shift(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`shift [COUNT]`."""
    count = arguments[1].text if len(arguments) > 1 else "1"
    world.shift(int(count) if count.isdigit() else 1)
    return [(world, Truth.YES)]


def unset(arguments: list[ScriptValue], world: World, _where: Location) -> Outcomes:
    """`unset NAMES`."""
    for argument in arguments[1:]:
        world.variables.pop(argument.text, None)
    return [(world, Truth.YES)]


def read_unknown(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`read`, `mapfile` and `getopts`: the variables get values that only a run knows."""
    for argument in arguments[1:]:
        name = argument.text
        if name.isidentifier():
            world.assign(
                name, Expansion(text=f"${{{name}}}", unknown=f"{name} (from {arguments[0].text})"), where
            )
    return [(world, Truth.OPEN)]


def printf(arguments: list[ScriptValue], world: World, where: Location) -> Outcomes:
    """`printf -v NAME` sets a variable to a text that is not computed."""
    if len(arguments) > 2 and arguments[1].text == "-v":
        return read_unknown(arguments[1:3], world, where)
    return [(world, Truth.RAN)]


def read_document(
    arguments: list[ScriptValue],
    world: World,
    where: Location,
    redirections: Sequence[SyntaxNode],
    expander: Expander,
) -> Outcomes:
    """`read -r -d '' NAME <<EOF` sets the variable to the document."""
    document = document_text(redirections, world, expander)
    names = [argument.text for argument in arguments[1:] if argument.text.isidentifier()]
    if document is None or len(names) != 1 or not any(one.text == "-d" for one in arguments):
        return read_unknown(arguments, world, where)
    world.assign(names[0], Expansion(text=document.text.strip(), unknown=document.unknown), where)
    return [(world, Truth.RAN)]

"""Variables that a script sets: assignments and declarations, of texts, lists and keyed arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.compat.lint.shell.arithmetic import UnknownNumberError
from harness.compat.lint.shell.expansion import MAX_FIELDS, Expander
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import (
    Expansion,
    ScriptValue,
    Sparse,
    TooLargeError,
    Variable,
    VariableValue,
    array_of,
    placed,
)
from harness.compat.lint.shell.world import World
from harness.errors import Location

#: Declarations that make a variable local to a function.
_LOCAL_KINDS = ("local", "declare", "typeset")


def declare(node: SyntaxNode, world: World, expander: Expander) -> None:
    """Execute `declare`, `export`, `local` and the like."""
    variant = node.child("Variant")
    kind = variant.text() if variant is not None else ""
    options = ""
    for assign in node.children("Args"):
        name = assign.child("Name")
        if name is None:
            value = expander.text(assign.child("Value"), world).text
            options += value if value.startswith("-") else ""
            if not value.startswith("-"):
                _declared(kind, options, value, world)
            continue
        if "n" in options and kind in _LOCAL_KINDS:
            target = expander.text(assign.child("Value"), world)
            if not target.unknown and target.text != name.text():
                world.references[name.text()] = target.text
            continue
        local = kind in _LOCAL_KINDS and "g" not in options and world.hidden is not None
        if local:
            world.make_local(name.text())
        if assign.flag("Naked") and ("A" in options or local):
            world.assign(name.text(), {} if "A" in options else Expansion(text=""), assign.location)
        if "i" in options:
            world.integers |= {name.text()}
        if "u" in options or "l" in options:
            world.cases = {**world.cases, name.text(): "u" if "u" in options else "l"}
        if not assign.flag("Naked"):
            assign_variable(assign, world, expander, keyed="A" in options)
        _declared(kind, options, name.text(), world)


def _declared(kind: str, options: str, name: str, world: World) -> None:
    if kind == "export" or "x" in options:
        world.export(name, exported="n" not in options)


def assign_variable(node: SyntaxNode, world: World, expander: Expander, *, keyed: bool = False) -> None:
    """Execute an assignment of a text, an array or one element. keyed: whether an array has texts as keys."""
    name_node = node.child("Name")
    if name_node is None:
        return
    name, before = name_node.text(), world.variable(name_node.text())
    where = node.location
    array, index = node.child("Array"), node.child("Index")
    if array is not None:
        value = _array(array, world, expander, keyed=keyed or _is_keyed(before))
        if node.flag("Append") and before is not None:
            value = _appended(before, value)
        world.assign(name, value, where)
        return
    text = expander.text(node.child("Value"), world)
    if name in world.cases:
        text = replace(text, text=text.text.upper() if world.cases[name] == "u" else text.text.lower())
    if name in world.integers and index is None:
        _assign_number(name, text, world, expander, where, append=node.flag("Append"))
        return
    if index is not None:
        _assign_element(name, before, index, text, world, expander, where, append=node.flag("Append"))
        return
    if node.flag("Append") and before is not None:
        if not isinstance(before.value, Expansion):
            text = Expansion(text=before.text.text + text.text, unknown=before.text.unknown or text.unknown)
            elements = (placed(text, where), *before.elements[1:])
            world.assign(name, elements, where)
            return
        text = before.text + text
    world.assign(name, placed(Expansion(text=text.text, unknown=text.unknown), where), where)


def _assign_number(
    name: str, text: Expansion, world: World, expander: Expander, where: Location, *, append: bool
) -> None:
    """An assignment to a variable of `declare -i`, whose value is arithmetic."""
    try:
        number = expander.number_in(text, world)
        before = world.text(name) if append else None
        number += expander.number_in(before, world) if before is not None else 0
        world.assign(name, Expansion(text=str(number)), where)
    except UnknownNumberError as error:
        world.assign(name, Expansion(text=f"${{{name}}}", unknown=str(error) or name), where)


def _assign_element(
    name: str,
    before: Variable | None,
    index: SyntaxNode,
    text: Expansion,
    world: World,
    expander: Expander,
    where: Location,
    *,
    append: bool,
) -> None:
    if before is not None and isinstance(before.value, Mapping) and not isinstance(before.value, Sparse):
        key = expander.text(index, world).text
        old = before.value.get(key)
        new = old + text if append and old is not None else text
        world.assign(name, {**before.value, key: placed(new, where)}, where)
        return
    try:
        place = expander.number(index, world)
    except UnknownNumberError as error:
        world.assign(name, Expansion(text=f"${{{name}}}", unknown=str(error) or name), where)
        return
    elements = before.numbered if before is not None else {}
    place = place if place >= 0 else max(elements, default=-1) + 1 + place
    elements[place] = placed(elements[place] + text if append and place in elements else text, where)
    world.assign(name, array_of(elements), where)


def _array(array: SyntaxNode, world: World, expander: Expander, *, keyed: bool) -> VariableValue:
    elements: dict[int, ScriptValue] = {}
    named: dict[str, ScriptValue] = {}
    place = 0
    for element in array.children("Elems"):
        word, index = element.child("Value"), element.child("Index")
        if word is None:
            continue
        if index is None:
            fields: Sequence[ScriptValue] = expander.all_fields([word], world)
        else:
            fields = [placed(expander.text(word, world), word.location)]
            named[expander.text(index, world).text] = fields[0]
            place = place if keyed else _place(index, world, expander, place)
        for field in fields:
            elements[place] = field
            place += 1
        if len(elements) > MAX_FIELDS:
            raise TooLargeError(f"an array has more than {MAX_FIELDS:,} elements")
    return named if keyed else array_of(elements)


def _place(index: SyntaxNode, world: World, expander: Expander, following: int) -> int:
    """The number of an element; the one that follows if it is not known."""
    try:
        return expander.number(index, world)
    except UnknownNumberError:
        return following


def _is_keyed(variable: Variable | None) -> bool:
    keyed = variable is not None and isinstance(variable.value, Mapping)
    return keyed and not isinstance(variable.value if variable else None, Sparse)


def _appended(before: Variable, value: VariableValue) -> VariableValue:
    if _is_keyed(before):
        return {**before.value, **value} if isinstance(value, Mapping) else before.value  # type: ignore[dict-item]
    elements = before.numbered
    added = Variable(value=value, where=before.where).elements
    if len(elements) + len(added) > MAX_FIELDS:
        raise TooLargeError(f"an array has more than {MAX_FIELDS:,} elements")
    first = max(elements, default=-1) + 1
    return array_of({**elements, **{first + number: one for number, one in enumerate(added)}})

"""What stands in the syntax tree of a script, whichever of it is run: names it sets and uses, and slips."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from harness.compat.lint.shell.expansion import ALL_ELEMENTS, is_every_element
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import Location

#: Builtin commands whose words are names that they set.
_SETTING_COMMANDS = ("read", "mapfile", "readarray", "getopts", "printf")
#: A word after `export` without anything that bash expands, which is neither a name nor an option.
_REFUSED_NAME = re.compile(r"[\d=,.:/][\w,.:/=-]*")
#: A variable that arithmetic sets: `n = 8`, `n += 1`, `n++`.
_SET_BY_ARITHMETIC = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
_OPERATORS = ("+", "-", "*", "/", "%", "**")
_ARITHMETIC = ("ArithmCmd", "ArithmExp", "CStyleLoop", "LetClause")
#: Parts of a value that run commands, such as functions of the script.
_COMMANDS = ("CmdSubst", "ProcSubst")
#: Stands for the elements of an array.
_ELEMENTS = "()"
_PLAIN_NAME = re.compile(r"(?<![\w$.#{'\"])(?!let\b)[A-Za-z_]\w*(?![\w(])")
#: Commands that read the output of a job.
_READERS = ("cat", "head", "less", "more", "tail", "tee", "ts")
#: An element of an array that is an override of Hydra.
_OVERRIDE = re.compile(r"[\"']?\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
_REFERENCE = re.compile(r"\$\{?(\w+)")
#: `set -a` and `set -o allexport` export all variables that the script sets after it.
_EXPORTS_ALL = re.compile(r"-[A-Za-z]*a[A-Za-z]*|allexport")
#: `export $NAME=value`, which exports the variable whose name is the value of NAME.
_NAMED_BY_VALUE = re.compile(r"\$\{?(?P<name>\w+)\}?=(?P<value>.*)", re.DOTALL)


def names_of(
    tree: SyntaxNode,
) -> tuple[frozenset[str], frozenset[str], dict[str, Location], dict[str, Location]]:
    """The variables that a script sets, that it uses, that it uses as arrays, and its arrays of overrides."""
    assigned, used = set[str](), set[str]()
    arrays, given = dict[str, Location](), dict[str, Location]()
    for node in tree.descendants():
        name = node.child("Name") or node.child("Param")
        if name is not None:
            (used if node.kind == "ParamExp" else assigned).add(name.text())
        if node.kind == "ParamExp" and name is not None and _is_array(node):
            arrays.setdefault(name.text(), node.location)
        array = node.child("Array") if name is not None else None
        if name is not None and array is not None and _is_of_overrides(array):
            given.setdefault(name.text(), node.location)
        if node.kind == "CallExpr":
            words = [word.raw for word in node.children("Args")]
            assigned |= set(words[1:]) if words and words[0] in _SETTING_COMMANDS else set()
        if node.kind in _ARITHMETIC:
            assigned |= set(_SET_BY_ARITHMETIC.findall(node.raw))
    return frozenset(assigned), frozenset(used), arrays, given


def unused_texts(tree: SyntaxNode, used: frozenset[str]) -> dict[str, Location]:
    """Variables with a text of several overrides that the script never uses."""
    found = dict[str, Location]()
    for node in tree.descendants():
        name, value = node.child("Name"), node.child("Value")
        if name is None or value is None or name.text() in used:
            continue
        words = value.raw.replace("\\\n", " ").strip("\"'").split()
        if sum(_OVERRIDE.match(word) is not None for word in words) > 1:
            found.setdefault(name.text(), node.location)
    return found


def _is_of_overrides(array: SyntaxNode) -> bool:
    return any(_OVERRIDE.match(element.raw) for element in array.children("Elems"))


def settings_of(tree: SyntaxNode) -> tuple[dict[str, ScriptValue], frozenset[str]]:
    """The variables that are set by commands of their own, and the names of those that are exported."""
    values: dict[str, ScriptValue] = {}
    exported = set[str]()
    exports_all = False
    for node in tree.descendants():
        words = [word.raw for word in node.children("Args")] if node.kind == "CallExpr" else []
        exports_all |= words[:1] == ["set"] and any(_EXPORTS_ALL.fullmatch(word) for word in words)
        variant = node.child("Variant")
        kind = variant.text() if node.kind == "DeclClause" and variant is not None else ""
        assigns = node.children("Args") if kind else ()
        if node.kind == "CallExpr" and not node.children("Args"):
            assigns = node.children("Assigns")
        for assign in assigns:
            name, value = assign.child("Name"), assign.child("Value")
            if name is not None and value is not None:
                values.setdefault(name.text(), ScriptValue(text=value.raw, where=assign.location))
            if name is not None and kind:
                exported.add(name.text())
    return values, frozenset(exported | values.keys() if exports_all else exported)


def sets_any_name(tree: SyntaxNode, known: Mapping[str, ScriptValue]) -> bool:
    """Whether a text from outside, as in `export "$1"`, names a variable that the script sets.

    known: the variables whose texts stand in the script.
    """
    for node in tree.descendants():
        words = node.children("Args")
        if node.kind == "CallExpr" and words and words[0].raw == "eval":
            texts = [word.raw for word in words]
        elif node.kind == "DeclClause":
            texts = [value.raw for one in words if not one.child("Name") and (value := one.child("Value"))]
        else:
            continue
        if any(name not in known for text in texts for name in _REFERENCE.findall(text)):
            return True
    return False


def plain_uses(tree: SyntaxNode) -> dict[str, Location]:
    """The variables that are used without a default and without a question whether they are set."""
    found: dict[str, Location] = {}
    asked = set[str]()
    for node in tree.descendants():
        for name in _plain_names(node.raw) if node.kind in _ARITHMETIC else ():
            found.setdefault(name, node.location)
        param = node.child("Param") if node.kind == "ParamExp" else None
        if param is None or not param.text().isidentifier():
            continue
        if node.child("Exp") is not None:
            asked.add(param.text())
        elif not _is_array(node):
            found.setdefault(param.text(), node.location)
    for node in tree.descendants():
        if node.kind == "UnaryTest" or (node.kind == "CallExpr" and node.raw.startswith(("[ ", "test "))):
            asked |= set(re.findall(r"-v (\w+)", node.raw))
            inside = (one.child("Param") for one in node.descendants() if one.kind == "ParamExp")
            asked |= {param.text() for param in inside if param is not None}
    return {name: where for name, where in found.items() if name not in asked}


def _plain_names(arithmetic: str) -> list[str]:
    """The variables that arithmetic names without a dollar; none if a command is in it."""
    inside = re.sub(r"\$\{[^}]*\}", "", arithmetic.removeprefix("$"))
    return [] if "$(" in inside or "`" in inside else _PLAIN_NAME.findall(inside)


def replaced_values_of(tree: SyntaxNode) -> tuple[dict[str, Location], dict[str, Location]]:
    """Variables that get other values in the same list of commands, with no use of them between.

    The arrays, each where the second assignment is, and those with texts, each where the first is.
    """
    arrays: dict[str, Location] = {}
    texts: dict[str, Location] = {}
    for node in tree.descendants():
        waiting: dict[str, tuple[str, Location]] = {}
        for statement in node.children("Stmts"):
            command = statement.child("Cmd")
            plain = command is not None and command.kind == "CallExpr" and not command.children("Args")
            if command is None or not plain:
                # Commands and blocks can use variables by other ways, as in functions.
                waiting.clear()
                continue
            for assign in command.children("Assigns"):
                for name in _used_in(assign, waiting):
                    waiting.pop(name, None)
                _replaces(assign, waiting, arrays, texts)
    return arrays, texts


def _used_in(assign: SyntaxNode, waiting: Collection[str]) -> set[str]:
    """The variables that the value of an assignment may use; all of them if it runs a command."""
    names = set[str]()
    for one in assign.descendants() if waiting else ():
        param = one.child("Param") if one.kind == "ParamExp" else None
        if one.kind in _COMMANDS or one.raw.startswith("${!"):
            return set(waiting)
        if param is not None:
            names.add(param.text())
        if one.kind in _ARITHMETIC:
            names.update(_plain_names(one.raw))
    return names


def _replaces(
    assign: SyntaxNode,
    waiting: dict[str, tuple[str, Location]],
    arrays: dict[str, Location],
    texts: dict[str, Location],
) -> None:
    """Note what an assignment replaces. waiting: values that nothing has used yet, and where they are."""
    node, array = assign.child("Name"), assign.child("Array")
    if node is None or assign.child("Index") is not None:
        return
    name, value = node.text(), assign.child("Value")
    before, where = waiting.pop(name, ("", assign.location))
    if assign.flag("Append"):
        return
    if array is not None:
        if before == _ELEMENTS:
            arrays.setdefault(name, assign.location)
        if array.children("Elems"):
            waiting[name] = (_ELEMENTS, assign.location)
    elif value is not None:
        if before not in ("", _ELEMENTS, value.raw):
            texts.setdefault(name, where)
        waiting[name] = (value.raw, assign.location)


def misplaced_overrides_of(tree: SyntaxNode) -> Iterator[tuple[str, str, Location]]:
    """Overrides that a command behind a pipe gets: the command, the override and where it is."""
    for node in tree.descendants():
        words = node.children("Args") if node.kind == "CallExpr" else ()
        if words and words[0].raw in _READERS:
            yield from (
                (words[0].raw, one.raw, one.location) for one in words[1:] if _OVERRIDE.match(one.raw)
            )


def refused_names_of(tree: SyntaxNode) -> Iterator[tuple[str, Location]]:
    """Words after `export` that are no names, such as the rest of a list with spaces."""
    for node in tree.descendants():
        variant = node.child("Variant")
        if node.kind != "DeclClause" or variant is None or variant.text() != "export":
            continue
        for assign in node.children("Args"):
            value = assign.child("Value")
            if assign.child("Name") is None and value is not None and _REFUSED_NAME.fullmatch(value.raw):
                yield value.raw, assign.location


def _is_array(node: SyntaxNode) -> bool:
    """Whether an expansion is `${name[@]}` with nothing else in it."""
    name = node.child("Param")
    is_argument = name is None or name.text() in ALL_ELEMENTS
    return not is_argument and is_every_element(node) and node.child("Exp") is None


def first_elements(tree: SyntaxNode) -> dict[str, Location]:
    """Arrays of several overrides of which the script uses only the first element, as `$NAME`, and where."""
    arrays, plain, whole = set[str](), dict[str, Location](), set[str]()
    for node in tree.descendants():
        name = node.child("Name") or node.child("Param")
        array = node.child("Array")
        if name is None:
            continue
        if array is not None and len(array.children("Elems")) > 1 and _is_of_overrides(array):
            arrays.add(name.text())
        if node.kind == "ParamExp" and node.raw in (f"${name.text()}", f"${{{name.text()}}}"):
            plain.setdefault(name.text(), node.location)
        elif node.kind == "ParamExp":
            whole.add(name.text())
    return {name: where for name, where in plain.items() if name in arrays and name not in whole}


def arithmetic_commands(tree: SyntaxNode, names: frozenset[str]) -> Iterator[tuple[str, Location]]:
    """Arithmetic that bash runs as a command, as `$(1024 * 8)`. names: the variables of the script."""
    for node in tree.descendants():
        statements = node.children("Stmts") if node.kind == "CmdSubst" else ()
        command = statements[0].child("Cmd") if len(statements) == 1 else None
        words = [word.raw for word in command.children("Args")] if command is not None else []
        if (
            len(words) > 2
            and words[1] in _OPERATORS
            and (words[0].isdigit() or words[0].lstrip("$") in names)
        ):
            yield node.raw, node.location


def redirected_tests(tree: SyntaxNode) -> Iterator[tuple[str, str, Location]]:
    """Comparisons in `[ ... ]` that are redirections: the operator, the file, and where it stands."""
    for node in tree.descendants():
        command = node.child("Cmd")
        words = command.children("Args") if command is not None and command.kind == "CallExpr" else []
        if not words or words[0].raw != "[":
            continue
        end = words[-1].span.start
        for redirection in node.children("Redirs"):
            word = redirection.child("Word")
            if redirection.text("Op") in ("<", ">") and word is not None and word.span.start < end:
                yield redirection.text("Op"), word.raw, redirection.location


def numbered_files(tree: SyntaxNode) -> Iterator[tuple[str, Location]]:
    """Redirections of one stream to a file whose name is the number of another, such as `2>1`."""
    for node in tree.descendants():
        for redirection in node.children("Redirs"):
            word, stream = redirection.child("Word"), redirection.child("N")
            if redirection.text("Op") != ">" or word is None or stream is None:
                continue
            if word.raw in ("1", "2") and stream.text() in ("1", "2"):
                yield f"{stream.text()}>{word.raw}", redirection.location


def long_texts(tree: SyntaxNode) -> dict[tuple[int, int], int]:
    """The last lines of texts of several lines that variables get, by line and column of the assignment."""
    found: dict[tuple[int, int], int] = {}
    for node in tree.descendants():
        value = node.child("Value")
        if node.child("Name") is not None and value is not None and (count := value.raw.count("\n")):
            # The text begins in the line of its assignment.
            found[node.location.line, node.location.column] = node.location.line + count
    return found


def expansion_slips(tree: SyntaxNode) -> Iterator[tuple[str, Location]]:
    """Defaults, exports and divisions that mean something else in bash, and where they stand."""
    others = set[str]()
    for node in tree.descendants():
        name, value = node.child("Name"), node.child("Value")
        if name is not None and (value is None or f"${{{name.text()}:" not in value.raw):
            others.add(name.text())
    for node in tree.descendants():
        text = _default_slip(node, others) or _export_slip(node, others) or _operator_slip(node)
        if text:
            yield text, node.location


def _default_slip(node: SyntaxNode, assigned: Collection[str]) -> str:
    """`${NAME:1}` and `${NAME-:1}`, which were meant for `${NAME:-1}`; "" for others."""
    name, cut, operation = node.child("Param"), node.child("Slice"), node.child("Exp")
    if node.kind != "ParamExp" or name is None or not name.text().isidentifier():
        return ""
    if cut is not None and cut.child("Length") is None and name.text() not in assigned:
        offset = cut.child("Offset")
        meant = offset.raw if offset is not None else ""
        return f"`{node.raw}` gives no default: is `${{{name.text()}:-{meant}}}` meant?" if meant else ""
    word = operation.child("Word") if operation is not None and operation.text("Op") == "-" else None
    if word is None or not word.raw.startswith(":"):
        return ""
    return f"the default in `{node.raw}` is `{word.raw}`: is `${{{name.text()}:-{word.raw[1:]}}}` meant?"


def _export_slip(node: SyntaxNode, assigned: Collection[str]) -> str:
    """`export $NAME=value` of a variable that the script does not set; "" for others."""
    variant = node.child("Variant")
    if node.kind != "DeclClause" or variant is None or variant.text() != "export":
        return ""
    for assign in node.children("Args"):
        value = assign.child("Value")
        found = _NAMED_BY_VALUE.match(value.raw) if assign.child("Name") is None and value else None
        if found is not None and found["name"] not in assigned:
            name = found["name"]
            return f"`export ${name}=...` does not set `{name}`: is `export {name}={found['value']}` meant?"
    return ""


def _operator_slip(node: SyntaxNode) -> str:
    """`NAME=$((1 + 2)) / 3`, for which bash starts a program `/`; "" for others."""
    words = node.children("Args") if node.kind == "CallExpr" else []
    assigns = node.children("Assigns")
    name = assigns[-1].child("Name") if assigns and len(words) > 1 and words[0].raw in _OPERATORS else None
    if name is None:
        return ""
    return (
        f"`{name.text()}` gets no value here: bash starts a program `{words[0].raw}`; compute in `$((...))`"
    )

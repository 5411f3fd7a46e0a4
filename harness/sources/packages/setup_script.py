"""The arguments of `setup()` in a setup.py, read from its syntax tree. None of its code is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from harness.errors import InputError, Location
from harness.sources.python_syntax import parse_source, syntax_error
from harness.sources.tree import Tree, path_problem

Node = TypeVar("Node", bound=ast.AST)

SETUP = "setup.py"
# What changes a list or dictionary after its assignment.
_CHANGING = frozenset({"append", "extend", "insert", "remove", "update", "setdefault", "pop", "clear"})
_LINES = frozenset({"splitlines", "readlines"})
_READING = frozenset({"read", "read_text"})


class ComputedError(ValueError):
    """Only running the file would tell the value."""


@dataclass(frozen=True, kw_only=True)
class SetupScript:
    """A parsed setup.py, in the tree that has the files it reads."""

    module: ast.Module = field(default_factory=lambda: ast.Module(body=[], type_ignores=[]))
    tree: Tree

    @property
    def call(self) -> ast.Call | None:
        """The only call of `setup`; ComputedError if there are several."""
        calls = [one for one in self._nodes(ast.Call) if name_of(one.func).endswith("setup")]
        if len(calls) > 1:
            raise ComputedError("several calls of setup()")
        return calls[0] if calls else None

    @property
    def imports(self) -> frozenset[str]:
        """The packages it imports."""
        names = {alias.name for one in self._nodes(ast.Import) for alias in one.names}
        names |= {one.module or "" for one in self._nodes(ast.ImportFrom)}
        return frozenset(name.split(".")[0] for name in names)

    def argument(self, name: str) -> ast.expr | None:
        """What `setup()` gets for `name`; ComputedError if it gets a dictionary of arguments."""
        call = self.call
        given = {one.arg: one.value for one in call.keywords} if call else {}
        if None in given and name not in given:
            raise ComputedError("setup() gets a dictionary of arguments")
        return self.followed(given[name]) if name in given else None

    def followed(self, node: ast.expr) -> ast.expr:
        """The expression that a name stands for; ComputedError if the name is changed or has several."""
        seen: set[str] = set()
        while isinstance(node, ast.Name):
            values = self.assigned(node.id)
            if len(values) != 1 or node.id in seen or node.id in self._changed():
                raise ComputedError(f"{node.id} is computed")
            seen.add(node.id)
            [node] = values
        return node

    def assigned(self, name: str) -> list[ast.expr]:
        """What is assigned to `name`, anywhere in the file."""
        plain = [(target, one.value) for one in self._nodes(ast.Assign) for target in one.targets]
        plain += [(one.target, one.value) for one in self._nodes(ast.AnnAssign) if one.value]
        return [value for target, value in plain if isinstance(target, ast.Name) and target.id == name]

    def keys(self, node: ast.expr | None) -> tuple[str, ...]:
        """The keys of a dictionary, whatever its values are."""
        node = self.followed(node) if node else ast.Dict(keys=[], values=[])
        if not isinstance(node, ast.Dict):
            raise ComputedError("not a dictionary")
        return tuple(str(self.value(key)) for key in node.keys)

    def value(self, node: ast.expr | None) -> object:
        """The value of a literal, of a name for one, of a sum of lists, or of the lines of a file."""
        match node:
            case None:
                raise ComputedError("a value that is not written here")
            case ast.Name():
                return self.value(self.followed(node))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.value(one) for one in elements]
            case ast.Dict(keys=keys, values=values):
                return {self.value(key): self.value(one) for key, one in zip(keys, values, strict=True)}
            case ast.BinOp(left=left, right=right, op=ast.Add()):
                first, second = self.value(left), self.value(right)
                if isinstance(first, list) and isinstance(second, list):
                    return [*first, *second]
            case ast.Call(func=ast.Attribute(value=inner, attr=attribute)) if attribute in _LINES:
                return self._lines(inner)
            case ast.Constant(value=value):
                return value
        raise ComputedError(f"`{ast.unparse(node)[:60]}` is computed")

    def _lines(self, node: ast.expr) -> list[str]:
        """The lines of a file, as in `open("requirements.txt").read().splitlines()`."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READING:
            node = node.func.value
        if (
            isinstance(node, ast.Call)
            and name_of(node.func) in {"open", "Path", "pathlib.Path"}
            and node.args
        ):
            name = self.value(node.args[0])
            if isinstance(name, str) and not path_problem(name) and self.tree.mode(name):
                return self.tree.read(name).decode("utf-8", "replace").splitlines()
        raise ComputedError(f"the lines of `{ast.unparse(node)[:60]}` are computed")

    def _changed(self) -> frozenset[str]:
        """The names whose values change after their assignment."""
        found: list[ast.expr] = [one.target for one in self._nodes(ast.AugAssign)]
        found += [one.value for one in self._nodes(ast.Subscript) if not isinstance(one.ctx, ast.Load)]
        calls = (one.func for one in self._nodes(ast.Call))
        found += [one.value for one in calls if isinstance(one, ast.Attribute) and one.attr in _CHANGING]
        return frozenset(one.id for one in found if isinstance(one, ast.Name))

    def _nodes(self, kind: type[Node]) -> Iterator[Node]:
        return (one for one in ast.walk(self.module) if isinstance(one, kind))


def name_of(node: ast.expr) -> str:
    """`setuptools.setup` of that expression; "" for one that is no name."""
    if isinstance(node, ast.Attribute):
        owner = name_of(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def read_setup_script(tree: Tree) -> SetupScript:
    """The setup.py of a tree, empty if it has none; InputError if it is not Python."""
    if not tree.mode(SETUP):
        return SetupScript(tree=tree)
    source = tree.read(SETUP)
    module = parse_source(source)
    if module is None:
        where = Location(f"{tree.label}:{SETUP}")
        why = str(syntax_error(source) or "it contains null bytes or is too deep")
        raise InputError("this file is not valid Python", where=where, why=why)
    return SetupScript(module=module, tree=tree)

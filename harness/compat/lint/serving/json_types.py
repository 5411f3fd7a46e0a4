"""What JSON the fields of vLLM's configuration take: names, types and limits, as pydantic compares them.

The type of a field is kept as the text of an annotation: builtin types, `literal[...]`, `object['Class']` for
a class whose fields are known, and `open` for anything that is not understood, which takes every value.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.compat.lint.serving.field_types import Definition, FieldType, SourceNames, last_name, limits
from harness.compat.lint.setting_changes import nearest_word

OPEN = "open"
_TRUTH = re.compile(r"true|false|yes|no|on|off|t|f|y|n|0|1", re.IGNORECASE)
_NUMBER = re.compile(r"\s*[-+]?(?:(?:\d[\d_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf|infinity|nan)\s*", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[-+]?\d[\d_]*(?:\.0*)?\s*")
_LIMITS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "gt": ("more than", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "le": ("at most", operator.le),
}
_NAMES = {"list": "a list", "set": "a list", "tuple": "a list", "dict": "an object", "str": "a text"}
_NAMES |= {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "null"}
MAX_CLASSES = 200


@dataclass(frozen=True, kw_only=True)
class JsonField:
    """A field of a class. takes: its type. limits: `gt`, `ge`, `lt` or `le` -> a number."""

    takes: str
    limits: dict[str, float]


#: Class -> its fields. Other names are refused.
Classes = dict[str, dict[str, JsonField]]


@dataclass
class JsonTypes:
    """Reads the types of fields from the source. closed: whether a class refuses fields that it lacks."""

    names: SourceNames
    closed: Callable[[Definition], bool]
    classes: Classes

    def takes(self, types: Sequence[FieldType]) -> str:
        """The type of a field as a text."""
        return " | ".join(dict.fromkeys(self._text(one) for one in types)) or OPEN

    def _text(self, one: FieldType) -> str:
        if one.kind == "literal":
            return f"literal[{', '.join(map(repr, one.texts))}]" if one.texts else OPEN
        if one.kind == "dataclass" and one.definition is not None:
            return self.object_of(one.definition)
        if one.kind in ("list", "set") and one.of:
            return f"list[{self.takes(one.of)}]"
        if one.kind in ("list", "set", "tuple"):
            return "list"
        return one.kind if one.kind in _NAMES else OPEN

    def object_of(self, definition: Definition) -> str:
        """The type of an object with the fields of a class."""
        node = definition.node
        if not isinstance(node, ast.ClassDef) or not self.closed(definition):
            return OPEN
        if node.name not in self.classes and len(self.classes) < MAX_CLASSES:
            self.classes[node.name] = {}
            self.classes[node.name] |= self._fields(definition, node)
        return f"object[{node.name!r}]"

    def _fields(self, definition: Definition, node: ast.ClassDef) -> dict[str, JsonField]:
        assigned = {
            one.target.id: one
            for cls in self.names.ancestry(definition.path, node)
            for one in (cls.node.body if isinstance(cls.node, ast.ClassDef) else ())
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        changed: dict[str, list[str]] = {}
        for name, before in self._validated(definition, node):
            changed.setdefault(name, []).append(before)
        return {
            name: JsonField(
                takes=_changed(self.takes(types), changed.get(name, ())), limits=limits(assigned[name])
            )
            for name, types in self.names.fields(definition.path, node).items()
            if name in assigned and not _is_computed(assigned[name])
        }

    def _validated(self, definition: Definition, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        """The fields whose value a method of the class gets before pydantic does, with what it takes."""
        for cls in self.names.ancestry(definition.path, node):
            for method in cls.node.body if isinstance(cls.node, ast.ClassDef) else ():
                for call in method.decorator_list if isinstance(method, ast.FunctionDef) else ():
                    if isinstance(call, ast.Call) and last_name(call) == "field_validator":
                        modes = [one.value for one in call.keywords if one.arg == "mode"]
                        mode = ast.unparse(modes[0]).strip("'\"") if modes else "after"
                        names = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
                        takes = self._converted(cls.path, method) if mode in ("before", "plain") else mode
                        yield from ((name, takes) for name in names)

    def _converted(self, path: str, method: ast.AST) -> str:
        """What a method takes that converts texts to members of an enumeration, or objects to a class."""
        for node in ast.walk(method):
            match node:
                case ast.Return(value=ast.Call(func=ast.Name(id=name), keywords=[ast.keyword(arg=None)])):
                    found = self.names.find(path, name)
                    return self.object_of(found) if found is not None else OPEN
                case ast.Return(value=ast.Subscript(value=ast.Name(id=name))) if _uppers(method):
                    found = self.names.find(path, name)
                    members = _members(found.node) if found is not None else []
                    return f"member[{', '.join(map(repr, members))}]" if members else OPEN
        return OPEN


def _uppers(method: ast.AST) -> bool:
    return ".upper()" in ast.unparse(method)


def _members(node: ast.AST) -> list[str]:
    """The names of an enumeration."""
    targets = [one.targets[0] for one in getattr(node, "body", ()) if isinstance(one, ast.Assign)]
    return [one.id for one in targets if isinstance(one, ast.Name) and one.id.isupper()]


def _changed(takes: str, before: Sequence[str]) -> str:
    """The type of a field whose value goes through validators first."""
    for one in before:
        if one == "wrap":
            takes = f"{takes} | None"
        elif one != "after":
            takes = one if one.startswith("member") else f"{one} | None"
    return takes


def _is_computed(one: ast.AnnAssign) -> bool:
    """Whether a field is no argument: `field(init=False)`."""
    given = one.value.keywords if isinstance(one.value, ast.Call) else []
    return any(each.arg == "init" and ast.unparse(each.value) == "False" for each in given)


def limit_problem(value: object, given: Mapping[str, float]) -> str:
    """Which limit a value does not keep; "" if it keeps all."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    broken = (name for name, one in given.items() if not _LIMITS[name][1](float(value), one))
    return next((f"it takes {_LIMITS[name][0]} {given[name]:g}" for name in broken), "")


def json_problem(value: object, takes: str, classes: Mapping[str, Mapping[str, JsonField]]) -> str:
    """Why a value is none of a type; "" if it is one."""
    return _problem(value, ast.parse(takes, mode="eval").body, classes) if takes else ""


def _problem(value: object, node: ast.expr, classes: Mapping[str, Mapping[str, JsonField]]) -> str:
    match node:
        case ast.BinOp(left=left, right=right):
            problems = [_problem(value, one, classes) for one in (left, right)]
            if not all(problems):
                return ""
            # What is wrong inside of an object or a list tells more than that it is no number.
            return next((one for one in problems if one.startswith(_INSIDE)), " or ".join(problems))
        case ast.Subscript(value=ast.Name(id="object"), slice=ast.Constant(value=str(name))):
            return _object_problem(value, classes.get(name, {}), classes)
        case ast.Subscript(value=ast.Name(id="list"), slice=inside) if isinstance(value, list):
            found = (_problem(one, inside, classes) for one in value)
            return next((f"{_INSIDE[1]} {one}" for one in found if one), "")
        case ast.Subscript(value=ast.Name(id="literal"), slice=inside):
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            texts = [ast.literal_eval(one) for one in parts]
            is_one = any(one == value and type(one) is type(value) for one in texts)
            return "" if is_one else f"it takes {', '.join(map(str, texts))}"
        case ast.Subscript(value=ast.Name(id="member"), slice=inside):
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            names = [str(ast.literal_eval(one)) for one in parts]
            is_other = isinstance(value, str) and value.upper() not in names
            return f"it takes {', '.join(names)}" if is_other else ""
        case ast.Subscript(value=ast.Name(id=kind)) | ast.Name(id=kind):
            return "" if _TAKEN.get(kind, _any)(value) else f"it takes {_NAMES[kind]}"
        case ast.Constant(value=None):
            return "" if value is None else "it takes null"
    return ""


_INSIDE = ("its field", "its elements:", "it has no field")


def _object_problem(
    value: object, fields: Mapping[str, JsonField], classes: Mapping[str, Mapping[str, JsonField]]
) -> str:
    if not isinstance(value, dict):
        return "it takes an object"
    for name, one in value.items():
        if name not in fields:
            near = nearest_word(str(name), fields)
            return f"it has no field {name}" + (f"; is {near} meant?" if near else "")
        problem = json_problem(one, fields[name].takes, classes) or limit_problem(one, fields[name].limits)
        if problem:
            return f"its field {name} is {str(one)[:60]}: {problem}"
    return ""


def _any(_value: object) -> bool:
    return True


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_whole(value: object) -> bool:
    is_number = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_number or _is_text(value, _WHOLE)


def _is_truth(value: object) -> bool:
    return (isinstance(value, (bool, int, float)) and value in (0, 1)) or _is_text(value, _TRUTH)


#: What pydantic takes for a type where it is not strict.
_TAKEN: Mapping[str, Callable[[object], bool]] = {
    "int": _is_whole,
    "float": lambda value: isinstance(value, (int, float)) or _is_text(value, _NUMBER),
    "bool": _is_truth,
    "str": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, list),
    "dict": lambda value: isinstance(value, dict),
    "None": lambda value: value is None,
}

"""The values of a followed program: Python's own, and stand-ins for functions, classes and the unknown."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

#: No configuration keys, or no unknown values of a script.
NO_KEYS: frozenset[str] = frozenset()
#: A plain value of Python (number, text, None, list, dict, tuple, set) or one of the classes below.
Value: TypeAlias = object
#: Texts and lists that are longer, and larger numbers, are not computed.
MAX_SIZE = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A value that is not known.

    name: the dotted name of something in another package, or "". sources: the unknown values of the launch
    script on which it depends. text: a text of which only a part is not known. optional: whether it may also
    be absent, as an element that only one branch adds. repeats: whether it has one element at least.
    """

    name: str = ""
    sources: frozenset[str] = frozenset()
    text: str = ""
    optional: bool = False
    repeats: bool = False


UNKNOWN = Unknown()
#: An element that may also be absent.
OPTIONAL = Unknown(optional=True)


@functools.lru_cache(1 << 14)
def external(name: str) -> Unknown:
    """Something in another package, by its dotted name."""
    return Unknown(name=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlace:
    """A line in a file of verl."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Scope:
    """Variables of a module, class body or function. keys: the configuration keys behind each value.

    made_in: the branch in which a function was called, as `Journal.innermost`; None for other scopes.
    """

    __slots__ = ("global_names", "keys", "made_in", "outer_names", "parent", "path", "variables")

    def __init__(self, parent: Scope | None, path: str, made_in: object = None) -> None:
        self.variables: dict[str, Value] = {}
        self.keys: dict[str, frozenset[str]] = {}
        self.parent, self.path, self.made_in = parent, path, made_in
        self.global_names: set[str] = set()
        self.outer_names: set[str] = set()

    @property
    def module(self) -> Scope:
        """The scope of the module."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def holder(self, name: str) -> Scope | None:
        """The scope that has a variable; None if there is none."""
        scope: Scope | None = self.module if name in self.global_names else self
        while scope is not None:
            if name in scope.variables:
                return scope
            scope = scope.parent
        return None


@dataclass(eq=False, kw_only=True, slots=True)
class Function:
    """A function or lambda of verl. owner: the class in whose body it is defined."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    defaults: Mapping[str, Value]
    owner: Class | None = None
    is_static: bool = False
    is_class_method: bool = False
    is_property: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What is written of a function's parameters. positional, named: names of those that take one argument.

    defaults: of those that have one. is_generator: whether calling the function makes an iterator.
    """

    positional: tuple[str, ...]
    named: tuple[str, ...]
    defaults: tuple[tuple[str, ast.expr], ...]
    rest: str
    named_rest: str
    is_generator: bool


_SIGNATURE = "_npu_matrix_signature"


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Signature:
    """The parameters of a function, which are kept with its node."""
    if _SIGNATURE not in node.__dict__:
        arguments = node.args
        positional = tuple(one.arg for one in (*arguments.posonlyargs, *arguments.args))
        named = tuple(one.arg for one in arguments.kwonlyargs)
        with_default = positional[len(positional) - len(arguments.defaults) :]
        node.__dict__[_SIGNATURE] = Signature(
            positional=positional,
            named=named,
            defaults=(
                *zip(with_default, arguments.defaults, strict=True),
                *((name, one) for name, one in zip(named, arguments.kw_defaults, strict=True) if one),
            ),
            rest=arguments.vararg.arg if arguments.vararg else "",
            named_rest=arguments.kwarg.arg if arguments.kwarg else "",
            is_generator=not isinstance(node, ast.Lambda) and contains_own(node, (ast.Yield, ast.YieldFrom)),
        )
    found: Signature = node.__dict__[_SIGNATURE]
    return found


_CONTAINS = "_npu_matrix_contains"


def contains_own(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Whether a node of these kinds is below `node`, but not in a nested function or class."""
    known: dict[object, bool] = node.__dict__.setdefault(_CONTAINS, {})
    if kinds not in known:
        known[kinds] = any(type(one) in kinds for one in _own_nodes(node))
    return known[kinds]


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node, without the bodies of nested functions and classes.

    `ast.iter_child_nodes` takes three times as long, and every function of a program is looked at.
    """
    waiting = [node]
    while waiting:
        current = waiting.pop()
        for name in current._fields:
            value = getattr(current, name, None)
            for one in value if type(value) is list else (value,):
                if isinstance(one, ast.AST):
                    yield one
                    if one._fields and type(one) not in _NESTED:
                        waiting.append(one)


_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(eq=False, kw_only=True, slots=True)
class Class:
    """A class of verl. bases: classes of verl, or unknown ones. fields: annotated names of its body.

    order: the class and its bases that are known, in the order in which attributes are looked up.
    """

    name: str
    path: str
    bases: tuple[Value, ...]
    scope: Scope
    is_dataclass: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    order: list[Class] = field(init=False)

    def __post_init__(self) -> None:
        self.order = self._order()

    @property
    def qualified(self) -> str:
        """The dotted name."""
        return f"{self.path.removesuffix('.py').replace('/', '.')}.{self.name}"

    def _order(self) -> list[Class]:
        found: list[Class] = [self]
        for base in self.bases:
            for one in base.order if isinstance(base, Class) else ():
                if one in found:
                    found.remove(one)
                found.append(one)
        return found

    @property
    def open_bases(self) -> list[str]:
        """The names of bases that are not classes of verl."""
        return [
            base.name
            for one in self.order
            for base in one.bases
            if isinstance(base, Unknown) and base.name not in HARMLESS_BASES
        ]

    def attribute(self, name: str) -> tuple[bool, Value]:
        """Whether the class or a base has an attribute, and its value."""
        for one in self.order:
            if name in one.scope.variables:
                return True, one.scope.variables[name]
        return False, None

    def inherits(self, *names: str) -> bool:
        """Whether a base outside of verl has one of these dotted names."""
        return any(
            isinstance(base, Unknown) and base.name in names for one in self.order for base in one.bases
        )

    def dataclass_fields(self) -> dict[str, str]:
        """The fields with their annotations, those of bases first."""
        found: dict[str, str] = {}
        for one in reversed(self.order):
            if one.is_dataclass:
                found |= one.fields
        return found


#: Bases from other packages that add no attributes that matter here.
HARMLESS_BASES = (
    "abc.ABC",
    "typing.Protocol",
    "typing.Generic",
    "collections.abc.Mapping",
    "enum.Enum",
    "builtins.object",
)


@dataclass(eq=False, kw_only=True, slots=True)
class Instance:
    """An object. keys: the configuration keys that each attribute rests on."""

    type: Class
    attributes: dict[str, Value] = field(default_factory=dict)
    keys: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Bound:
    """A function that gets `receiver` as its first argument."""

    function: Function
    receiver: Value


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Partial:
    """`functools.partial`."""

    function: Value
    arguments: tuple[Value, ...]
    named: Mapping[str, Value]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Native:
    """A function that is computed here. compute gets positional and named arguments."""

    name: str
    compute: Callable[[list[Value], dict[str, Value]], Value]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Actor:
    """`C.remote` of Ray, which makes an object of the class in another process."""

    made: Class


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Super:
    """`super()`."""

    receiver: Instance
    after: Class


@dataclass(frozen=True, kw_only=True, slots=True)
class Lazy:
    """An imported name whose module is read when the name is used; `name` "" is the module itself."""

    path: str
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryCall:
    """A call of a function of another package."""

    positional: list[Value]
    named: dict[str, Value]
    node: ast.AST
    scope: Scope

    def argument(self, position: int, name: str, default: Value = None) -> Value:
        """An argument by its position or name."""
        if name in self.named:
            return self.named[name]
        return self.positional[position] if position < len(self.positional) else default


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class FieldDefault:
    """`dataclasses.field`. factory: makes the default value, or None."""

    value: Value
    factory: Value


class Config(dict[str, Value]):
    """A mapping of the composed configuration. path: its dotted key, which starts every key in it."""

    def __init__(self, values: Mapping[str, Value], path: str = "") -> None:
        super().__init__(values)
        self.path = path

    def key(self, name: str) -> str:
        """The dotted key of an entry."""
        return f"{self.path}.{name}" if self.path else name


class Entries(dict[Value, Value]):
    """A mapping that the program writes out. behind: the configuration keys behind its entries."""

    def __init__(self) -> None:
        super().__init__()
        self.behind: dict[Value, frozenset[str]] = {}

    def copy(self) -> Entries:
        """The same entries in another mapping."""
        copied = Entries()
        copied.spread(self, NO_KEYS)
        return copied

    def spread(self, other: Mapping[Value, Value], keys: frozenset[str]) -> None:
        """Add the entries of another mapping, which was read with these configuration keys."""
        self.update(other)
        for name in other:
            own = other.behind.get(name, NO_KEYS) if isinstance(other, Entries) else NO_KEYS
            self.behind[name] = own or frozenset(
                f"{key}.{name}" if key.endswith(OPTIONS_OF_VLLM) else key for key in keys
            )


#: The section whose entries verl hands on to vLLM.
OPTIONS_OF_VLLM = "engine_kwargs.vllm"


class Options(Config):
    """A mapping of the configuration that another package gets as a plain one of Python."""


@dataclass(kw_only=True, eq=False)
class ProgramError(Exception):
    """An exception that the followed program raises. keys: configuration keys behind its condition."""

    type: str
    message: str
    place: SourcePlace
    keys: frozenset[str] = frozenset()
    guarded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCheck:
    """A check of the program whose outcome depends on unknown values of the launch script."""

    place: SourcePlace
    sources: frozenset[str]


def remote(called: Value, name: str) -> Value:
    """`f.remote` calls `f` in another process; `f.options(...)` is `f` with settings for Ray."""
    if name == "remote":
        return Actor(made=called) if isinstance(called, Class) else called
    return Native(name=name, compute=lambda _given, _named: called)


def sources_of(*values: Value) -> frozenset[str]:
    """The unknown values of the launch script on which these depend."""
    found = NO_KEYS
    for value in values:
        # Most values rest on nothing that is unknown.
        if type(value) is Unknown and value.sources:
            found |= value.sources
    return found


def unknown_from(*values: Value) -> Unknown:
    """A value that is not known, and depends on what these depend on."""
    sources = sources_of(*values)
    return Unknown(sources=sources) if sources else UNKNOWN


def written(node: ast.expr) -> str:
    """The text of an expression, which is kept with its node."""
    if _TEXT not in node.__dict__:
        node.__dict__[_TEXT] = ast.unparse(node)
    text: str = node.__dict__[_TEXT]
    return text


_TEXT = "_npu_matrix_text"


def has_unknown(value: Value, depth: int = 0) -> bool:
    """Whether a value is or contains something that is not plain Python."""
    if type(value) in _PLAIN:
        return False
    if isinstance(value, (list, tuple, set, frozenset)):
        return depth > 5 or any(has_unknown(one, depth + 1) for one in value)
    if isinstance(value, dict):
        return depth > 5 or any(has_unknown(one, depth + 1) for one in value.values())
    return not isinstance(value, _PLAIN)


_PLAIN = (type(None), bool, int, float, str, bytes)


def shown(value: Value) -> str:
    """A value in a message."""
    if isinstance(value, Unknown):
        return value.text or "?"
    if isinstance(value, (Instance, Function, Class, Bound, Native, Partial, Super, Lazy, Config)):
        return "..."
    return str(value)


def is_key(value: Value) -> bool:
    """Whether a value can be a key of a mapping, as lists and what contains them cannot."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def has_open_keys(container: Mapping[Value, Value]) -> bool:
    """Whether a mapping has entries whose keys are not known."""
    return any(isinstance(key, Unknown) for key in container)


def is_open(value: Value) -> bool:
    """Whether a list or mapping may have more or fewer elements than these."""
    if isinstance(value, dict):
        return has_open_keys(value) or any(is_optional(one) for one in value.values())
    return isinstance(value, (list, tuple)) and any(is_optional(one) for one in value)


def is_optional(value: Value) -> bool:
    """Whether an element may also be absent."""
    return isinstance(value, Unknown) and value.optional


def named_keys(keys: Collection[str], node: ast.expr) -> frozenset[str]:
    """Of the configuration keys behind an expression, those that it names; all if it names none."""
    names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)} if len(keys) > 1 else ()
    return frozenset(key for key in keys if key.rpartition(".")[2] in names) or frozenset(keys)

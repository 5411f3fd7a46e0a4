"""The options of vLLM's server, read from the source of a release without importing it.

The parser is built by `add_argument` calls that `vllm serve` and the server's module reach, in the order in
which they are made. What they take over from the field of a dataclass is computed from its annotation, as
`get_kwargs` of vLLM does. What is not understood of an option is open: any text is a value of it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.code_graph.stored_facts import code_digest
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.field_types import (
    Definition,
    FieldType,
    LiteralValue,
    SourceNames,
    is_literal,
    last_name,
)
from harness.compat.lint.serving.json_types import OPEN, Classes, JsonTypes
from harness.compat.lint.serving.server_command import SERVE
from harness.compat.uses.analysis_cache import AnalysisCache

#: Where the parser of each program is built: a module, and the function or method.
STARTS = {
    SERVE: ("vllm/entrypoints/cli/serve.py", "ServeSubcommand", "subparser_init"),
    "": ("vllm/entrypoints/openai/cli_args.py", "", "make_arg_parser"),
}
ARGUMENTS_FILE = "vllm/engine/arg_utils.py"
_COMPUTES = ("_compute_kwargs", "get_kwargs")
_TYPES = {"int": "int", "float": "float", "str": "text", "json.loads": "json", "human_readable_int": "number"}
_SWITCHES = ("store_true", "store_false", "store_const", "count", "version", "help")
#: Methods of a platform that get the parser, and add no option to it.
_CHANGES_NOTHING = ("pre_register_and_update",)
MAX_DEPTH = 8


@dataclass(frozen=True, kw_only=True)
class ServerOption:
    """An option of the server.

    flags: none for an argument without a name. form: `text`, `int`, `float`, `number` (such as 4k), `json`,
    `object` (JSON with the fields of a class), `mapping` (JSON in braces, or any text), `switch` (no value),
    `pair` (`--x` and `--no-x`), or `open`. nargs: as for argparse. choices: none if any value can be.
    is_optional: takes `None` and an empty text.
    takes: the type of its JSON, see `json_types`; "" if it can be any. limits: of its number, as in
    `JsonField`; they are compared when vLLM makes its configuration. defaults: its default, none if that is
    not written out.
    owner: the module, class and field of vLLM's configuration that it becomes, with colons between them.
    unread: what the source does not tell of its values, "" if nothing.
    """

    dest: str
    flags: tuple[str, ...]
    form: str = "text"
    nargs: str = ""
    choices: tuple[str, ...] = ()
    is_optional: bool = False
    takes: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    appends: bool = False
    defaults: tuple[LiteralValue, ...] = ()
    unread: str = ""
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of one program of a release, and the classes that their JSON is read into.

    complete: whether all code that adds options was read.
    """

    options: tuple[ServerOption, ...]
    complete: bool
    classes: Classes = field(default_factory=dict)


@functools.lru_cache(maxsize=8)
def server_options(sources: ModuleSources, program: str, cache: Path | None) -> ServerOptions | None:
    """The options of a program; None if this vLLM does not have it. Stored by the content of the modules."""
    path, owner, function = STARTS[program if program == SERVE else ""]

    def read() -> tuple[ServerOptions, ...]:
        return tuple(filter(None, [_OptionSource(SourceNames(sources)).read(path, owner, function)]))

    if path not in sources.files.paths:
        return None
    if cache is None:
        return next(iter(read()), None)
    code = code_digest("harness.compat.lint.serving*", cache=cache)
    store = AnalysisCache(folder=cache / "lint", code=code)
    found = store.get("server options", [sources.digest, path], tuple[ServerOptions, ...], read)
    return next(iter(found), None)


@dataclass
class _OptionSource:
    names: SourceNames
    found: list[ServerOption] = field(default_factory=list)
    complete: bool = True
    classes: Classes = field(default_factory=dict)

    def read(self, path: str, owner: str, function: str) -> ServerOptions | None:
        start = self.names.find(path, owner or function)
        if start is None:
            return None
        self._follow(self._method(start, function) if owner else start, start if owner else None, 0)
        unique = {(one.flags, one.dest): one for one in self.found}
        made = dict(self._made_later())
        options = [
            replace(one, takes=made[one.dest]) if one.form == "json" and one.dest in made else one
            for one in unique.values()
        ]
        complete = self.complete and bool(unique)
        return ServerOptions(options=tuple(options), complete=complete, classes=self.classes)

    def _made_later(self) -> Iterator[tuple[str, str]]:
        """The options of which the engine makes an object of a class itself: `Class(**self.option)`."""
        known = ARGUMENTS_FILE in self.names.sources.files.paths
        module = self.names.sources.syntax_tree(ARGUMENTS_FILE) if known else None
        for node in ast.walk(module) if module is not None else ():
            match node:
                case ast.Call(
                    func=ast.Name(id=name),
                    args=[],
                    keywords=[
                        ast.keyword(arg=None, value=ast.Attribute(value=ast.Name(id="self"), attr=option))
                    ],
                ):
                    found = self.names.find(ARGUMENTS_FILE, name)
                    if found is not None:
                        yield option, self._json.object_of(found)

    @functools.cached_property
    def _json(self) -> JsonTypes:
        return JsonTypes(self.names, self._is_closed, self.classes)

    def _method(self, owner: Definition, name: str) -> Definition | None:
        """A method of a class or of one that it extends."""
        if not isinstance(owner.node, ast.ClassDef):
            return None
        for one in reversed(self.names.ancestry(owner.path, owner.node)):
            for node in one.node.body if isinstance(one.node, ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return Definition(one.path, node)
        return None

    def _follow(self, function: Definition | None, owner: Definition | None, depth: int) -> None:
        if function is None or not isinstance(function.node, ast.FunctionDef) or depth > MAX_DEPTH:
            self.complete = False
            return
        groups = self._groups(function, owner)
        for node in _in_order(function.node):
            if isinstance(node, ast.For):
                self.found += _of_loop(node, groups)
            elif isinstance(node, ast.Call) and last_name(node.func) == "add_argument":
                self.found += _added(node, groups)
            elif isinstance(node, ast.Call) and any(_is_parser(one) for one in node.args):
                self._call(node, function.path, owner, depth)

    def _call(self, node: ast.Call, path: str, owner: Definition | None, depth: int) -> None:
        """A call that gets the parser: it can add options."""
        match node.func:
            case ast.Attribute(attr=name) if name in _CHANGES_NOTHING:
                return
            case ast.Attribute(value=ast.Name(id="cls" | "self"), attr=name) if owner is not None:
                self._follow(self._method(owner, name), owner, depth + 1)
            case ast.Attribute(value=ast.Name(id=name), attr=method):
                found = self.names.find(path, name)
                self._follow(self._method(found, method) if found else None, found, depth + 1)
            case ast.Name(id=name):
                self._follow(self.names.find(path, name), None, depth + 1)
            case _:
                self.complete = False

    def _groups(self, function: Definition, owner: Definition | None) -> dict[str, dict[str, ServerOption]]:
        """Variable -> the options of the dataclass whose arguments it has, by field."""
        bodies: list[ast.AST] = [function.node]
        if owner is not None and isinstance(owner.node, ast.ClassDef):
            # What a class changes of its options in a method of its own.
            bodies += [
                node
                for one in self.names.ancestry(owner.path, owner.node)
                for node in (one.node.body if isinstance(one.node, ast.ClassDef) else ())
                if isinstance(node, ast.FunctionDef) and "kwargs" in node.name
            ]
        groups: dict[str, dict[str, ServerOption]] = {}
        for node in (inner for body in bodies for inner in _in_order(body)):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=called, args=[ast.Name(id=made)])
                ) if last_name(called) == "get_kwargs":
                    cls = owner if made == "cls" else self.names.find(function.path, made)
                    groups[name] = self._fields(cls)
                case ast.Assign(targets=[ast.Subscript() as target], value=value):
                    _change(groups, target, value)
                case ast.AugAssign(target=ast.Subscript() as target):
                    _change(groups, target, None)
                case ast.Delete(targets=[ast.Subscript() as target]):
                    _change(groups, target, ast.Constant(value=None))
        return groups

    def _fields(self, cls: Definition | None) -> dict[str, ServerOption]:
        if cls is None or not isinstance(cls.node, ast.ClassDef):
            self.complete = False
            return {}
        defaults, limited = self.names.defaults(cls.path, cls.node), self.names.limits(cls.path, cls.node)
        return {
            name: replace(
                self._of_field(name, types),
                defaults=(defaults[name],) if name in defaults else (),
                limits=limited.get(name, {}),
                owner=f"{cls.path}:{cls.node.name}:{name}",
            )
            for name, types in self.names.fields(cls.path, cls.node).items()
        }

    def _of_field(self, name: str, types: Sequence[FieldType]) -> ServerOption:
        """The option of a field, as vLLM computes it: the first kind that its types have."""
        kinds = {one.kind: one for one in reversed(types)}
        option = ServerOption(dest=name, flags=())
        is_optional = "None" in kinds and "bool" not in kinds
        if "open" in kinds:
            return replace(option, form="open", nargs="*")
        if "dataclass" in kinds:
            unread = "" if self._config_decorator is not None else "the fields"
            takes = self._json.takes(types)
            if OPEN in takes.split(" | ") and self._takes_objects_only:
                takes = "dict | None" if "None" in kinds else "dict"
            option = replace(option, form="object", takes=takes, unread=unread)
        elif set(kinds) == {"bool", "str", "None"} and self._has_bare_flags:
            return replace(option, nargs="?")
        elif "bool" in kinds:
            option = replace(option, form="pair")
        elif "literal" in kinds:
            option = _with_literal(option, kinds["literal"], is_open="str" in kinds)
        elif found := next((kinds[one] for one in ("tuple", "list", "set") if one in kinds), None):
            option = _with_element(replace(option, nargs=str(found.size or "+")), found.of)
        elif "int" in kinds:
            option = replace(option, form="number" if name in self._written_numbers else "int")
        elif "float" in kinds:
            option = replace(option, form="float")
        elif "dict" in kinds:
            option = replace(option, form="mapping" if {"str", "class"} & set(kinds) else "json")
        choices = (*option.choices, "None") if option.choices and is_optional else option.choices
        return replace(option, is_optional=is_optional, choices=choices)

    def _is_closed(self, cls: Definition) -> bool:
        """Whether a class refuses fields that it lacks: only the decorator of vLLM's own forbids them."""
        if not isinstance(cls.node, ast.ClassDef):
            return False
        decorated = [last_name(each) for each in cls.node.decorator_list]
        is_plain = not any(isinstance(each, ast.Call) for each in cls.node.decorator_list)
        return "config" in decorated and is_plain and self._forbids_others

    @property
    def _forbids_others(self) -> bool:
        found = self._config_decorator
        return found is not None and "extra='forbid'" in ast.unparse(found.node)

    @functools.cached_property
    def _config_decorator(self) -> Definition | None:
        """The decorator of vLLM's configuration; older releases have it in one module with the classes."""
        places = ("vllm/config/utils.py", "vllm/config/__init__.py", "vllm/config.py")
        known = [one for one in places if one in self.names.sources.files.paths]
        return next(filter(None, (self.names.find(one, "config") for one in known)), None)

    @property
    def _computation(self) -> str:
        found = [self.names.find(ARGUMENTS_FILE, one) for one in _COMPUTES]
        return "\n".join(ast.unparse(one.node) for one in found if one is not None)

    @property
    def _has_bare_flags(self) -> bool:
        return "['const']" in self._computation

    @property
    def _takes_objects_only(self) -> bool:
        """Whether vLLM reads a class from JSON of an object only; older releases also take a number."""
        return "validate_json" in self._computation and "from_cli" not in self._computation

    @property
    def _written_numbers(self) -> frozenset[str]:
        """The fields whose numbers can be written as 4k."""
        found = [self.names.find(ARGUMENTS_FILE, one) for one in _COMPUTES]
        return frozenset(
            node.value
            for one in found
            if one is not None
            for compared in ast.walk(one.node)
            if isinstance(compared, ast.Compare)
            for node in ast.walk(compared)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )


def _with_literal(option: ServerOption, one: FieldType, *, is_open: bool) -> ServerOption:
    form = "int" if all(isinstance(text, int) for text in one.texts) else "text"
    return replace(option, form=form, choices=() if is_open else tuple(sorted(map(str, one.texts))))


def _with_element(option: ServerOption, types: Sequence[FieldType]) -> ServerOption:
    """How the elements of a collection are read: those of several types as texts."""
    if len(types) == 1 and types[0].kind == "literal":
        return _with_literal(option, types[0], is_open=False)
    forms = {"int": "int", "float": "float", "str": "text", "class": "text"}
    return replace(option, form=forms.get(types[0].kind, "open") if len(types) == 1 else "text")


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and calls of a function in the order of its text; what a loop adds is in the loop."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not (isinstance(child, ast.For) and _added_key(child)):
            yield from _in_order(child)


def _is_parser(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and (node.id == "parser" or node.id.endswith("_parser"))


def _added_key(loop: ast.For) -> str:
    """The variable over whose entries a loop adds options; "" for another loop."""
    match loop.iter:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")):
            inner = ast.walk(loop)
            calls = (one for one in inner if isinstance(one, ast.Call))
            return name if any(last_name(one.func) == "add_argument" for one in calls) else ""
    return ""


def _of_loop(loop: ast.For, groups: Mapping[str, Mapping[str, ServerOption]]) -> list[ServerOption]:
    fields = groups.get(_added_key(loop), {})
    return [replace(one, flags=(f"--{name.replace('_', '-')}",)) for name, one in fields.items()]


def _added(node: ast.Call, groups: Mapping[str, Mapping[str, ServerOption]]) -> list[ServerOption]:
    """The option of one `add_argument` call; none if its name is not written out."""
    names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if not names or len(names) < len(node.args):
        return []
    flags = tuple(one for one in names if one.startswith("-"))
    longest = next((one for one in flags if one.startswith("--")), names[0])
    option = ServerOption(dest=longest.lstrip("-").replace("-", "_"), flags=flags)
    for keyword in node.keywords:
        if keyword.arg is None:
            taken = _taken(keyword.value, groups)
            known = taken or replace(option, form="open", nargs="*")
            option = replace(known, dest=option.dest, flags=option.flags)
    for keyword in node.keywords:
        if keyword.arg is not None:
            option = _with(option, keyword.arg, keyword.value)
    return [option]


def _taken(node: ast.expr, groups: Mapping[str, Mapping[str, ServerOption]]) -> ServerOption | None:
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
            return groups.get(name, {}).get(key)
        case ast.Dict(keys=[None, *names], values=[first, *values]):
            option = _taken(first, groups)
            for named, value in zip(names, values, strict=True):
                part = str(named.value) if isinstance(named, ast.Constant) else ""
                option = _with(option, part, value) if option and part else None
            return option
    return None


def _change(
    groups: Mapping[str, dict[str, ServerOption]], target: ast.Subscript, value: ast.expr | None
) -> None:
    """`kwargs["field"]["type"] = value`; value None: it is changed in another way."""
    match target:
        case ast.Subscript(
            value=ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))),
            slice=ast.Constant(value=str(part)),
        ) if key in groups.get(name, {}):
            groups[name][key] = _with(groups[name][key], part, value)


def _with(option: ServerOption, part: str, value: ast.expr | None) -> ServerOption:
    """The option with another argument of `add_argument`."""
    constant = value.value if isinstance(value, ast.Constant) else None
    match part:
        case "type":
            is_optional = isinstance(value, ast.Call) and last_name(value) == "optional_type"
            inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
            form = _TYPES.get(ast.unparse(inner) if inner is not None else "", "open")
            return replace(option, form=form, is_optional=option.is_optional or is_optional)
        case "choices":
            listed = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
            texts = [str(one.value) for one in listed if isinstance(one, ast.Constant)]
            return replace(option, choices=tuple(texts) if listed and len(texts) == len(listed) else ())
        case "nargs":
            return replace(option, nargs="" if constant is None else str(constant))
        case "action" if constant in _SWITCHES:
            return replace(option, form="switch", defaults=(constant == "store_false",))
        case "action" if constant in ("append", "extend"):
            return replace(option, appends=True)
        case "action" if value is not None and last_name(value) == "BooleanOptionalAction":
            return replace(option, form="pair")
        case "action":
            return replace(option, form="open")
        case "default" if isinstance(value, ast.Constant) and is_literal(constant):
            return replace(option, defaults=(constant,))
        case "default":
            return replace(option, defaults=())
        case "dest" if isinstance(constant, str):
            return replace(option, dest=constant)
    return option
